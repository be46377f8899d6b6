"""Run before the bake: opens a page in the ordinary way, which brings all that needs into memory, and then leaves a Chromium
and a Playwright driver on hold (standby.c), so that launch() in a sandbox finds both running.
"""
import asyncio
import base64
import glob
import json
import os
import signal
import time

from playwright._impl._driver import compute_driver_executable, get_driver_env
from playwright.async_api import async_playwright

STANDBY = "/usr/lib/panda/standby"
CHROMIUM = "/usr/lib/chromium/chromium-headless-shell"
NODE = "/usr/bin/node"
PROFILE = "/var/lib/panda-chromium"
PAGE = "<title>warm</title><h1>Ää 中 😀</h1><p>text</p><script>document.title += ' page'</script>"


async def ordinary():
    """Opens a page and returns the arguments that Playwright starts a browser with."""
    async with async_playwright() as p:
        browser = await p.chromium.launch()
        page = await browser.new_page()
        await page.set_content(PAGE)
        assert await page.title() == "warm page"
        assert (await page.screenshot()).startswith(b"\x89PNG")
        commands = [open(f, "rb").read().decode().split("\0")[:-1] for f in glob.glob("/proc/[0-9]*/cmdline")]
        (args,) = [c[1:] for c in commands if "--remote-debugging-pipe" in c and not any(a.startswith("--type=") for a in c)]
        await browser.close()
        return [a for a in args if not a.startswith("--user-data-dir=")]


def start(program, args, env, fd_in, fd_out):
    """With pipes at these fds: (pid, where to write, where to read). In a session of its own: a stopped group
    whose session has ended would be ended, too."""
    r, write = os.pipe()
    read, w = os.pipe()
    high = [os.dup2(fd, 60 + i, inheritable=False) for i, fd in enumerate((r, w))]  # out of the way of fds that are targets
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, high[0], fd_in), (os.POSIX_SPAWN_DUP2, high[1], fd_out)]
    pid = os.posix_spawn(program, [program, *args], env, file_actions=actions, setsid=True)
    for fd in (r, w, *high, null):
        os.close(fd)
    return pid, write, read


def hold(name, args, env, started):
    pid, write, read = started
    os.killpg(pid, signal.SIGSTOP)  # whoever takes it wakes it: until then it has no timers and costs no time
    for fd in write, read:
        os.set_inheritable(fd, True)
    holder = os.posix_spawn(STANDBY, [STANDBY, "hold", name, str(pid), str(write), str(read), *args], env)
    assert os.waitstatus_to_exitcode(os.waitpid(holder, 0)[1]) == 0, f"cannot hold {name}"


class Chromium:
    """As much of its protocol as a rehearsal needs."""

    def __init__(self, started):
        _, self.write, self.read = started
        self.n, self.rest = 0, b""

    def message(self):
        while b"\0" not in self.rest:
            data = os.read(self.read, 1 << 16)
            assert data, "Chromium has ended"
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\0")
        return json.loads(line)

    def ask(self, method, session=None, until=None, **params):
        """The answer; with until, after that event has come, too."""
        self.n += 1
        message = {"id": self.n, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self.write, json.dumps(message).encode() + b"\0")
        answer = None
        while answer is None or until:
            m = self.message()
            if m.get("id") == self.n:
                assert "result" in m, m
                answer = m["result"]
            elif m.get("method") == until:
                until = None
        return answer

    def rehearse(self):
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=context, width=1280, height=720)["targetId"]
        s = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable", s)
        self.ask("Runtime.enable", s)
        with open("/tmp/warm.html", "w") as f:
            f.write(PAGE)
        self.ask("Page.navigate", s, until="Page.loadEventFired", url="file:///tmp/warm.html")
        assert base64.b64decode(self.ask("Page.captureScreenshot", s)["data"]).startswith(b"\x89PNG")
        os.unlink("/tmp/warm.html")
        self.ask("Target.closeTarget", targetId=target)
        self.ask("Target.disposeBrowserContext", browserContextId=context)


def quiet(pid, seconds=0.5):
    """Until it has used no processor time for so long: it says nothing before it is asked."""
    last, since = None, time.monotonic()
    while time.monotonic() < since + seconds:
        with open(f"/proc/{pid}/stat") as f:
            used = f.read().rpartition(")")[2].split()[11:13]
        if used != last:
            last, since = used, time.monotonic()
        time.sleep(0.05)


def main():
    args = asyncio.run(ordinary())
    env = dict(os.environ)
    started = start(CHROMIUM, [*args, f"--user-data-dir={PROFILE}"], env, 3, 4)
    chromium = Chromium(started)
    for _ in range(2):
        chromium.rehearse()
    hold("chromium", args, env, started)

    args, env = [compute_driver_executable()[1], "run-driver"], get_driver_env()
    started = start(NODE, args, env, 0, 1)
    quiet(started[0])
    hold("driver", args, env, started)


main()
