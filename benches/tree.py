"""A tree to search that looks like source code and is the same each time."""

import random
from pathlib import Path

WORDS = (
    "alpha beta gamma delta parser token stream buffer index cursor widget session config handler request response "
    "policy sandbox artifact memory vector matrix kernel thread lock queue graph node edge weight value result error"
).split()
SUFFIXES = ["py"] * 10 + ["rs"] * 4 + ["ts"] * 3 + ["md"] * 2 + ["json"]
LITERAL = "NEEDLE_LITERAL_7f3a"
REGEX = r"fn_[0-9]{4}_beta\("


def line(dice: random.Random) -> str:
    """One line, of the kinds and in the shares that code has."""
    a, b, c, d = dice.choices(WORDS, k=4)
    indent = "    " * dice.randrange(4)
    kind = dice.random()
    if kind < 0.12:
        return f"{indent}def {a}_{b}({c}, {d}={dice.randrange(1000)}):"
    if kind < 0.22:
        return f"{indent}# {a} {b} {c} {d} {b} {a}"
    if kind < 0.3:
        return ""
    if kind < 0.6:
        return f'{indent}{a}_{b} = {c}.{d}({a}[{dice.randrange(100)}], "{b} {c}")'
    if kind < 0.8:
        return f"{indent}if {a} is not None and {b}.{c} > {dice.randrange(10_000)}: return {d}"
    return f"{indent}for {a} in range({dice.randrange(50)}): {b}.append({c} * {dice.random():.4f})"


def make_tree(root: Path, files: int, size: int) -> None:
    """`files` files of about `size` bytes, 50 to a folder; one in 500 holds the literal, one in 100 the regex."""
    dice = random.Random(12345)
    pool = [line(dice) for _ in range(60_000)]
    text = "\n".join(pool + pool)
    half = len(text) // 2
    for number in range(files):
        folder = root / f"pkg{number // 1000:03}" / f"sub{number // 50 % 20:02}"
        if number % 50 == 0:
            folder.mkdir(parents=True)
        start = text.index("\n", dice.randrange(half)) + 1
        length = min(max(int(size * dice.lognormvariate(-0.28, 0.75)), 200), half)
        lines = text[start : text.rindex("\n", start, start + length) + 1]
        if number % 500 == 250:
            lines += f"    {LITERAL} = {number}\n"
        if number % 100 == 33:
            lines += f"    result = fn_{number % 10_000:04}_beta(cursor)\n"
        (folder / f"mod_{number % 50:03}.{dice.choice(SUFFIXES)}").write_text(lines, encoding="utf-8")
