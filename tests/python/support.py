"""What the tests of promises share: a run beside a forbidden world, and processes that disturb it."""

import ctypes
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from kgent_tools import (
    EffectivePermissionPolicy,
    MemoryClient,
    PermissionRule,
    RunContext,
    RunError,
    SkillRegistry,
    TextContent,
    ToolDefinition,
    ToolResult,
    ToolsConfig,
    build_toolsets,
)

NOBODY = 65534
SINKS = ("logs/tools.jsonl", "events.jsonl", "logs/errors.jsonl")
# Events that a call may leave beside that of its end.
BESIDE = (
    "tool.started",
    "artifact.created",
    "permission.requested",
    "permission.granted",
    "skill.loaded",
    "memory.candidate_written",
    "memory.written",
)
STATUS_EVENT = {"completed": "tool.completed", "blocked": "tool.blocked", "cancelled": "tool.cancelled"}


# System calls by their numbers on x86-64; openat2 and later ones have the same everywhere.
SYSTEM_CALLS = {
    "openat": 257,
    "mkdirat": 258,
    "unlinkat": 263,
    "readlinkat": 267,
    "faccessat": 269,
    "renameat2": 316,
    "openat2": 437,
    "faccessat2": 439,
}


def forbid(answer: int, *calls: str) -> None:
    """Installs a seccomp filter on this process, and on all that it will start: these calls fail with that errno."""
    load, equal, ret = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    allow, fail = 0x7FFF_0000, 0x0005_0000 | answer  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
    tests = [(equal, len(calls) - at, 0, SYSTEM_CALLS[call]) for at, call in enumerate(calls)]
    steps = [(load, 0, 0, 0), *tests, (ret, 0, 0, allow), (ret, 0, 0, fail)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, *(ctypes.c_ulong(n) for n in (1, 0, 0, 0))) != 0:  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "prctl")
    if libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(program)) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "seccomp")


def refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs), f"a key is there twice: {pairs}"
    return dict(pairs)


def parse_lines(data: bytes) -> list[dict[str, Any]]:
    """The objects of whole JSON lines; anything else fails."""
    assert not data or data.endswith(b"\n"), f"the last line is cut off: {data[-80:]!r}"
    lines = data.split(b"\n")[:-1]
    objects = [json.loads(line.decode(), parse_constant=refuse_constant, object_pairs_hook=unique) for line in lines]
    for line in lines:
        assert len(line) < 64 * 1024
        assert not set(line.decode()) & {"\u2028", "\u2029", "\x85", "\r"}
    return objects


def text_of(result: ToolResult) -> str:
    """All that the model reads of a result."""
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


def snapshot(folder: Path) -> dict[str, tuple[str, str, int]]:
    """Each name below `folder` with its kind, content and mode: equal before and after where nothing was touched."""
    found: dict[str, tuple[str, str, int]] = {}
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(base, name)
            stat = path.lstat()
            if path.is_symlink():
                what = ("link", os.readlink(path))
            elif path.is_dir():
                what = ("folder", "")
            elif path.is_file():
                what = ("file", hashlib.sha256(path.read_bytes()).hexdigest())
            else:
                what = ("special", str(stat.st_rdev))
            found[str(path.relative_to(folder))] = (what[0], what[1], stat.st_mode)
    return found


