"""Another process that exchanges names at any time gains nothing: case C05 and rule 1 of the threat model.

While the calls of `d/f` run, another process exchanges the folder `d` with something else that is called `d/f` too, but
must not be read or written: a link to outside, a link to a denied folder, a link to `.git`, a folder in place of a file.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Box, Swapper, in_child, memory_kib, snapshot

from kgent_tools import PermissionRule, ToolResult

EXPECTED = {"outside_sandbox", "denied", "not_found", "io", "stale", "read_only", "sandbox_unavailable"}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    runtime = [PermissionRule("*", "private/**", "deny")]
    with Box(tmp_path, runtime=runtime) as made:
        made.put("d/f", "IN")
        made.put("private/f", "DENIED")
        made.put(".git/f", "GIT")
        (made.outside / "f").write_text("OUT", encoding="utf-8")
        yield made


def attack(box: Box, link: str, reads: int, writes: int, allowed: set[str]) -> Counter[str]:
    """Reads, searches and writes `d/f` while `d` and a link to `link` change places; counts what the calls answered."""
    (box.ws / "l").symlink_to(link)
    guarded = [box.outside, box.ws / "private", box.ws / ".git"]
    before = [snapshot(folder) for folder in guarded]
    read, write, grep = (box.tools[name].handler for name in ("read_file", "write_file", "grep_files"))
    seen: Counter[str] = Counter()
    open_files = len(os.listdir("/proc/self/fd"))

    def note(result: ToolResult, good: set[str]) -> None:
        if result.error is not None:
            assert result.error.code in EXPECTED, result
            seen[result.error.code] += 1
            return
        data = result.data
        assert data is not None
        content = data.get("content", "W")
        assert content in good, content
        assert all(match["text"] in good for match in data.get("matches", []))
        seen["ok"] += 1

    good = {"IN", "W"} | allowed
    with Swapper(box.ws / "d", box.ws / "l"):
        for n in range(max(reads, writes)):
            if n < reads:
                note(read({"path": "d/f"}, box.context), good)
            if n < writes:
                note(write({"path": "d/f", "content": "W"}, box.context), good)
            if n % 50 == 0:
                note(grep({"path": "d/f", "pattern": "."}, box.context), good)
                note(grep({"pattern": "[A-Z]", "path": "d"}, box.context), good)
                note(grep({"pattern": "OUT|GIT|DENIED"}, box.context), good - {"IN"})
    assert [snapshot(folder) for folder in guarded] == before, "something that must not be written was"
    assert len(os.listdir("/proc/self/fd")) <= open_files, "descriptors leak"
    assert seen["ok"] > 0
    leftover = [p for p in (*box.ws.rglob("*"), *box.outside.rglob("*")) if p.name.startswith(".kgent-")]
    assert leftover == []
    return seen


LINKS = ["../outside", "private", ".git"]


@pytest.mark.parametrize("link", LINKS)
def test_c05_link_swapped_between_check_and_use(box: Box, link: str) -> None:
    seen = attack(box, link, reads=700, writes=250, allowed={"GIT"} if link == ".git" else set())
    assert len(seen) > 1, f"the race was never on: {seen}"


@pytest.mark.slow
@pytest.mark.timeout(170)
@pytest.mark.parametrize(("link", "reads", "writes"), [(LINKS[0], 20_000, 2_000), (LINKS[1], 5_000, 500)])
def test_c05_twenty_thousand_times(box: Box, link: str, reads: int, writes: int) -> None:
    seen = attack(box, link, reads=reads, writes=writes, allowed=set())
    assert sum(seen.values()) >= reads + writes
    assert len(seen) > 1, f"the race was never on: {seen}"
    assert len(box.records) == sum(seen.values())


def test_c05_absolute_link(box: Box) -> None:
    attack(box, str(box.outside), reads=300, writes=100, allowed=set())


def test_a_file_exchanged_with_a_link_to_outside(box: Box) -> None:
    """The last component changes, not a folder above it."""
    box.put("f", "IN")
    (box.ws / "fl").symlink_to("../outside/f")
    before = snapshot(box.outside)
    read, write = box.tools["read_file"].handler, box.tools["write_file"].handler
    seen: Counter[str | None] = Counter()
    with Swapper(box.ws / "f", box.ws / "fl"):
        for n in range(500):
            result = read({"path": "f"}, box.context)
            seen[result.error and result.error.code] += 1
            assert result.data is None or result.data["content"] in ("IN", "W")
            if n % 4 == 0:
                result = write({"path": "f", "content": "W"}, box.context)
                assert result.error is None or result.error.code in EXPECTED
    assert snapshot(box.outside) == before
    assert seen[None] > 0


def test_a_file_exchanged_with_a_pipe(box: Box) -> None:
    """No call hangs where the name is a pipe at the wrong moment."""
    box.put("f", "IN")
    os.mkfifo(box.ws / "pipe")
    with Swapper(box.ws / "f", box.ws / "pipe"):
        for _ in range(500):
            result = box.tools["read_file"].handler({"path": "f"}, box.context)
            assert result.error is None or result.error.code in (*EXPECTED, "not_regular_file"), result
            box.tools["grep_files"].handler({"path": "f", "pattern": "IN"}, box.context)


def test_a_walk_is_not_led_astray(box: Box) -> None:
    """Folders that are exchanged with links while a search walks through them."""
    for n in range(30):
        box.put(f"tree/d{n}/sub/f", "IN")
    (box.ws / "tree/l").symlink_to("../../outside")
    with Swapper(box.ws / "tree/d15", box.ws / "tree/l"):
        for _ in range(40):
            result = box.tools["grep_files"].handler({"pattern": "IN|OUT|SECRET"}, box.context)
            assert result.error is None, result
            assert result.data is not None
            assert {match["text"] for match in result.data["matches"]} == {"IN"}
            listed = box.tools["list_files"].handler({"path": "tree", "depth": 9}, box.context)
            assert listed.data is not None, listed
            assert not any("secret" in entry["path"] for entry in listed.data["entries"])


def count_up(box: Box, times: int) -> None:
    """Adds one to the number in a file, so often."""
    for _ in range(times):
        while True:
            seen = box.tools["read_file"].handler({"path": "n"}, box.context).data
            assert seen is not None
            args = {"path": "n", "content": str(int(seen["content"]) + 1), "expected_hash": seen["hash"]}
            result = box.tools["write_file"].handler(args, box.context)
            if result.ok:
                break
            assert result.error is not None
            assert result.error.code == "stale", result


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_no_update_is_lost(box: Box) -> None:
    """Threads and processes that write one file with `expected_hash`."""
    box.put("n", "0")
    times = 40
    threads = [threading.Thread(target=count_up, args=(box, times)) for _ in range(2)]
    children = [threading.Thread(target=in_child, args=(lambda: count_up(box, times),)) for _ in range(2)]
    for one in (*threads, *children):
        one.start()
    for one in (*threads, *children):
        one.join()
    assert (box.ws / "n").read_text(encoding="utf-8") == str(4 * times)


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(box: Box) -> None:
    old, new = "o" * 3_000_000, "n" * 3_000_001
    for n in range(12):
        path = box.put("k", old)
        pid = os.fork()
        if pid == 0:
            box.tools["write_file"].handler({"path": "k", "content": new}, box.context)
            os._exit(0)
        time.sleep(0.001 * n)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert path.read_text(encoding="utf-8") in (old, new)
    box.new()
    assert box.read("d/f") == "IN"


def test_memory_does_not_grow_with_calls(box: Box) -> None:
    read = box.tools["read_file"].handler
    for _ in range(300):
        read({"path": "d/f"}, box.context)
    before = memory_kib("VmRSS")
    for _ in range(3000):
        read({"path": "d/f"}, box.context)
    assert memory_kib("VmRSS") - before < 4096
