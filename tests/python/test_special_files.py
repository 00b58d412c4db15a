"""What is no plain file is never read or written, and a huge one never fills the memory: cases C19 to C23."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Box, Ran, memory_kib, reset_peak, text_of

MIB = 1024


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        made.put("near.txt", "x marks\n")
        yield made


def codes(box: Box, path: str) -> list[str]:
    return [
        box.code("read_file", path=path),
        box.code("write_file", path=path, content="x"),
        box.code("grep_files", path=path, pattern="x"),
        box.code("list_files", path=path),
    ]


def test_c19_named_pipe(box: Box) -> None:
    os.mkfifo(box.ws / "notes.md")
    start = time.monotonic()
    assert codes(box, "notes.md") == ["not_regular_file", "not_regular_file", "not_regular_file", "not_a_directory"]
    result = box.ok("grep_files", pattern="x")
    assert text_of(result).startswith("near.txt:1:x marks\n")
    assert result.data is not None
    assert result.data["skipped"] == {"special": 1}
    assert time.monotonic() - start < 2
    entries = box.ok("list_files").data
    assert entries is not None
    assert [(e["path"], e["type"]) for e in entries["entries"]] == [("near.txt", "file"), ("notes.md", "fifo")]


def test_c19_a_waiting_writer_is_left_alone(box: Box) -> None:
    """Opening and closing a pipe would end the one who waits at its other end."""
    os.mkfifo(box.ws / "pipe")
    reader = os.open(box.ws / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(box.ws / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, b"kept")
    codes(box, "pipe")
    box.ok("grep_files", pattern="kept")
    assert os.read(reader, 99) == b"kept"
    os.close(writer)
    os.close(reader)


def test_c21_socket_and_links_to_devices_and_proc(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(box.ws)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.sock")
        links = {
            "z": "/dev/zero",
            "p": "/proc/self/root/etc/hostname",
            "e": "/proc/self/environ",
            "fd": "/proc/self/fd/0",
            "cwd": "/proc/self/cwd/near.txt",
            "t": "/dev/tty",
        }
        for name, target in links.items():
            (box.ws / name).symlink_to(target)
        assert codes(box, "s.sock") == ["not_regular_file"] * 3 + ["not_a_directory"]
        for name in links:
            assert codes(box, name) == ["outside_sandbox"] * 4
        monkeypatch.setenv("CANARY_IN_ENVIRONMENT", "root")
        text = box.text("grep_files", pattern="root|CANARY|x")
        assert text.startswith("near.txt:1:x marks\n")
        assert "root" not in text
        entries = box.ok("list_files").data
        assert entries is not None
        kinds = {e["path"]: e["type"] for e in entries["entries"]}
        assert kinds == {**dict.fromkeys(links, "link"), "s.sock": "socket", "near.txt": "file"}


def test_c21_devices(box: Box) -> None:
    try:
        os.mknod(box.ws / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")
    assert codes(box, "zero") == ["not_regular_file"] * 3 + ["not_a_directory"]
    assert box.ok("grep_files", pattern="x").data["skipped"] == {"special": 1}  # type: ignore[index]


def test_c22_sparse_file(box: Box) -> None:
    big = box.put("big", "hello\n")
    os.truncate(big, 8 << 30)
    reset_peak()
    before = memory_kib("VmHWM")
    start = time.monotonic()
    first = box.ok("read_file", path="big", limit=1).data
    assert first is not None
    assert (first["content"], first["lines"], first["bytes"], first["hash"]) == ("hello\n", 1, 8 << 30, None)
    assert (first["truncated"], first["next_offset"]) == (True, 2)
    assert time.monotonic() - start < 1
    assert box.code("read_file", path="big") in ("binary", "too_large")
    assert box.code("read_file", path="big", offset=2, limit=1) in ("binary", "too_large")
    found = box.ok("grep_files", pattern="hello").data
    assert found is not None
    assert [(m["path"], m["line"], m["text"]) for m in found["matches"]] == [("big", 1, "hello")]
    assert box.code("write_file", path="big", content="bye", expected_hash="b3:" + "0" * 32) in ("too_large", "stale")
    assert big.stat().st_size == 8 << 30
    assert time.monotonic() - start < 10
    assert memory_kib("VmHWM") - before < 64 * MIB


def test_c22_reading_far_into_a_large_file(box: Box) -> None:
    """Memory follows the window asked for, not where it lies."""
    with (box.ws / "log").open("wb") as file:
        for n in range(8):
            file.write(b"".join(b"%07d\n" % (n * 131072 + k) for k in range(131072)))
    reset_peak()
    before = memory_kib("VmHWM")
    data = box.ok("read_file", path="log", offset=1_000_000, limit=2).data
    assert data is not None
    assert (data["content"], data["next_offset"]) == ("0999999\n1000000\n", 1_000_002)
    last = box.ok("read_file", path="log", offset=8 * 131072).data
    assert last is not None
    assert (last["content"], last["total_lines"], last["next_offset"]) == ("1048575\n", 8 * 131072, None)
    assert box.code("read_file", path="log", offset=8 * 131072 + 1) == "invalid_args"
    assert memory_kib("VmHWM") - before < 16 * MIB


def test_c23_one_enormous_line(box: Box) -> None:
    with (box.ws / "line").open("wb") as file:
        for _ in range(64):
            file.write(b"a" * (1 << 20))
        file.write(b"\nTAIL\n")
    reset_peak()
    before = memory_kib("VmHWM")
    first = box.ok("read_file", path="line", limit=1)
    assert first.data is not None
    assert (first.data["truncated"], first.data["next_offset"], first.data["lines"]) == (True, 2, 1)
    assert 0 < len(first.data["content"]) <= 51200
    assert set(first.data["content"]) == {"a"}
    assert "Line 1" in text_of(first)
    second = box.ok("read_file", path="line", offset=2, limit=1).data
    assert second is not None
    assert (second["content"], second["next_offset"]) == ("TAIL\n", None)
    found = box.ok("grep_files", pattern="TAIL").data
    assert found is not None
    assert [(m["line"], m["text"]) for m in found["matches"]] == [(2, "TAIL")], found["skipped"]
    assert memory_kib("VmHWM") - before < 64 * MIB


def test_c23_a_match_in_an_enormous_line_is_in_its_snippet(box: Box) -> None:
    box.put("min.js", "x" * 500_000 + "NEEDLE" + "y" * 500_000 + "\n")
    found = box.ok("grep_files", pattern="NEEDLE").data
    assert found is not None
    ((match),) = found["matches"]
    assert "NEEDLE" in match["text"]
    assert (match["line"], match["column"], match["truncated"]) == (1, 500_001, True)
    assert len(match["text"].encode()) <= 2000 + 6


def test_c23_what_is_not_searched_of_a_line_is_said(box: Box) -> None:
    box.put("min.js", "x" * 3_000_000 + "NEEDLE\nNEEDLE\n")
    result = box.ok("grep_files", pattern="NEEDLE")
    assert result.data is not None
    lines = [match["line"] for match in result.data["matches"]]
    assert lines == [1, 2] or (lines == [2] and sum(result.data["skipped"].values()) == 1)
    assert lines == [1, 2] or "not searched" in text_of(result)


def test_c45_a_search_does_not_end_at_a_nul_unsaid(box: Box) -> None:
    """The same answer by either way, and never one match without a word of the rest."""
    box.put("n", b"needle 1\n" + b"a" * 200_000 + b"\n\x00\nneedle 2\n")
    box.put("s", b"\x00needle 1\n")
    answers: list[object] = []
    for args in ({"path": "n"}, {"include": "n"}):
        result = box.ok("grep_files", pattern="needle", **args)
        assert result.data is not None
        rows = [(m["line"], m["text"]) for m in result.data["matches"]]
        assert rows == [(1, "needle 1"), (4, "needle 2")] or "binary from byte" in text_of(result)
        assert (1, "needle 1") in rows
        answers.append((rows, text_of(result)))
    assert answers[0] == answers[1]
    for args in ({"path": "s"}, {"include": "s"}):
        result = box.ok("grep_files", pattern="needle", **args)
        assert "binary" in text_of(result)


def test_memory_of_a_call_under_an_address_space_limit(tmp_path: Path) -> None:
    """The whole of C22 where the address space ends at 512 MiB."""
    code = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from support import Box
with Box(Path(sys.argv[1])) as box:
    big = box.put("big", "hello\\n")
    os.truncate(big, 8 << 30)
    assert box.ok("read_file", path="big", limit=1).data["content"] == "hello\\n"
    assert box.ok("grep_files", pattern="hello").data["count"] == 1
"""
    Ran(code, str(tmp_path), str(Path(__file__).parent))
