"""What governing costs: `make bench`. Medians over rounds in one process, each pair measured in turn, as ratios."""

import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kgent_tools
from kgent_tools import EffectivePermissionPolicy, RunContext, ToolDefinition, ToolRegistry, ToolResult, ToolsConfig

ROUNDS = 60
CONFIG = {"permissions": {"rules": [{"action": "read_file", "resource": "denied/**", "effect": "deny"}]}}
TEXT = "".join(f"{n:04} the quick brown fox jumps over the lazy dog\n" for n in range(100))[:4095] + "\n"

Call = Callable[[], object]


def microseconds(call: Call, calls: int) -> float:
    """The time of one call, out of `calls` in a row."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - start) / calls / 1000


def compare(title: str, ours: Call, theirs: Call, goal: float | None, calls: int = 40) -> None:
    """Prints both medians, their ratio, and what it should be."""
    for warm_up in (ours, theirs):
        microseconds(warm_up, 5)
    pairs = [(microseconds(ours, calls), microseconds(theirs, calls)) for _ in range(ROUNDS)]
    mine, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = mine / other
    verdict = "" if goal is None else f"{goal:5.2f}  {'met' if ratio <= goal else 'MISSED'}"
    print(f"{title:<58} {mine:>9.1f} {other:>9.1f} {ratio:>6.2f}  {verdict}", flush=True)


def make_project(root: Path) -> None:
    """A 4 KiB file in a folder, a folder of 1,000 files, and a tree of 400 files to search."""
    for folder in ("d", "denied", "many"):
        (root / folder).mkdir(parents=True)
    (root / "d" / "f").write_text(TEXT, encoding="utf-8")
    (root / "denied" / "f").write_text(TEXT, encoding="utf-8")
    for n in range(1000):
        (root / "many" / f"file-{n:04}.txt").write_text("x", encoding="utf-8")
    for n in range(400):
        folder = root / "tree" / f"p{n % 20:02}"
        folder.mkdir(parents=True, exist_ok=True)
        needle = "needle_7f3a = 1\n" if n % 50 == 0 else ""
        (folder / f"m{n:03}.py").write_text(TEXT * 2 + needle, encoding="utf-8")


def noop(args: Any, context: Any) -> ToolResult:
    """Does nothing, so that what is left is settle."""
    return ToolResult(ok=True, summary="done")


def python_write(path: str) -> None:
    """What a careful Python program does: a temporary file beside the target, then a replace."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=os.path.dirname(path), delete=False) as file:
        file.write(TEXT)
    os.replace(file.name, path)


def python_list(path: str) -> list[tuple[str, int]]:
    """Names and sizes, sorted."""
    with os.scandir(path) as entries:
        return sorted((entry.name, entry.stat(follow_symlinks=False).st_size) for entry in entries)


def python_grep(path: str, pattern: str) -> list[tuple[str, int, str]]:
    """Matching lines of every file below."""
    regex = re.compile(pattern)
    found: list[tuple[str, int, str]] = []
    for folder, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found.extend((file.name, n, line) for n, line in enumerate(file, 1) if regex.search(line))
    return found


def main(root: Path) -> None:
    """Measures everything in one run on one project."""
    project = root / "project"
    make_project(project)
    config = ToolsConfig.from_dict(CONFIG)
    with RunContext.create(root / "runs", workspace=project, config=config) as context:
        policy = EffectivePermissionPolicy.merge(config=config, context=context)
        registry = ToolRegistry(context)
        registry.register({"noop": ToolDefinition(description="", input_schema={"type": "object"}, handler=noop)})
        handlers: dict[str | None, Callable[..., Any]] = {
            tool.name: tool.handler for tool in registry.materialize(policy).definitions
        }
        call_noop, read, write = handlers["noop"], handlers["read_file"], handlers["write_file"]
        list_files, grep = handlers["list_files"], handlers["grep_files"]

        file, copy, many, tree = (str(project / name) for name in ("d/f", "d/python", "many", "tree"))
        pattern = r"needle_[0-9a-f]{4} ="

        def governed_read() -> Any:
            return read({"path": "d/f"}, context).content[0].text

        def python_read() -> str:
            with open(file, encoding="utf-8") as opened:
                return opened.read()

        assert governed_read().count("\n") >= python_read().count("\n") - 1
        assert len(grep({"path": "tree", "pattern": pattern}, context).data["matches"]) == len(
            python_grep(tree, pattern)
        )
        assert read({"path": "denied/f"}, context).error.code == "denied"

        print(f"kgent_tools {kgent_tools.__version__}, Python {sys.version.split()[0]}, {ROUNDS} rounds\n")
        print(f"{'governed, against':<58} {'µs':>9} {'µs':>9} {'ratio':>6}   goal")  # noqa: RUF001
        compare("read_file 4 KiB, against open().read()", governed_read, python_read, 1.0)
        compare("no-op Python tool, against governed read_file", lambda: call_noop({}, context), governed_read, 0.7)
        compare(
            "read_file denied by name, against governed read_file",
            lambda: read({"path": "denied/f"}, context),
            governed_read,
            1 / 3,
        )
        compare(
            "write_file 4 KiB, against temporary file and os.replace",
            lambda: write({"path": "d/governed", "content": TEXT}, context),
            lambda: python_write(copy),
            None,
        )
        compare(
            "list_files of 1,000 entries, against scandir and stat",
            lambda: list_files({"path": "many"}, context),
            lambda: python_list(many),
            None,
            calls=3,
        )
        compare(
            "grep_files in 400 files of 8 KiB, against re",
            lambda: grep({"path": "tree", "pattern": pattern}, context),
            lambda: python_grep(tree, pattern),
            None,
            calls=1,
        )


with tempfile.TemporaryDirectory() as folder:
    main(Path(folder))
