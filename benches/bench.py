"""What governing costs: `make bench`. Medians over rounds in one process, each pair measured in turn, as ratios.

`make bench-large` searches ten times as many files, for time and memory.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tree import LITERAL, REGEX, make_tree

import kgent_tools
from kgent_tools import EffectivePermissionPolicy, RunContext, ToolDefinition, ToolRegistry, ToolResult, ToolsConfig

ROUNDS = 60
SLOW_ROUNDS = 9
CONFIG = {"permissions": {"rules": [{"action": "read_file", "resource": "denied/**", "effect": "deny"}]}}
TEXT = "".join(f"{n:04} the quick brown fox jumps over the lazy dog\n" for n in range(100))[:4095] + "\n"

Call = Callable[[], object]


def microseconds(call: Call, calls: int) -> float:
    """The time of one call, out of `calls` in a row."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - start) / calls / 1000


def compare(
    title: str, ours: Call, theirs: Call, goal: float | None, calls: int = 40, rounds: int = ROUNDS, scale: float = 1
) -> None:
    """Prints both medians, their ratio, and what it should be. `scale`: how much more ours does."""
    for warm_up in (ours, theirs):
        microseconds(warm_up, min(calls, 5))
    pairs = [(microseconds(ours, calls) / scale, microseconds(theirs, calls)) for _ in range(rounds)]
    mine, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = mine / other
    verdict = "" if goal is None else f"{goal:5.2f}  {'met' if ratio <= goal else 'MISSED'}"
    print(f"{title:<58} {mine:>9.1f} {other:>9.1f} {ratio:>6.2f}  {verdict}", flush=True)


