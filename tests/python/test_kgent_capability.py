"""`Kgent` as agents carry it: its runs, what it tells the model, approvals that come in a later agent run, agent specs."""

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import (
    Agent,
    AgentRunResult,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolDenied,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from support import parse_lines

from kgent_tools import ConfigError, KgentError, RunError, ToolRegistry, pydantic_adapter, tool, verify_run
from kgent_tools.pydantic_adapter import Kgent, scripted_model

NEWER = importlib.util.find_spec("pydantic_ai.workspaces") is not None and pydantic_adapter.HAS_EVENTS

ASK = {"permissions": {"filesystem_write": "ask"}}
WRITE = ("write_file", {"path": "new.md", "content": "x"})


def run(agent: Agent[None, Any], prompt: str | None = "go", **options: Any) -> AgentRunResult[Any]:
    return asyncio.run(agent.run(prompt, **options))


def records(folder: Path) -> list[dict[str, Any]]:
    return parse_lines((folder / "logs/tools.jsonl").read_bytes())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


# Runs


def test_each_agent_run_has_a_run_of_its_id_which_is_closed_at_its_end(workspace: Path, runs: Path) -> None:
    kgent = Kgent(workspace, runs=runs)
    agent = Agent(scripted_model(("read_file", {"path": "notes.md"})), name="scout", capabilities=[kgent])
    assert not runs.exists()
    first = run(agent)
    before = open_files()
    second = run(agent)
    assert open_files() == before
    assert {folder.name for folder in runs.iterdir() if folder.is_dir()} >= {first.run_id, second.run_id}
    for result in (first, second):
        (record,) = records(runs / result.run_id)
        assert (record["tool"], record["status"], record["agent"], record["step"]) == (
            "read_file",
            "completed",
            "scout",
            1,
        )
        checked = verify_run(runs / result.run_id)
        assert (checked["ok"], checked["closed"]) == (True, True)


def test_an_agent_run_without_a_call_leaves_nothing(workspace: Path, runs: Path) -> None:
    run(Agent(TestModel(call_tools=[]), capabilities=[Kgent(workspace, runs=runs)]))
    assert not runs.exists()


def test_a_shared_run_takes_all_agent_runs_one_after_the_other_and_at_once(workspace: Path, runs: Path) -> None:
    agent = Agent(
        scripted_model(("read_file", {"path": "notes.md"})), capabilities=[Kgent(workspace, runs=runs, run_id="shared")]
    )
    run(agent)

    async def both() -> None:
        await asyncio.gather(*(agent.run("go") for _ in range(5)))

    asyncio.run(both())
    assert [folder.name for folder in runs.iterdir() if folder.is_dir()] == ["shared"]
    assert [record["status"] for record in records(runs / "shared")] == ["completed"] * 6
    assert verify_run(runs / "shared")["ok"] is True


def test_a_run_that_fails_is_closed_too(workspace: Path, runs: Path) -> None:
    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            raise ZeroDivisionError
        return ModelResponse(parts=[ToolCallPart("list_files", {})])

    with pytest.raises(ZeroDivisionError):
        run(Agent(FunctionModel(respond), capabilities=[Kgent(workspace, runs=runs, run_id="r")]))
    assert verify_run(runs / "r")["closed"] is True


def test_runs_are_kept_in_the_state_directory(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    result = run(Agent(scripted_model(("list_files", {})), capabilities=[Kgent(workspace)]))
    assert len(records(tmp_path / "state/kgent_tools/runs" / result.run_id)) == 1
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    result = run(Agent(scripted_model(("list_files", {})), capabilities=[Kgent(workspace)]))
    assert len(records(tmp_path / "home/.local/state/kgent_tools/runs" / result.run_id)) == 1


def test_runs_that_cannot_be_made_end_no_agent_run(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = run(
        Agent(scripted_model(("list_files", {})), capabilities=[Kgent(workspace, runs=tmp_path / "file")]),
    )
    (answer,) = [part for m in result.all_messages() for part in m.parts if part.part_kind == "tool-return"]
    assert str(answer.content).startswith("internal: ")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"config": {"zzz": 1}}, ConfigError),
        ({"config": "missing.toml"}, ConfigError),
        ({"workspace": "missing"}, RunError),
    ],
)
def test_what_cannot_be_used_is_said_when_it_is_made(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], error: type[KgentError]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        Kgent(**{"workspace": workspace, **options})


