"""magic.py - what notebooks write that is not Python, as Python. Used by repl.py when a cell does not compile.

  !command                           bash; `lines = !command` keeps what it prints
  %%bash, %%sh                       the whole cell is for bash
  %%writefile [-a] PATH              the rest of the cell goes to that file
  %cd, %pwd, %env, %pip, %time, %timeit, %%time, %%timeit    as in IPython
  %matplotlib and others in NOTHING  are about notebooks, and mean nothing here
Others are errors: what is left out without a word is looked for where it is not.
"""
import ast
import contextlib
import os
import re
import shlex
import subprocess
import sys
import time

NOTHING = {"matplotlib", "load_ext", "reload_ext", "autoreload", "config", "pylab", "precision", "capture", "colors", "xmode"}
LINE = re.compile(r"(?P<indent>\s*)(?P<keep>[\w.\[\], ]+=\s*)?(?P<sort>[!%])\s*(?P<rest>\S.*)", re.S)
CALL = f"__import__('sys').modules[{__name__!r}]"
LOOP_S = 0.2  # of a measurement; five are made
FIVE = 5

began = None  # when the cell did, if it wants to know how long it took


class UsageError(Exception):
    pass


def translate(code, name):
    """The cell's tree. Only lines that Python stumbles over are looked at: what stands in a string stays as it is."""
    code = whole_cell(code)
    while True:
        try:
            return ast.parse(code, name)
        except SyntaxError as e:
            better = without_line(code, (e.lineno or 0) - 1)
            if better is None:
                raise
            code = better


def whole_cell(code):
    first, _, rest = code.lstrip().partition("\n")
    if not first.startswith("%%"):
        return code
    word, _, given = first[2:].partition(" ")
    if word in ("bash", "sh"):
        return called("shell", rest)
    if word == "writefile":
        return called("write", given.strip(), rest)
    if word == "timeit":
        return called("timeit", rest if not given else f"{given}\n{rest}")
    if word == "time":
        return f"{called('begin')}\n{rest}"
    return f"{'' if word in NOTHING else called('unknown', f'%%{word}')}\n{rest}"


def without_line(code, at):
    lines = code.split("\n")
    if not 0 <= at < len(lines):
        return None
    end = at
    while lines[end].endswith("\\") and end + 1 < len(lines):
        end += 1
    m = LINE.fullmatch("\n".join(lines[at:end + 1]))
    if not m:
        return None
    keep = m["keep"] or ""
    line = m["indent"] + keep + (called("lines" if keep else "shell", m["rest"]) if m["sort"] == "!" else magic(m["rest"]))
    return "\n".join(lines[:at] + [line] + [""] * (end - at) + lines[end + 1:])


def magic(text):
    word, _, given = text.partition(" ")
    given = given.strip()
    if word == "pip":
        return called("shell", f"pip {given}")
    if word in ("cd", "pwd", "env", "timeit"):
        return called(word, given)
    if word == "time":
        return given if not is_value(given) else f"{CALL}.timed(lambda: ({given}))"
    return "pass" if word in NOTHING else called("unknown", f"%{word}")


def is_value(text):
    with contextlib.suppress(SyntaxError):
        return bool(ast.parse(text, mode="eval"))
    return False


def called(what, *given):
    return f"{CALL}.{what}({', '.join(map(repr, given))})"


# --- what they do

def shell(command):
    subprocess.run(["bash", "-c", command])


def lines(command):
    return subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True, errors="replace").stdout.splitlines()


def write(given, text):
    words = shlex.split(given)
    add = words[:1] == ["-a"]
    if len(words) != 1 + add:
        raise UsageError("%%writefile [-a] PATH")
    with open(os.path.expanduser(words[-1]), "a" if add else "w") as f:
        f.write(text)
    print(f"{'Appending to' if add else 'Writing'} {words[-1]}")


def cd(path):
    os.chdir(os.path.expanduser(shlex.split(path)[0] if path else "~"))
    print(os.getcwd())


def pwd(_):
    return os.getcwd()


def env(given):
    if not given:
        return dict(os.environ)
    name, sign, value = given.partition("=" if "=" in given else " ")
    if not sign:
        return os.environ[name]
    os.environ[name.strip()] = value.strip()


def timed(call):
    start = time.perf_counter()
    try:
        return call()
    finally:
        said(time.perf_counter() - start)


def timeit(code):
    import timeit as t
    timer = t.Timer(code, globals=sys.modules["__main__"].__dict__)
    loops, took = timer.autorange()
    loops = max(1, int(loops * LOOP_S / max(took, 1e-9)))
    each = sorted(s / loops for s in timer.repeat(FIVE, loops))
    print(f"{short(each[FIVE // 2])} per loop ({short(each[0])} to {short(each[-1])} in {FIVE} runs of {loops:,})")


def begin():
    global began
    began = time.perf_counter()


def over():
    """The cell is."""
    global began
    if began is not None:
        start, began = began, None
        said(time.perf_counter() - start)


def said(seconds):
    print(f"Wall time: {short(seconds)}")


def short(seconds):
    for unit, size in ("s", 1), ("ms", 1e-3), ("µs", 1e-6):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def unknown(word):
    raise UsageError(f"{word} is not known here: write it in Python, or as a command with !")
