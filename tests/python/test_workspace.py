"""`KgentWorkspace`: Pydantic AI's rules of a workspace, and what it adds to them."""

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from conftest import MakeContext
from support import Swapper, snapshot

from kgent_tools import EffectivePermissionPolicy, PermissionRule, RunContext

pytest.importorskip("pydantic_ai.workspaces", reason="this Pydantic AI has no workspaces yet")

from pydantic_ai.workspaces import (
    LocalWorkspaceBackend,
    SupportsCommands,
    SupportsFilesystem,
    SupportsRealpath,
    WorkspaceBackend,
    WorkspaceError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from kgent_tools.pydantic_adapter import KgentWorkspace

DELETES = {"permissions": {"filesystem_delete": "allow"}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def backend(make_context: MakeContext) -> KgentWorkspace:
    return KgentWorkspace(make_context(DELETES))


class WithCommands(KgentWorkspace):
    """The workspace, and the commands with which the suite makes links and pipes in it."""

    async def run(self, command: Any, **options: Any) -> Any:
        return await LocalWorkspaceBackend(await self.working_dir()).run(command, **options)


class TestConformance(WorkspaceBackendSuite):
    """The suite on the backend as it is: rules of commands are skipped."""

    @pytest.fixture
    def backend(self, make_context: MakeContext) -> KgentWorkspace:
        return KgentWorkspace(make_context(DELETES))

    @pytest.fixture
    def has_real_posix_shell(self) -> bool:
        return False

    @pytest.fixture
    def attach_backend(self, backend: KgentWorkspace) -> Any:
        return lambda ref: KgentWorkspace(backend._context)


class TestConformanceOfFilesMadeByCommands(WorkspaceBackendSuite):
    """The suite with commands, for its rules of links, pipes and modes."""

    @pytest.fixture
    def backend(self, make_context: MakeContext) -> WithCommands:
        return WithCommands(make_context(DELETES))


pytestmark = pytest.mark.anyio


def records(context: RunContext) -> list[dict[str, Any]]:
    return [dict(record) for record in context.records()]


async def test_it_is_a_workspace_of_files(backend: KgentWorkspace) -> None:
    kinds = (WorkspaceBackend, SupportsFilesystem, SupportsRealpath, SupportsCommands)
    assert [isinstance(backend, kind) for kind in kinds] == [True, True, True, False]


async def test_operations_are_on_record_like_calls(make_context: MakeContext, workspace: Path) -> None:
    context = make_context(DELETES)
    backend = KgentWorkspace(context)
    root = str(workspace)
    await backend.write_bytes(f"{root}/a/b.txt", b"text")
    await backend.write_bytes(f"{root}/a/c.bin", b"\xff\x00")
    assert await backend.read_bytes(f"{root}/a/c.bin") == b"\xff\x00"
    assert not await backend.exists(f"{root}/nothing")
    await backend.make_dir(f"{root}/d")
    await backend.remove(f"{root}/a")
    with pytest.raises(PermissionError):
        await backend.read_bytes("/etc/hostname")
    seen = [(line["tool"], line["status"], line["summary"]) for line in records(context)]
    assert seen[:6] == [
        ("workspace_write", "completed", "wrote a/b.txt: 4 bytes"),
        ("workspace_write", "completed", "wrote a/c.bin: 2 bytes"),
        ("workspace_read", "completed", "read a/c.bin: 2 bytes"),
        ("workspace_stat", "completed", "nothing does not exist"),
        ("workspace_make_dir", "completed", "made d"),
        ("workspace_remove", "completed", "removed a: a directory, 3 entries"),
    ]
    assert seen[6][:2] == ("workspace_read", "blocked")
    assert len(seen) == 7
    started = [event["data"]["tool"] for event in map(dict, context.events()) if event["type"] == "tool.started"]
    assert started == ["workspace_write", "workspace_write", "workspace_make_dir", "workspace_remove"]
    assert "text" not in str(records(context)[0]["args"])


async def test_nothing_is_removed_unless_a_rule_allows_it(make_context: MakeContext, workspace: Path) -> None:
    context = make_context()
    with pytest.raises(PermissionError):
        await KgentWorkspace(context).remove(f"{workspace}/notes.md")
    assert (workspace / "notes.md").exists()
    assert records(context)[0]["permission"]["action"] == "filesystem_delete"


@pytest.mark.parametrize("kept", [".git/config", "private/f", "x.sqlite", "read/only"])
async def test_a_folder_is_removed_whole_or_not_at_all(make_context: MakeContext, workspace: Path, kept: str) -> None:
    """What must stay in it is looked for before the first name goes."""
    config = {**DELETES, "sandbox": {"hidden": ["*.sqlite"], "read_only": ["**/read/**"]}}
    context = make_context(config)
    policy = EffectivePermissionPolicy.merge(context=context, runtime=[PermissionRule("*", "**/private/**", "deny")])
    for name in ("tree/a", f"tree/m/{kept}", "tree/z"):
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x", encoding="utf-8")
    before = snapshot(workspace)
    with pytest.raises(PermissionError) as caught:
        await KgentWorkspace(context, policy).remove(f"{workspace}/tree")
    assert snapshot(workspace) == before
    assert "sqlite" not in str(caught.value), "what is hidden is told"


async def test_a_link_is_removed_itself(backend: KgentWorkspace, workspace: Path) -> None:
    (workspace / "dir").mkdir()
    (workspace / "dir/f").write_text("x", encoding="utf-8")
    (workspace / "link").symlink_to("dir")
    (workspace / "tree").mkdir()
    (workspace / "tree/out").symlink_to("/etc")
    await backend.remove(f"{workspace}/link")
    await backend.remove(f"{workspace}/tree")
    assert sorted(os.listdir(workspace)) == ["dir", "notes.md"]
    assert (workspace / "dir/f").exists()


async def test_what_holds_a_mount_or_the_runs_stays(make_context: MakeContext, workspace: Path, tmp_path: Path) -> None:
    (workspace / "outer/docs").mkdir(parents=True)
    (workspace / "outer/docs/f").write_text("x", encoding="utf-8")
    context = make_context(DELETES, mounts={"docs": (workspace / "outer/docs", "rw")})
    backend = KgentWorkspace(context)
    for path in (workspace / "outer", workspace / "outer/docs", workspace, tmp_path, context.run_dir):
        with pytest.raises(ValueError, match="a mount"):
            await backend.remove(str(path))
    with pytest.raises(PermissionError):
        await backend.remove(str(context.run_dir / "logs"))
    assert (workspace / "outer/docs/f").exists()


async def test_no_bare_repository_is_made(backend: KgentWorkspace, workspace: Path) -> None:
    for name in ("HEAD", "config"):
        (workspace / name).write_text("x", encoding="utf-8")
    for path in ("objects", "objects/ab", ".git", "sub/.git/hooks"):
        with pytest.raises(PermissionError):
            await backend.make_dir(f"{workspace}/{path}")
    assert sorted(os.listdir(workspace)) == ["HEAD", "config", "notes.md"]


async def test_links_that_lead_out_are_entries_and_no_more(backend: KgentWorkspace, workspace: Path) -> None:
    (workspace / "out").symlink_to("/etc")
    (workspace / "in").symlink_to("notes.md")
    entries = await backend.list_dir(str(workspace))
    assert [(e.name, e.is_dir, e.size) for e in entries] == [
        ("in", False, 8),
        ("notes.md", False, 8),
        ("out", False, None),
    ]
    for call in (backend.realpath, backend.list_dir, backend.stat, backend.exists, backend.make_dir):
        with pytest.raises(PermissionError):
            await call(f"{workspace}/out")
    with pytest.raises(PermissionError):
        await backend.write_bytes(f"{workspace}/out/f", b"x")


async def test_a_cancelled_operation_ends_on_record(make_context: MakeContext, workspace: Path) -> None:
    context = make_context()
    backend = KgentWorkspace(context)
    with anyio.move_on_after(0):
        await backend.list_dir(str(workspace))
    assert len(await backend.list_dir(str(workspace))) == 1
    assert records(context)[-1]["status"] == "completed"


async def test_a_folder_exchanged_with_a_link_to_outside(make_context: MakeContext, workspace: Path) -> None:
    """No read leaks, and no write, folder or removal lands outside, while `d` becomes a link to outside and back."""
    backend = KgentWorkspace(make_context(DELETES))
    outside = workspace.parent / "outside"
    (outside / "tree").mkdir(parents=True)
    (outside / "f").write_text("OUT", encoding="utf-8")
    (outside / "tree/f").write_text("OUT", encoding="utf-8")
    (workspace / "d").mkdir()
    (workspace / "d/f").write_text("IN", encoding="utf-8")
    (workspace / "l").symlink_to(outside)
    before = snapshot(outside)
    read, refused = 0, 0
    with Swapper(workspace / "d", workspace / "l"):
        for n in range(400):
            try:
                assert await backend.read_bytes(f"{workspace}/d/f") in (b"IN", b"W")
                read += 1
                match n % 4:
                    case 0:
                        await backend.write_bytes(f"{workspace}/d/f", b"W")
                    case 1:
                        await backend.make_dir(f"{workspace}/d/made/{n}")
                    case 2:
                        await backend.write_bytes(f"{workspace}/d/tree/f", b"W")
                    case _:
                        await backend.remove(f"{workspace}/d/tree")
            except (OSError, WorkspaceError):
                refused += 1
    assert snapshot(outside) == before
    assert read > 0
    assert refused > 0, "the race was never on"
