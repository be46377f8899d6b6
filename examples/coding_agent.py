"""A coding agent that does not hope for one good fix: it asks for several and tries them all, each in a fork.

A fork is a live copy of the machine, memory and disk, in milliseconds. What takes long (a checkout, an installation, a build, a running
database) happens once, before; every candidate starts from there, and none can spoil it for the others.
"""
import sys
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

from pandastack import Sandbox

MODEL = "gpt-4o"
CANDIDATES = 5
CODE = '''def median(numbers):
    """The middle one; of an even count the mean of the two in the middle."""
    numbers.sort()
    return numbers[len(numbers) // 2]
'''
TESTS = '''from stats import median


def test_odd():
    assert median([3, 1, 2]) == 2


def test_even():
    assert median([4, 1, 3, 2]) == 2.5


def test_leaves_its_argument_alone():
    numbers = [2, 1]
    median(numbers)
    assert numbers == [2, 1]
'''


def ask_for_fixes(code, failure, n):
    """n versions of the file; a model asked n times does not say n times the same."""
    prompt = f"This file fails its tests. Answer with the whole file, repaired, and nothing else.\n\n{code}\n\n{failure}"
    answer = OpenAI().chat.completions.create(model=MODEL, n=n, temperature=1, messages=[{"role": "user", "content": prompt}])
    return [unfenced(choice.message.content or "") for choice in answer.choices]  # who refuses says nothing


def unfenced(text):
    lines = text.strip().splitlines()
    return "\n".join(line for line in lines if not line.startswith("```")) + "\n"


def attempt(fork, fix):
    """(do the tests pass, what they said)"""
    fork.filesystem.write("/workspace/stats.py", fix)
    run = fork.exec("python3 -m pytest -q", cwd="/workspace", timeout_seconds=60)
    return run.exit_code == 0, run.output


def repair(code=CODE, tests=TESTS, n=CANDIDATES):
    """The first fix that passes, or None."""
    with Sandbox.create(template="agent", ttl_seconds=600) as base:
        base.filesystem.write("/workspace/stats.py", code)
        base.filesystem.write("/workspace/test_stats.py", tests)
        failure = base.exec("python3 -m pytest -q", cwd="/workspace", timeout_seconds=60).output
        fixes = ask_for_fixes(code, failure, n)
        forks = base.fork(len(fixes))
        try:
            with ThreadPoolExecutor(len(forks)) as pool:
                outcomes = list(pool.map(attempt, forks, fixes))
        finally:
            for fork in forks:
                fork.kill()
    passed = [fix for fix, (ok, _) in zip(fixes, outcomes) if ok]
    print(f"{len(passed)} of {len(fixes)} fixes pass", file=sys.stderr)
    return passed[0] if passed else None


if __name__ == "__main__":
    print(repair() or "no fix passes")
