# pyright: basic, reportMissingImports=false
# The packages of others are in build/peers alone.
"""The file tools of others, and ours, on the same files in one run: `make bench-peers`.

Prints a Markdown table: medians of the rounds' means, each round one of every tool set in turn. Every tool is called as an
agent calls it, through its toolset where it has one, without a model. Then the race: another process exchanges a
folder with a link to outside while `d/f` is read and written.
"""

import asyncio
import inspect
import logging
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tree import LITERAL, make_tree

REGEX = "fn_[0-9][0-9][0-9][0-9]_beta"  # for basic and extended regular expressions the same
TEXT = "".join(f"{n:04} the quick brown fox jumps over the lazy dog\n" for n in range(100))[:4095] + "\n"
ROUNDS, CALLS = 7, 60
RACE_S = 4.0
SLOW_S = 3.0

Call = Callable[..., Any]


@dataclass
class Peer:
    """A set of tools: those that it has, each as a function of what it is to be called with."""

    name: str
    read: Call
    write: Call
    edit: Call
    entries: Call
    grep: Call | None = None
    regex: bool = True
    times: dict[str, list[float]] = field(default_factory=dict)
    # What it edits: one word for the other, there and back.
    file: str = ""
    words: list[str] = field(default_factory=lambda: ["slow_", "quick"])


def our_tools(root: Path, runs: Path) -> Iterator[Peer]:
    """Called directly, and as Pydantic AI calls them."""
    from pydantic_ai import RunContext as AgentContext
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.usage import RunUsage

    from kgent_tools import RunContext, TextContent, build_toolsets
    from kgent_tools.pydantic_adapter import KgentToolset

    context = RunContext.create(runs, workspace=root)
    tools = build_toolsets(context)
    handlers = {tool.name: tool.handler for tool in tools}

    def call(name: str, **args: Any) -> str:
        result = handlers[name](args, context)
        if not result.ok:
            raise RuntimeError(result.summary)
        return "".join(part.text for part in result.content if isinstance(part, TextContent))

    toolset = KgentToolset(tools, context)
    ctx: Any = AgentContext(deps=None, model=TestModel(), usage=RunUsage())
    offered = loop.run_until_complete(toolset.get_tools(ctx))

    async def acall(name: str, **args: Any) -> str:
        return str((await toolset.call_tool(name, args, ctx, offered[name])).return_value)

    for title, made in (("kgent_tools", call), ("kgent_tools, in Pydantic AI", acall)):
        yield Peer(
            title,
            read=lambda path, do=made: do("read_file", path=path),
            write=lambda path, text, do=made: do("write_file", path=path, content=text),
            edit=lambda path, old, new, do=made: do("edit_file", path=path, edits=[{"old_text": old, "new_text": new}]),
            entries=lambda path, do=made: do("list_files", path=path),
            grep=lambda pattern, do=made: do("grep_files", path="tree", pattern=pattern),
        )


def harness(root: Path, runs: Path) -> Iterator[Peer]:
    """Its toolset on a local workspace, with ripgrep and without, and on ours."""
    from pydantic_ai.workspaces import LocalWorkspaceBackend, Workspace
    from pydantic_ai_harness.filesystem import FileSystem

    from kgent_tools import RunContext
    from kgent_tools.pydantic_adapter import KgentWorkspace

    on_ours = KgentWorkspace(RunContext.create(runs, workspace=root))
    for title, backend in (
        ("harness FileSystem", LocalWorkspaceBackend(root, env={"PATH": WITH_RG})),
        ("harness FileSystem, no rg", LocalWorkspaceBackend(root, env={"PATH": WITHOUT_RG})),
        ("harness FileSystem on `KgentWorkspace`", on_ours),
    ):
        tools: Any = FileSystem().get_toolset()
        at: Any = {"workspace": Workspace(backend)}
        search = tools.grep if backend is not on_ours else tools.search_files
        yield Peer(
            title,
            read=lambda path, tools=tools, at=at: tools.read_file(path, **at),
            write=lambda path, text, tools=tools, at=at: tools.write_file(path, text, **at),
            edit=lambda path, old, new, tools=tools, at=at: tools.edit_file(path, old, new, **at),
            entries=lambda path, tools=tools, at=at: tools.list_directory(path, **at),
            grep=lambda pattern, search=search, at=at: search(pattern, path="tree", **at),
        )


