# pyright: reportMissingImports=false
"""The harness's `FileSystem`, `Memory` and `Skills`, unchanged, on `KgentWorkspace`: `make test-peers`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeContext
from support import Swapper, snapshot

from kgent_tools import RunContext

pytest.importorskip("pydantic_ai_harness", reason="the harness pins a Pydantic AI of its own: make test-peers")

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits
from pydantic_ai.workspaces import LocalWorkspaceBackend, Workspace
from pydantic_ai_harness.filesystem import FileSystem
from pydantic_ai_harness.memory import FileStore, Memory
from pydantic_ai_harness.skills import Skills

from kgent_tools.pydantic_adapter import KgentWorkspace

pytestmark = pytest.mark.anyio
Turn = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def scripted(turns: list[Turn]) -> FunctionModel:
    """A model that makes each turn's calls at once, then ends."""

    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        done = sum(isinstance(message, ModelResponse) for message in messages)
        if done == len(turns):
            return ModelResponse(parts=[TextPart("end")])
        return ModelResponse(parts=[ToolCallPart(name, args) for name, args in turns[done]])

    return FunctionModel(model)


def answers(result: Any, *tools: str) -> list[str]:
    """What the calls of these tools gave or were told."""
    parts = [part for message in result.all_messages() for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, ToolReturnPart) and part.tool_name in tools]


def calls(context: RunContext) -> list[tuple[str, str]]:
    return [(record["tool"], record["status"]) for record in map(dict, context.records())]


async def test_file_system_reads_writes_edits_lists_and_searches(make_context: MakeContext, workspace: Path) -> None:
    context = make_context()
    (workspace / "src").mkdir()  # it makes none for a new file
    turns: list[Turn] = [
        [("write_file", {"path": "src/a.txt", "content": "one\ntwo\n"})],
        [("read_file", {"path": "src/a.txt"})],
        [("edit_file", {"path": "src/a.txt", "old_text": "two", "new_text": "three"})],
        [("list_directory", {"path": "src"}), ("search_files", {"pattern": "thr.e"})],
        [("find_files", {"pattern": "**/*.txt"})],
        [("read_file", {"path": "../../etc/hostname"})],
    ]
    agent = Agent(scripted(turns), capabilities=[FileSystem()], retries=9)
    result = await agent.run("work", workspace=KgentWorkspace(context))
    assert (workspace / "src/a.txt").read_text(encoding="utf-8") == "one\nthree\n"
    assert "one" in answers(result, "read_file")[0]
    assert "a.txt" in answers(result, "list_directory")[0]
    assert "three" in answers(result, "search_files")[0]
    assert "src/a.txt" in answers(result, "find_files")[0]
    seen = calls(context)
    assert ("workspace_write", "completed") in seen
    assert ("workspace_read", "completed") in seen


async def test_what_the_policy_denies_is_a_failed_call_and_not_the_end_of_the_run(
    make_context: MakeContext, workspace: Path
) -> None:
    rules = [{"action": "*", "resource": "private/**", "effect": "deny"}]
    (workspace / "private").mkdir()
    (workspace / "private/k").write_text("CANARY", encoding="utf-8")
    (workspace / "link").symlink_to("private")
    context = make_context({"permissions": {"rules": rules}})
    turns: list[Turn] = [
        [("read_file", {"path": "private/k"}), ("read_file", {"path": "link/k"})],
        [("write_file", {"path": "private/k", "content": "x"})],
        [("search_files", {"pattern": "CANARY"}), ("list_directory", {})],
    ]
    agent = Agent(scripted(turns), capabilities=[FileSystem()], retries=9)
    result = await agent.run("work", workspace=KgentWorkspace(context))
    assert result.output == "end"
    assert "CANARY" not in "".join(answers(result, "read_file", "search_files", "list_directory"))
    assert (workspace / "private/k").read_text(encoding="utf-8") == "CANARY"
    assert "blocked" in {status for _, status in calls(context)}


async def test_memory_keeps_its_files_in_the_workspace(make_context: MakeContext, workspace: Path) -> None:
    context = make_context()
    turns: list[Turn] = [
        [("write_memory", {"content": "The build needs nasm."})],
        [("search_memory", {"query": "nasm"})],
    ]
    agent = Agent(scripted(turns), capabilities=[Memory(store=FileStore("memory"))])
    result = await agent.run("work", workspace=KgentWorkspace(context))
    assert "nasm" in answers(result, "search_memory")[0]
    files = [path.read_text(encoding="utf-8") for path in (workspace / "memory").rglob("MEMORY.md")]
    assert len(files) == 1
    assert "The build needs nasm." in files[0]
    assert ("workspace_write", "completed") in calls(context)


async def test_skills_are_read_from_the_workspace(make_context: MakeContext, workspace: Path) -> None:
    (workspace / "skills/minutes").mkdir(parents=True)
    text = "---\nname: minutes\ndescription: Turns notes into minutes.\n---\nList what was decided.\n"
    (workspace / "skills/minutes/SKILL.md").write_text(text, encoding="utf-8")
    context = make_context()
    # The workspace's own `skills` folder, by its path: the run has a mount of that name too.
    agent = Agent(scripted([[("load_capability", {"id": "minutes"})]]), capabilities=[Skills(workspace / "skills")])
    result = await agent.run("work", workspace=KgentWorkspace(context))
    assert "List what was decided." in str(result.all_messages())
    assert ("workspace_read", "completed") in calls(context)


@pytest.fixture
def raced(workspace: Path) -> Iterator[Path]:
    """`d` in the workspace, while another process exchanges it with a link to outside; the outside folder."""
    outside = workspace.parent / "outside"
    for folder, text in ((workspace / "d", "IN"), (outside, "OUT")):
        folder.mkdir()
        (folder / "f").write_text(text, encoding="utf-8")
    (workspace / "l").symlink_to(outside)
    with Swapper(workspace / "d", workspace / "l"):
        yield outside


async def test_the_race_of_c05_leaks_on_a_local_workspace(workspace: Path, raced: Path) -> None:
    """What the next test shows would mean little if the race were never on."""
    tools: Any = FileSystem().get_toolset()
    local: Any = Workspace(LocalWorkspaceBackend(workspace))
    reads: list[str] = []
    while len(reads) < 300:
        with contextlib.suppress(ModelRetry, OSError):
            reads.append(str(await tools.read_file("d/f", workspace=local)))
    leaked = sum("OUT" in text for text in reads)
    print(f"harness FileSystem on LocalWorkspace: {leaked} of {len(reads)} reads leaked")
    assert leaked > 0


async def test_the_race_of_c05_gains_nothing_on_ours(make_context: MakeContext, raced: Path) -> None:
    """Nor does it end the run."""
    before = snapshot(raced)
    turn: Turn = [("read_file", {"path": "d/f"})] * 8 + [("write_file", {"path": "d/new", "content": "W"})]
    agent = Agent(scripted([turn] * 40), capabilities=[FileSystem()], retries=10**6)
    no_limit = UsageLimits(request_limit=None)
    result = await agent.run("work", workspace=KgentWorkspace(make_context()), usage_limits=no_limit)
    reads = answers(result, "read_file")
    leaked, within = sum("OUT" in text for text in reads), sum("IN" in text for text in reads)
    print(f"harness FileSystem on KgentWorkspace: {leaked} of {len(reads)} reads leaked, {within} read what is inside")
    assert within > 0
    assert leaked == 0
    assert snapshot(raced) == before