# What the model is told


def test_instructions_name_mounts_and_skills(workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "minutes"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: minutes\ndescription: Makes minutes.\n---\n", encoding="utf-8")
    config = {**ASK, "skills": {"roots": [str(tmp_path / "skills")]}}
    told: list[str | None] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        told.append(info.instructions)
        return ModelResponse(parts=[TextPart("done")])

    run(Agent(FunctionModel(respond), capabilities=[Kgent(workspace, config=config)]))
    (text,) = told
    assert text is not None
    assert "- `workspace`: read; write after approval\n" in text
    assert "- `artifacts`: read only\n" in text
    assert "- minutes: Makes minutes." in text
    assert str(tmp_path) not in text
    assert len(text) < 1000


def test_every_tool_passes_the_test_model(workspace: Path, runs: Path) -> None:
    kgent = Kgent(workspace, runs=runs)
    model = TestModel()
    result = run(Agent(model, capabilities=[kgent]))
    offered = model.last_model_request_parameters
    assert offered is not None
    names = {tool.name for tool in offered.function_tools}
    assert {record["tool"] for record in records(runs / result.run_id)} == names
    assert {"read_file", "write_file", "grep_files"} <= names
    assert len(json.loads(str(result.output))) == len(names)
    for shown in offered.function_tools:
        metadata = (shown.metadata or {})["kgent"]
        assert {"action", "capabilities", "read_only_hint", "destructive_hint", "idempotent_hint"} <= metadata.keys()


def test_tools_can_be_prefixed_beside_another_package_s(workspace: Path, runs: Path) -> None:
    agent = Agent(
        scripted_model(("kgent_read_file", {"path": "notes.md"})),
        capabilities=[Kgent(workspace, runs=runs).prefix_tools("kgent")],
    )

    @agent.tool_plain
    def read_file(path: str) -> str:
        return "another's"

    result = run(agent)
    (record,) = records(runs / result.run_id)
    assert (record["tool"], record["status"]) == ("read_file", "completed")
    assert verify_run(runs / result.run_id)["closed"] is True


def test_tools_of_the_application_are_offered_until_they_are_closed(workspace: Path, runs: Path) -> None:
    @tool
    def shout(text: str) -> str:
        """Shouts."""
        return text.upper()

    with ToolRegistry.application().register([shout]):
        kgent = Kgent(workspace, runs=runs)
        agent = Agent(scripted_model(("shout", {"text": "hi"})), capabilities=[kgent])
        result = run(agent)
        assert records(runs / result.run_id)[0]["tool"] == "shout"
    (answer,) = [part for m in run(agent).all_messages() for part in m.parts if part.part_kind == "tool-return"]
    assert str(answer.content).startswith("stale_tool: ")


# Approvals


@pytest.mark.parametrize("way", ["same capability", "another process"])
@pytest.mark.parametrize("run_id", [None, "shared"])
def test_an_approval_is_granted_in_the_run_that_asked(
    workspace: Path, runs: Path, way: str, run_id: str | None
) -> None:
    def agent() -> Agent[None, Any]:
        kgent = Kgent(workspace, runs=runs, config=ASK, run_id=run_id)
        return Agent(scripted_model(WRITE), capabilities=[kgent], output_type=[str, DeferredToolRequests])

    first = agent()
    asked = run(first)
    assert isinstance(asked.output, DeferredToolRequests)
    (call,) = asked.output.approvals
    same = way == "same capability"
    results = DeferredToolResults(approvals={call.tool_call_id: True}, metadata={} if same else asked.output.metadata)
    resumed = run(first if same else agent(), None, message_history=asked.all_messages(), deferred_tool_results=results)
    assert resumed.output == "done"
    assert (workspace / "new.md").read_text(encoding="utf-8") == "x"
    folder = runs / (run_id or asked.run_id)
    blocked, done = records(folder)
    assert (blocked["status"], done["status"]) == ("blocked", "completed")
    assert done["permission"]["layer"] == "grant"
    checked = verify_run(folder)
    assert (checked["ok"], checked["closed"]) == (True, True)


def test_a_denied_approval_reaches_the_model_and_writes_nothing(workspace: Path, runs: Path) -> None:
    kgent = Kgent(workspace, runs=runs, config=ASK)
    agent = Agent(scripted_model(WRITE), capabilities=[kgent], output_type=[str, DeferredToolRequests])
    asked = run(agent)
    assert isinstance(asked.output, DeferredToolRequests)
    results = DeferredToolResults(approvals={asked.output.approvals[0].tool_call_id: ToolDenied("not today")})
    resumed = run(agent, None, message_history=asked.all_messages(), deferred_tool_results=results)
    (answer,) = [part for m in resumed.all_messages() for part in m.parts if part.part_kind == "tool-return"]
    assert answer.content == "not today"
    assert not (workspace / "new.md").exists()


# Agent specs


def test_an_agent_spec_names_it(workspace: Path, runs: Path) -> None:
    spec = {
        "model": "test",
        "capabilities": [{"Kgent": {"workspace": str(workspace), "runs": str(runs), "config": ASK}}],
    }
    agent = Agent.from_spec(spec, custom_capability_types=[Kgent])
    result = run(agent, model=scripted_model(("read_file", {"path": "notes.md"})))
    assert [record["status"] for record in records(runs / result.run_id)] == ["completed"]


def test_a_yaml_file_names_it(workspace: Path, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "kgent.toml").write_text('[permissions]\nfilesystem_write = "deny"\n', encoding="utf-8")
    text = f"model: test\ncapabilities:\n  - Kgent: {{workspace: {workspace}, runs: {runs}, config: {tmp_path}/kgent.toml}}\n"
    (tmp_path / "agent.yaml").write_text(text, encoding="utf-8")
    agent = Agent.from_file(tmp_path / "agent.yaml", custom_capability_types=[Kgent])
    model = TestModel(call_tools=["list_files"])
    result = run(agent, model=model)
    assert [record["status"] for record in records(runs / result.run_id)] == ["completed"]
    offered = model.last_model_request_parameters
    assert offered is not None
    assert "write_file" not in {tool.name for tool in offered.function_tools}


def test_a_user_s_program_runs(tmp_path: Path) -> None:
    program = Path(__file__).with_name("user_program.py")
    ran = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
    expected = "['add completed', 'list_files completed', 'shout completed']\nstr True\n"
    assert (ran.stdout, ran.stderr) == (expected, "")


@pytest.mark.skipif(not NEWER, reason="this Pydantic AI has no workspaces or typed events yet")
def test_a_user_s_program_of_newer_things_runs(tmp_path: Path) -> None:
    program = Path(__file__).with_name("user_program_of_newer.py")
    ran = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
    events = "['list_files completed None None None', 'read_file blocked denied config config: deny * a']\n"
    assert (ran.stdout, ran.stderr) == (f"{events}b'text'\n", "")


def test_every_public_name_is_in_a_user_s_program() -> None:
    programs = [Path(__file__).with_name(name) for name in ("user_program.py", "user_program_of_newer.py")]
    words = set(re.findall(r"\w+", "".join(program.read_text(encoding="utf-8") for program in programs)))
    assert set(pydantic_adapter.__all__) <= words
