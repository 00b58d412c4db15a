"""Whatever happens to the disk, the limits, the logs or other writers: nothing is half done, nothing that was told is lost.

`KGENT_LONG=1` runs the long forms.
"""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import SINKS, Box, in_child, parse_lines

from kgent_tools import RunContext, ToolDefinition, ToolRegistry, ToolResult, build_toolsets, verify_run

LONG = os.environ.get("KGENT_LONG") == "1"
MAX_SECONDS = 6


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        made.put("a", "A\n")
        yield made


def attempt(box: Box, name: str, content: str = "x") -> bool:
    """Writes a file: it is there and on record, or neither, and it took no longer than it may. Whether it is."""
    start = time.monotonic()
    result = box.tools["write_file"].handler({"path": name, "content": content}, box.context.for_call(call_id=name))
    assert time.monotonic() - start < MAX_SECONDS
    there = (box.ws / name).exists()
    if result.error is None:
        assert (box.ws / name).read_text(encoding="utf-8") == content
    else:
        assert (result.error.code, result.error.details, there) == ("log_unavailable", {"done": False}, False)
    return there


def check(box: Box, written: set[str]) -> None:
    """Every log parses, and holds just what was done."""
    for sink in SINKS:
        lines = parse_lines((box.run_dir / sink).read_bytes())
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    completed = {r["call_id"] for r in box.records if r["status"] == "completed" and r["tool"] == "write_file"}
    assert completed == written
    assert verify_run(box.run_dir)["ok"]


def test_a_limit_on_file_sizes_at_every_step(box: Box) -> None:
    """RLIMIT_FSIZE, from one byte more than there is to more than is needed; signals have their default effect."""

    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        written: set[str] = set()
        refused = 0
        for step, extra in enumerate([1, 100, 300, 700, 1500, 5000, *range(20_000, 1_000_000, 60_000)]):
            size = max((box.run_dir / sink).stat().st_size for sink in SINKS)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + extra, resource.RLIM_INFINITY))
            for n in range(3):
                if attempt(box, f"w{step}-{n}"):
                    written.add(f"w{step}-{n}")
                else:
                    refused += 1
                read = box.tools["read_file"].handler({"path": "a"}, box.context)
                assert read.error is None or read.error.code == "log_unavailable"
                assert read.error is None or not read.data
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert refused > 10
        assert len(written) > 10
        assert attempt(box, "after")
        check(box, written | {"after"})

    in_child(child)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts file systems; only root may."""
    points: list[Path] = []

    def mount(kind: str, *options: str) -> Path:
        point = tmp_path / f"mount{len(points)}"
        point.mkdir()
        done = subprocess.run(["mount", "-t", kind, *options, str(point)], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no {kind} can be mounted here: {done.stderr.decode().strip()}")
        points.append(point)
        return point

    yield mount
    for point in points:
        subprocess.run(["umount", "-l", str(point)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Takes what is free, but for so many bytes."""
    filler = folder / "filler"
    with filler.open("wb") as file:
        space = os.statvfs(folder)
        size = space.f_bavail * space.f_frsize - leave
        if size > 0:
            os.posix_fallocate(file.fileno(), 0, size)
    return filler


@pytest.mark.parametrize("chained", [False, True])
def test_a_full_disk_at_every_step(tmp_path: Path, mounted: Callable[..., Path], chained: bool) -> None:
    place = mounted("tmpfs", "-o", "size=6m", "none")
    config = {"records": {"audit": "chained" if chained else "plain"}}
    for leave in (0, 4096, 8192, 100_000, 300_000, 600_000, 900_000, 1_200_000, 2_000_000, 3_000_000):
        root = tmp_path / str(leave)
        root.mkdir()
        with Box(root, config, runs=str(place / "runs")) as box:
            box.put("a", "A\n")
            filler = fill(place, leave)
            written = {name for n in range(60) if attempt(box, name := f"w{n}", "x" * 300)}
            for _ in range(3):
                read = box.tools["read_file"].handler({"path": "a"}, box.context)
                assert read.error is None or (read.error.code, read.data) == ("log_unavailable", None)
            if leave < 100_000:
                assert written == set()
            if leave >= 3_000_000:
                assert len(written) == 60
            filler.unlink()
            assert attempt(box, "after")
            check(box, written | {"after"})
        shutil.rmtree(place / "runs")


