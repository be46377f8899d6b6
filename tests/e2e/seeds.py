"""The code blocks of tests/seeds/*.txt, the documents our users read, taken from there.

Two documents have their code as it was written. The other three came to us as flat text: every line has lost its
indentation, and prose goes on right behind the last line of a block. LEVELS says how deep each line of a block stood; nothing
else about a block is written here. Where a line is within a string of several lines, its level counts within that string.
"""
import ast
import re
from pathlib import Path

SEEDS = Path(__file__).resolve().parents[1] / "seeds"

# document: [levels of each line of its blocks]
LEVELS = {
    "002": ["00012221111111110", "000100012222220011111121", "0000001110001221122220121"],
    "003": ["00000000011111120", "00000000000000011111121", "0000112222211112221101", "00122122222212000"],
    "004": ["0000000000011110", "0011222122222233321201112334333212", "00000000111222212001000"],
}


def flat(name):
    """Blocks of a flat document: from an import of ours to the line where prose goes on."""
    blocks, block = [], None
    for line in next(SEEDS.glob(name + "*")).read_text().splitlines():
        if block is None and line == "from pandastack import Sandbox":
            block = []
        if block is None:
            continue
        if len(line) > 160:
            block.append(cut(line))
            blocks.append(block)
            block = None
        else:
            block.append(line)
    return blocks


def cut(line):
    """The code at the beginning of a line that goes on as prose: a letter or ` stands where no code goes on."""
    for m in re.finditer(r"(?<=[^\s])(?=[A-Z`])", line):
        code = line[: m.start()]
        try:
            ast.parse(code)
        except SyntaxError:
            continue
        return code
    raise AssertionError(f"where does the code end? {line[:120]}")


def straight(name):
    """Blocks of a document that has its indentation: from a line of code at the margin to the next line of prose there."""
    blocks, block = [], []
    for line in next(SEEDS.glob(name + "*")).read_text().splitlines() + ["The end."]:
        if block and line and not line[0].isspace() and not code(line, block):
            blocks.append("\n".join(block).rstrip() + "\n")
            block = []
        elif block or begins(line):
            block.append(line)
    return blocks


def begins(line):
    return bool(re.match(r"(from|import) \w+|[a-zA-Z_]+ = |# [A-Z][\w-]+: one VM", line))


def code(line, block):
    """Does this line at the margin belong to the code above it?"""
    if line[0] in ")]}#" or re.match(r"(def|class|with|for|while|if|else|elif|try|except|finally|return|from|import|print)\b", line):
        return re.match(r"(if|for|with|while|try) .*[^:(]$", line) is None
    return bool(re.match(r"[\w.]+(\[.*\])?( [-+*/]?= |\()", line))


def blocks(name):
    """The code of all blocks of the document whose name begins so."""
    if name not in LEVELS:
        return straight(name)
    found = flat(name)
    assert len(found) == len(LEVELS[name]), f"{name} has {len(found)} blocks, LEVELS has {len(LEVELS[name])}"
    out = []
    for lines, levels in zip(found, LEVELS[name]):
        assert len(lines) == len(levels), f"{name}: {len(lines)} lines, {len(levels)} levels: {lines[1]}"
        out.append("".join(" " * 4 * int(n) + line + "\n" for line, n in zip(lines, levels)))
    return out


if __name__ == "__main__":
    for document in "000", "001", "002", "003", "004":
        for i, text in enumerate(blocks(document)):
            print(f"=== {document} {i}\n{text}")
            ast.parse(text)