def backend(root: Path, _: Path) -> Iterator[Peer]:
    """Its console tools on a local workspace."""
    from pydantic_ai import RunContext as AgentContext
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.usage import RunUsage
    from pydantic_ai.workspaces import LocalWorkspaceBackend, Workspace
    from pydantic_ai_backends.toolsets.console import create_console_toolset

    toolset: Any = create_console_toolset()
    ctx: Any = AgentContext(
        deps=None, model=TestModel(), usage=RunUsage(), workspace=Workspace(LocalWorkspaceBackend(root))
    )
    offered = loop.run_until_complete(toolset.get_tools(ctx))

    async def call(name: str, **args: Any) -> Any:
        return await toolset.call_tool(name, args, ctx, offered[name])

    yield Peer(
        "pydantic-ai-backend console",
        read=lambda path: call("read_file", path=path),
        write=lambda path, text: call("write_file", path=path, content=text),
        edit=lambda path, old, new: call("edit_file", path=path, old_string=old, new_string=new),
        entries=lambda path: call("ls", path=path),
        grep=lambda pattern: call("grep", pattern=pattern, path="tree", output_mode="content"),
    )


def filesystem_sandbox(root: Path, _: Path) -> Iterator[Peer]:
    """It has no search."""
    from pydantic_ai_filesystem_sandbox import FileSystemToolset

    tools: Any = FileSystemToolset.create_default(root)
    yield Peer(
        "pydantic-ai-filesystem-sandbox",
        read=lambda path: tools.read(f"/{path}").content,
        write=lambda path, text: tools.write(f"/{path}", text),
        edit=lambda path, old, new: tools.edit(f"/{path}", old, new),
        entries=lambda path: tools.list_files(f"/{path}"),
    )


def deepagents(root: Path, _: Path) -> Iterator[Peer]:
    """Its grep knows no regular expressions."""
    from deepagents.backends.filesystem import FilesystemBackend

    tools: Any = FilesystemBackend(root_dir=root, virtual_mode=True)

    def checked(result: Any) -> Any:
        if getattr(result, "error", None):
            raise RuntimeError(result.error)
        return result

    yield Peer(
        "deepagents FilesystemBackend",
        read=lambda path: checked(tools.read(f"/{path}")),
        write=lambda path, text: (root / path).unlink(missing_ok=True) or checked(tools.write(f"/{path}", text)),
        edit=lambda path, old, new: checked(tools.edit(f"/{path}", old, new)),
        entries=lambda path: checked(tools.ls(f"/{path}")),
        grep=lambda pattern: checked(tools.grep(pattern, "/tree")),
        regex=False,
    )


def agno(root: Path, _: Path) -> Iterator[Peer]:
    """Its search gives the first hit in a file, without regular expressions."""
    from agno.tools.workspace import Workspace

    tools: Any = Workspace(root=root, allowed=["read", "write", "edit", "list", "search"])

    def checked(result: str) -> str:
        if result.startswith("Error"):
            raise RuntimeError(result)
        return result

    yield Peer(
        "agno Workspace",
        read=lambda path: checked(tools.read_file(path)),
        write=lambda path, text: checked(tools.write_file(path, text)),
        edit=lambda path, old, new: checked(tools.edit_file(path, old, new)),
        entries=lambda path: checked(tools.list_files(path)),
        grep=lambda pattern: checked(tools.search_content(pattern, "tree", 1000)),
        regex=False,
    )


loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
# Whose PATH has ripgrep is said for each; deepagents looks in this process's own.
WITHOUT_RG = os.pathsep.join(
    folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "rg").exists()
)
WITH_RG = sysconfig.get_path("scripts") + os.pathsep + WITHOUT_RG
os.environ["PATH"] = WITH_RG


def run(call: Callable[[], Any]) -> Any:
    """What a call gives, awaited where it must be."""

    async def awaited() -> Any:
        outcome = call()
        return await outcome if inspect.isawaitable(outcome) else outcome

    return loop.run_until_complete(awaited())


def seconds(call: Callable[[], Any], calls: int) -> float:
    """The mean time of a call, out of `calls` in a row."""

    async def awaited() -> None:
        for _ in range(calls):
            await call()

    is_async = inspect.isawaitable(first := call())
    if isinstance(first, Awaitable):
        loop.run_until_complete(first)
    start = time.perf_counter()
    if is_async:
        loop.run_until_complete(awaited())
    else:
        for _ in range(calls):
            call()
    return (time.perf_counter() - start) / calls


def measure(peers: list[Peer], root: Path) -> None:
    """Fills in `times`: seconds of a call, by what it does."""

    def edit(peer: Peer) -> Any:
        peer.words.reverse()
        return peer.edit(peer.file, *(f"0007 the {word}" for word in peer.words))

    for number, peer in enumerate(peers):
        peer.file = f"d/edited{number}"
        (root / peer.file).write_text(TEXT, encoding="utf-8")
    for peer in peers:
        assert "quick brown" in str(run(lambda peer=peer: peer.read("d/f"))), peer.name
    small: list[tuple[str, int, Callable[[Peer], Callable[[], Any]]]] = [
        ("read", CALLS, lambda peer: lambda: peer.read("d/f")),
        ("write", CALLS, lambda peer: lambda: peer.write("d/written", TEXT)),
        ("edit", CALLS, lambda peer: lambda: edit(peer)),
        ("list", 3, lambda peer: lambda: peer.entries("many")),
    ]
    for _ in range(ROUNDS):
        for peer in peers:
            for what, calls, job in small:
                peer.times.setdefault(what, []).append(seconds(job(peer), calls))
    for what, pattern in (("literal", LITERAL), ("regex", REGEX)):
        for peer in peers:
            grep, start = peer.grep, time.perf_counter()
            if grep is None or (what == "regex" and not peer.regex):
                continue
            outcome = run(lambda grep=grep, pattern=pattern: grep(pattern))
            first = time.perf_counter() - start
            assert (LITERAL if what == "literal" else "_beta") in str(outcome), (peer.name, outcome)
            again = (
                []
                if first > SLOW_S
                else [seconds(lambda grep=grep, pattern=pattern: grep(pattern), 1) for _ in range(3)]
            )
            peer.times[what] = again or [first]


