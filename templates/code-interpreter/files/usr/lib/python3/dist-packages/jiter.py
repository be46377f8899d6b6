"""As much of jiter as the SDKs of openai and anthropic use: JSON that is still coming in, read as far as it goes.

Not the real one, which is written in Rust and is not in Debian 12. `pip install jiter` puts that in front of this.
"""
import json as _json
import re as _re

__version__ = "0+panda"
_HALF_ESCAPE = _re.compile(r"(?<!\\)((?:\\\\)*)\\(u[0-9a-fA-F]{0,3})?$")


def from_json(json_data, /, *, partial_mode=False, **_):
    """partial_mode: False or "off"; True or "on": what is not complete is left out; "trailing-strings": but for a text."""
    text = json_data if isinstance(json_data, str) else bytes(json_data).decode(errors="ignore" if partial_mode else "strict")
    try:
        return _json.loads(text)
    except ValueError:
        if partial_mode in (False, "off"):
            raise
    return _json.loads(_closed(text, partial_mode == "trailing-strings"))


def _closed(text, strings):
    """Up to the last place at which nothing but closing brackets is missing, and those."""
    open_, good, i = [], (0, ""), 0  # open_: the brackets that are to come; for an object also whether a key is next

    def closing():
        return "".join(b for b, _ in reversed(open_))

    while i < len(text):
        c = text[i]
        if c in "{[":
            open_.append(["}", True] if c == "{" else ["]", False])
            good = i + 1, closing()
        elif c in "}]":
            if not open_ or open_.pop()[0] != c:
                break
            good = i + 1, closing()
        elif c in ",:":
            if open_:
                open_[-1][1] = c == "," and open_[-1][0] == "}"
        elif c == '"':
            key = bool(open_) and open_[-1][1]
            whole = _re.compile(r'"(?:[^"\\]|\\.)*"', _re.S).match(text, i)
            if not whole:
                if strings and not key:
                    good = len(text), '"' + closing()
                    text = _HALF_ESCAPE.sub(r"\1", text)
                break
            i = whole.end() - 1
            if not key:
                good = i + 1, closing()
        elif not c.isspace():
            whole = _re.compile(r"[^\s,:\]}\[{\"]+").match(text, i)
            if whole.end() == len(text):
                break  # a number may go on
            i = whole.end() - 1
            good = i + 1, closing()
        i += 1
    return text[:good[0]] + good[1]
