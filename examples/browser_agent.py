"""Computer use: the model sees a browser and says where to click and what to type.

The browser runs in a sandbox, so whatever a page does, it does there. A resident Python holds the page between steps; each step
is a cell. The screenshot is a cell's result like any other picture.
"""
import base64
import sys

import anthropic

from pandastack import Sandbox

MODEL = "claude-sonnet-4-5"
MAX_STEPS = 30
WIDTH, HEIGHT = 1024, 768
PAGE = """<!doctype html><title>Orders</title>
<style>body { font: 20px sans-serif; margin: 40px } input, button { font: inherit; position: absolute; left: 40px; width: 300px }</style>
<h1>Order a lamp</h1>
<input id=name placeholder="your name" style="top: 140px">
<button style="top: 200px" onclick="said.textContent = 'Thank you, ' + document.getElementById('name').value">Order</button>
<p id=said style="position: absolute; top: 260px"></p>
"""
OPEN = f"""
from playwright.sync_api import sync_playwright
page = sync_playwright().start().chromium.launch().new_page(viewport={{"width": {WIDTH}, "height": {HEIGHT}}})
class Screen:
    def _repr_png_(self):
        return page.screenshot()
ignore = page.goto("file:///workspace/page.html")
"""


def code_for(action):
    """What the model wants, as a line of Playwright."""
    name = action["action"]
    if name in ("left_click", "double_click", "mouse_move"):
        x, y = (int(n) for n in action["coordinate"])
        what = {"left_click": "click", "double_click": "dblclick", "mouse_move": "move"}[name]
        return f"page.mouse.{what}({x}, {y})"
    if name == "type":
        return f"page.keyboard.type({action['text']!r})"
    if name == "key":
        return f"page.keyboard.press({action['text'].replace('ctrl', 'Control').replace('Return', 'Enter')!r})"
    if name == "scroll":
        sign = -1 if action.get("scroll_direction") == "up" else 1
        return f"page.mouse.wheel(0, {sign * 100 * int(action.get('scroll_amount', 3))})"
    if name == "wait":
        return "page.wait_for_timeout(1000)"
    return None if name == "screenshot" else f"raise ValueError({'no action ' + name!r})"


def screen(context):
    shot = context.run_code("Screen()")
    if not shot.png:
        raise RuntimeError(f"the browser cannot be seen: {shot.error}")
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(shot.png).decode()}}


def agent(task, page=PAGE):
    client = anthropic.Anthropic()
    tool = {"type": "computer_20250124", "name": "computer", "display_width_px": WIDTH, "display_height_px": HEIGHT}
    with Sandbox.create(template="browser", ttl_seconds=3600) as sandbox, sandbox.create_code_context() as context:
        sandbox.filesystem.write("/workspace/page.html", page)
        opened = context.run_code(OPEN)
        if not opened.ok:
            raise RuntimeError(f"the browser does not open: {opened.error}")
        messages = [{"role": "user", "content": [{"type": "text", "text": task}, screen(context)]}]
        for _ in range(MAX_STEPS):
            answer = client.beta.messages.create(model=MODEL, max_tokens=4096, tools=[tool], messages=messages,
                                                 betas=["computer-use-2025-01-24"])
            messages.append({"role": "assistant", "content": answer.content})
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in answer.content if block.type == "text")
            results = []
            for call in calls:
                code = code_for(call.input)
                run = context.run_code(code) if code else None
                seen = [{"type": "text", "text": str(run.error)}] if run and run.error else [screen(context)]
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": seen, "is_error": bool(run and run.error)})
            messages.append({"role": "user", "content": results})
    return f"not done after {MAX_STEPS} steps"


if __name__ == "__main__":
    print(agent(" ".join(sys.argv[1:]) or "Order a lamp for Ada and tell me what the page answers."))
