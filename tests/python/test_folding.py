"""On a volume that does not tell upper case from lower a deny holds in every case; on others the names are different files.

Case C16 and rule 10 of the threat model.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Box

from kgent_tools import PermissionRule

DENY = [PermissionRule("*", "private/**", "deny")]


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    target = tmp_path / "ws"
    target.mkdir()
    command = [sys.executable, str(Path(__file__).with_name("folding.py")), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        if server.stdout.readline() != "mounted\n":
            server.wait()
            pytest.skip("this process may not mount FUSE volumes")
        try:
            yield tmp_path
        finally:
            subprocess.run(["umount", "--lazy", target], check=True)
            server.terminate()


def test_a_deny_holds_in_every_case_where_the_volume_folds(volume: Path) -> None:
    with Box(volume, {"sandbox": {"hidden": ["readme"]}}, runtime=DENY) as box:
        assert (volume / "ws/.ENV").exists()
        for path in (".env", ".ENV", "PRIVATE/../.Env", "private/k", "Private/K", "PRIVATE/k", "private/K"):
            assert box.code("read_file", path=path) == "denied", path
        for path in ("PRIVATE", "Private/"):
            assert box.code("list_files", path=path) == "denied", path
            assert box.code("grep_files", path=path, pattern="KEY") == "denied", path
        for path in (".git/config", ".GIT/config", ".Git/new", ".GIT"):
            assert box.code("write_file", path=path, content="x") == "read_only", path
        # An allow, or the name of a file itself, is never folded: `hidden` says `readme`, the file is `README`.
        assert box.read("README") == "hello\n"
        assert box.read("readMe") == "hello\n"


def test_other_volumes_have_different_files_under_such_names(tmp_path: Path) -> None:
    with Box(tmp_path, runtime=DENY) as box:
        box.put(".env", "SECRET\n")
        box.put(".ENV", "plain\n")
        box.put("private/k", "KEY\n")
        box.put("Private/k", "open\n")
        assert (box.code("read_file", path=".env"), box.read(".ENV")) == ("denied", "plain\n")
        assert (box.code("read_file", path="private/k"), box.read("Private/k")) == ("denied", "open\n")
        box.ok("write_file", path=".Git/x", content="x")
        box.ok("write_file", path="Private/new", content="x")