def test_a_disk_that_fills_up_during_a_call(tmp_path: Path, mounted: Callable[..., Path]) -> None:
    """The end of a call that was let begin finds the room that was kept for it, also where the call fails."""
    place = mounted("tmpfs", "-o", "size=6m", "none")
    with Box(tmp_path, runs=str(place / "runs")) as box:

        def filling(args: Any, context: Any) -> ToolResult:
            filler = fill(place, 0)
            context.sandbox.write_bytes("done", b"x")
            if args:
                raise ValueError("\x01" * 100_000)
            return ToolResult(ok=True, summary="\x01" * 1000 + str(filler.stat().st_size))

        registry = ToolRegistry(box.context)
        definition = ToolDefinition(description="d", input_schema={"type": "object"}, handler=filling)
        registry.register({"filling": definition})
        snapshot = registry.materialize(box.policy)
        assert snapshot.call("filling", {}).ok
        (place / "filler").unlink()
        failed = snapshot.call("filling", {"x": "\x01" * 10_000})
        assert failed.error is not None
        assert failed.error.code == "internal"
        (place / "filler").unlink()
        assert [record["status"] for record in box.records] == ["completed", "failed"]
        assert [len(parse_lines((box.run_dir / sink).read_bytes())) for sink in SINKS] == [2, 5, 1]


def test_calls_of_many_threads_find_their_room(tmp_path: Path, mounted: Callable[..., Path]) -> None:
    """All begin, then the disk fills up, then all end."""
    place = mounted("tmpfs", "-o", "size=16m", "none")
    count = 32
    with Box(tmp_path, runs=str(place / "runs")) as box:

        def fill_up() -> None:
            fill(place, 0)

        barrier = threading.Barrier(count, action=fill_up)

        def waiting(args: Any, context: Any) -> ToolResult:
            barrier.wait(20)
            raise ValueError("\x01" * 100_000)

        registry = ToolRegistry(box.context)
        definition = ToolDefinition(description="d", input_schema={"type": "object"}, handler=waiting)
        registry.register({"waiting": definition})
        snapshot = registry.materialize(box.policy)
        codes: list[str | None] = []

        def call() -> None:
            result = snapshot.call("waiting", {"x": ["\x01" * 500] * 20})
            codes.append(result.error and result.error.code)

        threads = [threading.Thread(target=call) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes == ["internal"] * count
        assert len(box.records) == count
        (place / "filler").unlink()


def test_a_file_system_that_turns_read_only_during_a_run(tmp_path: Path, mounted: Callable[..., Path]) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4 here")
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    place = mounted("ext4", "-o", "loop,errors=remount-ro", str(image))
    with Box(tmp_path, runs=str(place / "runs")) as box:
        box.put("a", "A\n")
        assert attempt(box, "before")
        device = Path(
            os.path.realpath(f"/sys/dev/block/{os.major(place.stat().st_dev)}:{os.minor(place.stat().st_dev)}")
        )
        trigger = Path("/sys/fs/ext4") / device.name / "trigger_fs_error"
        if not trigger.exists():
            pytest.skip("this kernel turns no file system read-only on demand")
        trigger.write_text("a test", encoding="utf-8")
        box.log_was_harmed = True
        with pytest.raises(OSError, match="Read-only") as refused:
            (place / "x").write_text("x", encoding="utf-8")
        assert refused.value.errno == errno.EROFS
        assert not attempt(box, "after")
        read = box.tools["read_file"].handler({"path": "a"}, box.context)
        assert read.error is not None
        assert (read.error.code, read.data) == ("log_unavailable", None)
        check(box, {"before"})
        assert [record["call_id"] for record in box.context.records()] == ["before"]


def test_a_run_on_a_read_only_file_system_is_read_and_not_opened(tmp_path: Path, mounted: Callable[..., Path]) -> None:
    place = mounted("tmpfs", "none")
    with Box(tmp_path, runs=str(place / "runs")) as box:
        assert attempt(box, "before")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    assert verify_run(box.run_dir)["ok"]
    with pytest.raises(Exception, match="log files cannot be opened"):
        RunContext.open(box.runs, box.context.run_id, workspace=box.ws)
    subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
    with RunContext.open(box.runs, box.context.run_id, workspace=box.ws) as again:
        assert len(list(again.records())) == 1


def test_room_is_given_back_when_the_run_is_closed(tmp_path: Path) -> None:
    with Box(tmp_path) as box:
        box.code("write_file", path="../x", content="x")
        assert attempt(box, "w")
        during = sum((box.run_dir / sink).stat().st_blocks for sink in SINKS) * 512
        assert box.context.guarantees()["room_for_records"] is True
    after = sum((box.run_dir / sink).stat().st_blocks for sink in SINKS) * 512
    assert after < 64 * 1024 < during


def test_logs_are_capped(box: Box) -> None:
    """1 GiB together; the ends of calls that began still fit."""
    assert attempt(box, "w")
    with (box.run_dir / SINKS[1]).open("ab") as file:
        file.truncate((1 << 30) - 100)
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"v":1,"seq":99}\n')
    other = RunContext.open(box.runs, box.context.run_id, workspace=box.ws)
    (write,) = (tool for tool in build_toolsets(other) if tool.name == "write_file")
    result = write.handler({"path": "w2", "content": "x"}, other)
    assert result.error is not None
    assert (result.error.code, "1 GiB" in result.error.message) == ("log_unavailable", True)
    assert not (box.ws / "w2").exists()
    box.log_was_harmed = True