def steps(calls: list[tuple[str, Call]]) -> None:
    """Prints what calls cost that each go one room further than the one before, and the difference."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for (_, call), found in zip(calls, times, strict=True):
            found.append(microseconds(call, 40))
    before = 0.0
    for (title, _), found in zip(calls, times, strict=True):
        median = statistics.median(found)
        print(f"  {title:<56} {median:>9.1f} {median - before:>+9.1f}", flush=True)
        before = median


def measure(title: str, mib: float, goal: float) -> None:
    """Prints an amount of memory and what it should be."""
    print(f"{title:<58} {mib:>9.2f} MiB {'':>12}  {goal:5.2f}  {'met' if mib < goal else 'MISSED'}", flush=True)


def memory(field: str) -> float:
    """What this process holds (VmRSS) or held at most (VmHWM), in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def peak(call: Call) -> float:
    """How much this process held at most during a call, in MiB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    call()
    return memory("VmHWM")


def ripgrep(folder: Path, *args: str) -> int:
    """A whole process of ripgrep on `folder`; how many lines it prints."""
    command = shutil.which("rg", path=sysconfig.get_path("scripts")) or "rg"
    done = subprocess.run([command, "--no-config", *args, "./"], cwd=folder, stdout=subprocess.PIPE, check=True)
    return done.stdout.count(b"\n")


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


def python_edit(path: str, old: str, new: str) -> None:
    """What a careful Python program does: read, replace, a temporary file beside the target, a replace."""
    with open(path, encoding="utf-8", newline="") as opened:
        text = opened.read()
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", newline="", dir=os.path.dirname(path), delete=False
    ) as file:
        file.write(text.replace(old, new))
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

        (project / "d" / "empty").write_text("", encoding="utf-8")
        step_calls: list[tuple[str, Call]] = [
            ("refused arguments: look up, decode, record", lambda: read({"pth": "d/f"}, context)),
            ("denied by name: and authorise", lambda: read({"path": "denied/f"}, context)),
            ("an empty file: and open, execute", lambda: read({"path": "d/empty"}, context)),
            ("4 KiB: and read, number, bound", governed_read),
            ("4 KiB, `data` taken: and hash, convert", lambda: read({"path": "d/f"}, context).data),
        ]
        assert governed_read().count("\n") >= python_read().count("\n") - 1
        assert len(grep({"path": "tree", "pattern": pattern}, context).data["matches"]) == len(
            python_grep(tree, pattern)
        )
        assert read({"path": "denied/f"}, context).error.code == "denied"

        print(f"kgent_tools {kgent_tools.__version__}, Python {sys.version.split()[0]}, {ROUNDS} rounds\n")
        print(f"{'governed, against':<58} {'µs':>9} {'µs':>9} {'ratio':>6}   goal")  # noqa: RUF001
        compare("read_file 4 KiB, against open().read()", governed_read, python_read, 1.0)
        print("  of it, by calls that each go further:")
        steps(step_calls)
        compare("no-op Python tool, against governed read_file", lambda: call_noop({}, context), governed_read, 0.7)
        compare(
            "read_file denied by name, against governed read_file",
            lambda: read({"path": "denied/f"}, context),
            governed_read,
            1 / 3,
        )
        compare_records(root, project, governed_read)
        compare(
            "write_file 4 KiB, against temporary file and os.replace",
            lambda: write({"path": "d/governed", "content": TEXT}, context),
            lambda: python_write(copy),
            None,
        )
        compare_edits(project, lambda args: handlers["edit_file"](args, context))
        compare(
            "list_files of 1,000 entries, against scandir and stat",
            lambda: list_files({"path": "many"}, context),
            lambda: python_list(many),
            0.7,
            calls=3,
        )
        compare(
            "grep_files in 400 files of 8 KiB, against re",
            lambda: grep({"path": "tree", "pattern": pattern}, context),
            lambda: python_grep(tree, pattern),
            None,
            calls=1,
        )
        compare_large_file(project, lambda args: read(args, context))
        compare_ripgrep(project, lambda args: grep(args, context), lambda args: handlers["glob_files"](args, context))


Governed = Callable[[dict[str, Any]], Any]


def compare_edits(project: Path, edit: Governed) -> None:
    """One line of a file, there and back."""
    for size, content, goal, calls, rounds in (
        ("4 KiB", TEXT, 1.0, 40, ROUNDS),
        (
            "10 MB",
            "".join(f"{n:07} the quick brown fox jumps over it\n" for n in range(10_000_000 // 40)),
            2.0,
            2,
            SLOW_ROUNDS,
        ),
    ):
        mine, theirs = project / "d" / f"edited-{goal}", project / "d" / f"python-{goal}"
        for path in (mine, theirs):
            path.write_text(content, encoding="utf-8")
        words = content.split("\n")[len(content.split("\n")) // 2].split(" ", 1)[0]
        turn = [words + " the quick", words + " THE QUICK"]

        def ours(turn: list[str] = turn, path: str = f"d/{mine.name}") -> None:
            turn.reverse()
            edits = [{"old_text": turn[1], "new_text": turn[0]}]
            assert edit({"path": path, "edits": edits}).ok

        back = list(turn)

        def python(turn: list[str] = back, path: str = str(theirs)) -> None:
            turn.reverse()
            python_edit(path, turn[1], turn[0])

        compare(
            f"edit_file {size}, against read, replace and os.replace", ours, python, goal, calls=calls, rounds=rounds
        )


def compare_records(root: Path, project: Path, governed_read: Call) -> None:
    """What records cost. A tool that changes things and one that does not differ by the appended event of the start:
    two such appends are more than a record and its event, which are one."""
    key = root / "audit.key"
    key.write_bytes(os.urandom(32))
    chained = ToolsConfig.from_dict({"records": {"audit": "chained", "audit_key_file": str(key)}})
    appends: list[Call] = []
    for config in (ToolsConfig(), chained):
        context = RunContext.create(root / "runs", workspace=project, config=config)
        registry = ToolRegistry(context)
        for name, hint in (("reads", True), ("writes", False)):
            definition = ToolDefinition(
                description="", input_schema={"type": "object"}, handler=noop, annotations={"read_only_hint": hint}
            )
            registry.register({name: definition})
        tools = {tool.name: tool.handler for tool in registry.materialize().definitions}
        appends += [lambda call=tools[name], context=context: call({}, context) for name in ("reads", "writes")]

    def cost(rounds: int = ROUNDS) -> tuple[float, float, float]:
        times = [[microseconds(call, 40) for call in (*appends, governed_read)] for _ in range(rounds)]
        reads, writes, chained_reads, chained_writes, read = (
            statistics.median(found) for found in zip(*times, strict=True)
        )
        return writes - reads, chained_writes - chained_reads, read

    cost(2)
    plain, chain, read = cost()
    for title, ours, theirs, goal in (
        ("a record and its event (at most), against governed read_file", 2 * plain, read, 1 / 3),
        ("an append to a chained log, against one to a plain log", chain, plain, 2.0),
    ):
        ratio = ours / theirs
        verdict = "met" if ratio <= goal else "MISSED"
        print(f"{title:<58} {ours:>9.1f} {theirs:>9.1f} {ratio:>6.2f}  {goal:5.2f}  {verdict}", flush=True)


def compare_large_file(project: Path, read: Governed) -> None:
    """The first line of 8 GiB, all but 1 MiB of them a hole, against that of 4 KiB."""
    with (project / "d" / "large").open("wb") as file:
        file.write(TEXT.encode() * 256)
        file.truncate(8 << 30)

    def first_line(path: str) -> Any:
        return read({"path": path, "limit": 1}).data["content"]

    assert first_line("d/large") == first_line("d/f") == TEXT.split("\n")[0] + "\n"
    compare("first line of 8 GiB, against that of 4 KiB", lambda: first_line("d/large"), lambda: first_line("d/f"), 1.5)
    before = memory("VmRSS")
    measure("extra memory of that", peak(lambda: first_line("d/large")) - before, 1)


def compare_ripgrep(project: Path, grep: Governed, glob: Governed) -> None:
    """Search in 20,000 files, 236 MB, against ripgrep."""
    tree = project / "large"
    make_tree(tree, 20_000, 11_800)
    for title, pattern in (("literal", LITERAL), ("regex", REGEX)):
        args = {"path": "large", "pattern": pattern}
        assert grep(args).data["count"] == ripgrep(tree, "-n", pattern)
        compare(
            f"grep_files in 20,000 files, {title}, against rg -n",
            lambda args=args: grep(args),
            lambda pattern=pattern: ripgrep(tree, "-n", pattern),
            0.9,
            calls=1,
            rounds=SLOW_ROUNDS,
        )
    args = {"path": "large", "pattern": "*.rs"}
    assert glob(args).data["total"] == ripgrep(tree, "--files", "-g", "*.rs")
    compare(
        "glob_files *.rs in 20,000 files, against rg --files -g",
        lambda: glob(args),
        lambda: ripgrep(tree, "--files", "-g", "*.rs"),
        1.0,
        calls=1,
        rounds=SLOW_ROUNDS,
    )


def large(root: Path) -> None:
    """Search in 200,000 files against search in 20,000 like them, a file."""
    project = root / "project"
    for name, files in (("some", 20_000), ("many", 200_000)):
        make_tree(project / name, files, 2_000)
    with RunContext.create(root / "runs", workspace=project) as context:
        handlers: dict[str | None, Callable[..., Any]] = {
            tool.name: tool.handler for tool in kgent_tools.build_toolsets(context)
        }

        def grep(path: str) -> Any:
            return handlers["grep_files"]({"path": path, "pattern": LITERAL}, context).data["count"]

        assert (grep("some"), grep("many")) == (40, 400)
        print(f"{'of 200,000 files, against 20,000':<58} {'µs / 10':>9} {'µs':>9} {'ratio':>6}   goal")  # noqa: RUF001
        compare("grep_files, a file", lambda: grep("many"), lambda: grep("some"), 1.2, 1, 7, scale=10)
        measure("peak memory of the whole process", peak(lambda: grep("many")), 100)


with tempfile.TemporaryDirectory() as folder:
    (large if sys.argv[1:] == ["large"] else main)(Path(folder))