EXCHANGE = """
import ctypes, os, sys
libc, parent = ctypes.CDLL(None), os.getppid()
a, b = (os.fsencode(name) for name in sys.argv[1:])
while os.getppid() == parent:
    for _ in range(200):
        libc.renameat2(-100, a, -100, b, 2)
"""


@contextmanager
def exchanging(one: Path, other: Path) -> Generator[None]:
    """Another process exchanges two names for as long as the block runs."""
    with subprocess.Popen([sys.executable, "-c", EXCHANGE, str(one), str(other)]) as process:
        try:
            yield
        finally:
            process.kill()


def race(tools: Callable[[Path, Path], Iterator[Peer]], index: int) -> str:
    """How many reads of `d/f` gave what lies outside, and whether a write came to lie there."""
    with tempfile.TemporaryDirectory() as folder:
        root, outside = Path(folder, "ws"), Path(folder, "outside")
        for where, text in ((root / "d", "IN"), (outside, "OUTSIDE")):
            where.mkdir(parents=True)
            (where / "f").write_text(text, encoding="utf-8")
        (root / "l").symlink_to(outside)
        peer = list(tools(root, Path(folder, "runs")))[index]
        reads, leaked, number = 0, 0, 0

        async def attempt(call: Callable[[], Any]) -> Any:
            try:
                outcome = call()
                return await outcome if inspect.isawaitable(outcome) else outcome
            except Exception:
                return None  # refused, or lost its way: that is its right

        async def work() -> None:
            nonlocal reads, leaked, number
            end = time.monotonic() + RACE_S
            while time.monotonic() < end:
                text = str(await attempt(lambda: peer.read("d/f")))
                reads += "IN" in text or "OUTSIDE" in text
                leaked += "OUTSIDE" in text
                if (number := number + 1) % 10 == 0:
                    await attempt(lambda: peer.write(f"d/new{number}", "W"))

        with exchanging(root / "d", root / "l"):
            loop.run_until_complete(work())
        escaped = sorted(os.listdir(outside)) != ["f"]
        share = f"{100 * leaked / max(reads, 1):.0f} %" if leaked else "0"
        return f"{share} of {reads:,} | {'yes' if escaped else 'no'}"


def main() -> None:
    """Prints the table."""
    makers = [our_tools, harness, backend, filesystem_sandbox, deepagents, agno]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "ws")
        for name in ("d", "many"):
            (root / name).mkdir(parents=True)
        (root / "d" / "f").write_text(TEXT, encoding="utf-8")
        for number in range(1000):
            (root / "many" / f"file-{number:04}.txt").write_text("x", encoding="utf-8")
        make_tree(root / "tree", 20_000, 11_800)
        sets = [(maker, list(maker(root, Path(folder, f"runs-{maker.__name__}")))) for maker in makers]
        peers = [peer for _, some in sets for peer in some]
        measure(peers, root)
        titles = ["read 4 KiB", "write 4 KiB", "edit 4 KiB", "list 1,000", "grep literal", "grep regex"]
        print("|  | " + " | ".join([*titles, "leaked reads", "escaped write"]) + " |")
        print("|---" * (len(titles) + 3) + "|")
        for maker, some in sets:
            for index, peer in enumerate(some):
                cells = [
                    shown(peer.times.get(what), what) for what in ("read", "write", "edit", "list", "literal", "regex")
                ]
                print(f"| {peer.name} | {' | '.join(cells)} | {race(maker, index)} |", flush=True)
    packages = ["pydantic-ai-slim", "pydantic-ai-harness", "pydantic-ai-backend", "pydantic-ai-filesystem-sandbox"]
    print("\n" + ", ".join(f"{name} {version(name)}" for name in [*packages, "deepagents", "agno"]))


def shown(times: list[float] | None, what: str) -> str:
    """Microseconds of small calls, seconds of searches."""
    if times is None:
        return "–"  # noqa: RUF001
    middle = statistics.median(times)
    return f"{middle:.2f} s" if what in ("literal", "regex") else f"{middle * 1e6:,.0f} µs"  # noqa: RUF001


warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
main()