def writer(box: Box, who: str, pipe: int) -> None:
    """Calls for ever, and says of each call that it returned."""
    n = 0
    while True:
        name = f"{who}.{n}"
        call = box.context.for_call(call_id=name)
        args = {"path": f"w/{who[:1]}", "content": "x" * (10, 500, 30_000)[n % 3]}
        if n % 4 == 3:
            result = box.tools["read_file"].handler({"path": "nope", "x": ["y" * 500] * 30}, call)
        else:
            result = box.tools["write_file"].handler(args, call)
        assert result.error is None or result.error.code != "log_unavailable"
        os.write(pipe, f"{name}\n".encode())
        n += 1


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


@pytest.mark.slow
@pytest.mark.timeout(900 if LONG else 60)
@pytest.mark.parametrize("audit", ["plain", "chained"])
def test_writers_that_are_killed_lose_nothing_that_was_told(tmp_path: Path, audit: str) -> None:
    """kill -9 at random beside a writer that lives on: every call that returned is on record, and everything parses."""
    kills = 1000 if LONG else 25
    chance = random.Random(8)
    with Box(tmp_path, {"records": {"audit": audit}}) as box:
        reader, pipe = os.pipe()
        os.set_blocking(reader, False)
        said = b""

        def listen() -> None:
            nonlocal said
            try:
                while data := os.read(reader, 1 << 16):
                    said += data
            except BlockingIOError:
                pass

        living = forked(lambda: writer(box, "L", pipe))
        for n in range(kills):
            victims = [forked(lambda n=n, v=v: writer(box, f"V{n}-{v}", pipe)) for v in range(2)]  # type: ignore[misc]
            until = time.monotonic() + chance.uniform(0.001, 0.03)
            while time.monotonic() < until:
                listen()
                time.sleep(0.0005)
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)
            listen()
        assert os.waitpid(living, os.WNOHANG) == (0, 0), "the writer that was to live on has died"
        os.kill(living, signal.SIGKILL)
        os.waitpid(living, 0)
        listen()
        box.context.close()
        run_id = box.context.run_id
        config = {"records": {"audit": audit}}
        told = set(said.decode().split())
        assert len(told) > kills
        with RunContext.open(box.runs, run_id, workspace=box.ws, config=config) as again:
            interrupted = check_after_kills(again, told)
        verified = verify_run(box.run_dir)
        assert verified["ok"], verified
        print(f"{2 * kills} kills, {len(told)} calls told, {interrupted} interrupted, {verified}")


def check_after_kills(context: RunContext, told: set[str]) -> int:
    """Each call that returned has one record, each that began an end. How many were interrupted."""
    records = context.records()
    found = list(records)
    assert records.faults == []
    call_ids = [record["call_id"] for record in found]
    assert told <= set(call_ids), sorted(told - set(call_ids))[:10]
    assert len(call_ids) == len(set(call_ids)) == len({record["id"] for record in found})
    begun: set[str] = set()
    for event in context.events():
        if event["type"] == "tool.started":
            begun.add(event["id"])
        elif event["type"].startswith("tool."):
            begun.discard(event["id"])
    assert begun == set()
    return sum(record["status"] == "interrupted" for record in found)
