"""A Python that stays: runs what comes through the fifo `in`, answers with JSON through `out`.
Beside this file; see Machine.keep() in tests/e2e/conftest.py."""
import json
import os
import traceback

here = os.path.dirname(os.path.abspath(__file__))
names = {}
while True:
    with open(f"{here}/in") as f:
        code = f.read()
    try:
        try:
            run = compile(code, "<asked>", "eval")
        except SyntaxError:
            exec(compile(code, "<asked>", "exec"), names)
            answer = {"value": None}
        else:
            answer = {"value": eval(run, names)}
        answer = json.dumps(answer)
    except BaseException:
        answer = json.dumps({"error": traceback.format_exc()})
    with open(f"{here}/out", "w") as f:
        f.write(answer)
