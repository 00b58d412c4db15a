"""What a write keeps of the file that it replaces, and what it never touches."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Box

from kgent_tools import ToolsConfig

ACCESS_LIST = "system.posix_acl_access"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        yield made


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """An access list as the kernel stores it: (tag, permissions, id) each."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_mode_owner_attributes_and_access_list_are_kept(box: Box) -> None:
    target = box.ws / "f"
    target.write_text("old", encoding="utf-8")
    os.chown(target, 12345, 54321)
    os.setxattr(target, "user.note", b"kept")
    whole = 0xFFFFFFFF
    acl = access_list((1, 6, whole), (2, 4, 1000), (4, 0, whole), (16, 4, whole), (32, 0, whole))
    os.setxattr(target, ACCESS_LIST, acl)
    before = target.stat()
    box.ok("write_file", path="f", content="new")
    after = target.stat()
    assert target.read_text(encoding="utf-8") == "new"
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, 12345, 54321)
    assert os.getxattr(target, "user.note") == b"kept"
    assert os.getxattr(target, ACCESS_LIST) == acl


def test_a_default_list_of_the_folder_does_not_widen_a_file_without_one(box: Box) -> None:
    target = box.ws / "f"
    target.write_text("old", encoding="utf-8")
    target.chmod(0o600)
    whole = 0xFFFFFFFF
    widening = access_list((1, 7, whole), (2, 7, 1000), (4, 7, whole), (16, 7, whole), (32, 7, whole))
    os.setxattr(box.ws, "system.posix_acl_default", widening)
    box.ok("write_file", path="f", content="new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(OSError, match="No data"):
        os.getxattr(target, ACCESS_LIST)


def test_setuid_does_not_pass_to_new_content(box: Box) -> None:
    target = box.ws / "f"
    target.write_text("old", encoding="utf-8")
    target.chmod(0o6755)
    box.ok("write_file", path="f", content="new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


def test_a_bare_repository_is_not_written(box: Box) -> None:
    for repository in (box.ws / "r.git", box.ws / "deep/er/x"):
        (repository / "objects").mkdir(parents=True)
        (repository / "hooks").mkdir()
        for name in ("HEAD", "config"):
            (repository / name).write_text("", encoding="utf-8")
        shown = repository.relative_to(box.ws)
        for name in ("config", "hooks/post-receive", "new/deep", "HEAD"):
            assert box.code("write_file", path=f"{shown}/{name}", content="x") == "read_only"
        assert (repository / "config").read_text(encoding="utf-8") == ""
        assert not (repository / "new").exists()


def test_a_write_does_not_make_a_folder_a_bare_repository(box: Box) -> None:
    (box.ws / "r/objects").mkdir(parents=True)
    box.ok("write_file", path="r/HEAD", content="ref: refs/heads/main\n")
    assert box.code("write_file", path="r/config", content="[core]\n") == "read_only"


def test_the_config_file_is_pinned(tmp_path: Path) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    config = workspace / "kgent.toml"
    config.write_text("[permissions]\nshell = false\n", encoding="utf-8")
    with Box(tmp_path, ToolsConfig.from_file(str(config)), workspace="project") as box:
        assert box.code("write_file", path="kgent.toml", content="") == "read_only"
        config.rename(workspace / "k2")
        assert box.code("write_file", path="k2", content="") == "sandbox_unavailable"
        assert box.code("read_file", path="k2") == "sandbox_unavailable"
        (workspace / "k2").rename(config)
        box.ok("read_file", path="kgent.toml")


def test_a_write_lands_or_leaves_everything_as_it_was(box: Box) -> None:
    box.put("d/f", "one")
    seen = (box.ok("read_file", path="d/f").data or {})["hash"]
    box.ok("write_file", path="d/new", content="new")
    box.ok("write_file", path="d/f", content="two", expected_hash=seen)
    assert box.code("write_file", path="d/f", content="three", expected_hash=seen) == "stale"
    assert box.code("write_file", path="d/g", content="g", expected_hash=seen) == "stale"
    box.ok("write_file", path="d/new", content="newer")
    found = {path.name: path.read_text(encoding="utf-8") for path in (box.ws / "d").iterdir()}
    assert found == {"f": "two", "new": "newer"}


STRANGER = """
import os, sys
target, rounds = sys.argv[1], int(sys.argv[2])
for number in range(rounds):
    with open(target + ".new", "w") as file:
        file.write(f"stranger {number}")
    os.rename(target + ".new", target)
"""


def test_a_writer_without_our_lock_is_not_overwritten(box: Box) -> None:
    target = box.ws / "f"
    target.write_text("start", encoding="utf-8")
    stranger = subprocess.Popen([sys.executable, "-c", STRANGER, str(target), "3000"])
    ours = stale = 0
    try:
        while stranger.poll() is None:
            seen = box.ok("read_file", path="f").data
            assert seen is not None
            content = f"ours after {seen['content']}"
            error = box.call("write_file", path="f", content=content, expected_hash=seen["hash"]).error
            code = None if error is None else error.code
            # `io`: written, but replaced by the time it was looked at again.
            assert code in (None, "stale", "io"), error
            ours += code is None
            stale += code == "stale"
    finally:
        stranger.wait()
    assert ours
    assert stale
    # No word of the stranger's was lost: the last one stands, or ours that were decided on it.
    last = target.read_text(encoding="utf-8")
    assert last.replace("ours after ", "") == "stranger 2999"
    assert sorted(p.name for p in box.ws.iterdir()) == ["f"]