class Box:
    """A run on the workspace `ws`, beside `outside` and a sibling `ws-evil`, all below one folder.

    Every call through it is held to the promise that a call leaves one record, its events and, where it failed, one
    error line.
    """

    def __init__(
        self,
        root: Path,
        config: dict[str, Any] | ToolsConfig | None = None,
        *,
        workspace: str = "ws",
        runs: str = "runs",
        mounts: Mapping[str, Path | tuple[Path, Any]] | None = None,
        runtime: Iterable[PermissionRule] = (),
        skills: Iterable[dict[str, Any]] = (),
        registry: SkillRegistry | None = None,
        memory: MemoryClient | None = None,
    ) -> None:
        self.root = root
        self.ws = root / workspace
        self.outside = root / "outside"
        self.runs = root / runs
        for folder in (self.ws, self.outside, root / "ws-evil"):
            folder.mkdir(exist_ok=True)
        for folder in (self.outside, root / "ws-evil"):
            (folder / "secret").write_text("TOPSECRET\n", encoding="utf-8")
        settings = config if isinstance(config, ToolsConfig) else ToolsConfig.from_dict(config or {})
        self.context = RunContext.create(self.runs, workspace=self.ws, mounts=dict(mounts or {}), config=settings)
        self.policy = EffectivePermissionPolicy.merge(context=self.context, runtime=list(runtime), skills=list(skills))
        self.registry, self.memory = registry, memory
        self.tools = self.bind(self.policy)
        self.log_was_harmed = False
        self.seen = {sink: 0 for sink in SINKS}
        self.new()

    def bind(self, policy: EffectivePermissionPolicy) -> dict[str, ToolDefinition]:
        return {str(tool.name): tool for tool in build_toolsets(self.context, self.registry, self.memory, policy)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.context.close()
        except RunError:
            if not self.log_was_harmed:
                raise

    @property
    def run_dir(self) -> Path:
        return self.context.run_dir

    def log(self, sink: str) -> list[dict[str, Any]]:
        return parse_lines((self.run_dir / sink).read_bytes())

    @property
    def records(self) -> list[dict[str, Any]]:
        return self.log(SINKS[0])

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.log(SINKS[1])

    @property
    def errors(self) -> list[dict[str, Any]]:
        return self.log(SINKS[2])

    def new(self) -> dict[str, list[dict[str, Any]]]:
        """What was appended to each log since the last time."""
        found: dict[str, list[dict[str, Any]]] = {}
        for sink in SINKS:
            with (self.run_dir / sink).open("rb") as file:
                file.seek(self.seen[sink])
                data = file.read()
            self.seen[sink] += len(data)
            found[sink] = parse_lines(data)
        return found

    def call(self, tool: str, args: Any = None, /, **named: Any) -> ToolResult:
        """Calls a tool and checks what the call left on record."""
        result = self.tools[tool].handler(named if args is None else args, self.context)
        self.check_record(tool, result)
        return result

    def check_record(self, tool: str, result: ToolResult) -> dict[str, Any]:
        """The one record of the call that was just made."""
        new = self.new()
        records, events, errors = (new[sink] for sink in SINKS)
        status = "completed" if result.error is None else result.error.status
        code = None if result.error is None else result.error.code
        assert [(r["tool"], r["status"], r["error"] and r["error"]["code"]) for r in records] == [(tool, status, code)]
        ended = STATUS_EVENT.get(status, "tool.failed")
        kinds = [e["type"] for e in events if e["type"] not in BESIDE]
        assert kinds == [ended]
        assert {e["id"] for e in events if e["type"] != "permission.granted"} == {records[0]["id"]}
        assert [(e["code"], e["id"]) for e in errors] == ([] if code is None else [(code, records[0]["id"])])
        return records[0]

    def ok(self, tool: str, args: Any = None, /, **named: Any) -> ToolResult:
        result = self.call(tool, args, **named)
        assert result.error is None, result
        return result

    def code(self, tool: str, args: Any = None, /, **named: Any) -> str:
        """The error code of a call that fails."""
        result = self.call(tool, args, **named)
        assert result.error is not None, f"{tool} {args or named} was let through: {result}"
        return result.error.code

    def text(self, tool: str, args: Any = None, /, **named: Any) -> str:
        return text_of(self.ok(tool, args, **named))

    def read(self, path: str) -> str:
        """A file's content, through the tool."""
        return self.ok("read_file", path=path).data["content"]  # type: ignore[index]

    def put(self, name: str, content: str | bytes = "") -> Path:
        """A file of the workspace, made by the host."""
        path = self.ws / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


def all_log_bytes(run_dir: Path) -> bytes:
    return b"".join((run_dir / sink).read_bytes() for sink in SINKS)


def exchange(a: Path, b: Path) -> None:
    """Swaps two names in one step: renameat2 with RENAME_EXCHANGE."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


class Swapper:
    """Another process that swaps two names for as long as the block runs."""

    CODE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
a, b = (os.fsencode(name) for name in sys.argv[1:])
print("ready", flush=True)
count = 0
while os.getppid() == int(os.environ["SWAPPER_PARENT"]):
    for _ in range(200):
        assert libc.renameat2(-100, a, -100, b, 2) == 0
        count += 1
"""

    def __init__(self, a: Path, b: Path) -> None:
        self.names = [str(a), str(b)]

    def __enter__(self) -> Self:
        env = {**os.environ, "SWAPPER_PARENT": str(os.getpid())}
        command = [sys.executable, "-c", self.CODE, *self.names]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        alive = self.process.poll() is None
        self.process.kill()
        self.process.communicate()
        assert alive, "the process that swaps died"


def in_child(work: Callable[[], None], *, uid: int | None = None, seconds: int = 30) -> None:
    """Runs `work` in a forked child, as another user where `uid` says so; fails if it fails or hangs."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            signal.alarm(seconds)
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            work()
            status = 0
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {status}: {said}"


def memory_kib(field: str) -> int:
    """A line of /proc/self/status in KiB: VmRSS is held now, VmHWM was held at most."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def reset_peak() -> None:
    """Lets VmHWM begin anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


class Ran:
    """What a script in a fresh interpreter did."""

    def __init__(self, code: str, *args: str, seconds: float = 30, env: Mapping[str, str] | None = None) -> None:
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            capture_output=True,
            timeout=seconds,
            check=False,
            env={**os.environ, **(env or {})},
        )
        self.status, self.out, self.err = done.returncode, done.stdout.decode(), done.stderr.decode()
        assert self.status == 0, f"status {self.status}: {self.err}"
