"""The pytest plugin: its fixtures with a real agent, what its readers say, and that it costs nothing where it is not used."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from kgent_tools import CallContext, RunContext, ToolRegistry, tool
from pytest_kgent import Calls

DENY = [{"action": "edit", "resource": "private/**", "effect": "deny"}]


def pytest_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    plain = ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin", f"--basetemp={folder / 'tmp'}"]
    command = [sys.executable, "-m", "pytest", *plain, *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    "kgent_config", [{"permissions": {"filesystem_delete": "allow", "rules": DENY}}], ids=["delete"]
)
def test_readers_say_what_was_called_refused_and_written(
    kgent_run: RunContext, kgent_workspace: Path, kgent_calls: Calls
) -> None:
    @tool(resources=["path"])
    def own(path: str, context: CallContext) -> str:
        """Writes."""
        context.sandbox.write_bytes(path, b"x")
        return "ok"

    for name in ("old.md", "gone.md"):
        (kgent_workspace / name).write_text("one\n", encoding="utf-8")
    assert (kgent_calls.made, kgent_calls.written, str(kgent_calls)) == ([], {}, "")
    registry = ToolRegistry(kgent_run)
    registry.register([own])
    snapshot = registry.materialize()
    patch = (
        "*** Begin Patch\n*** Add File: a.md\n+x\n*** Delete File: gone.md\n"
        "*** Update File: old.md\n*** Move to: new.md\n@@\n-one\n+two\n*** End Patch\n"
    )
    for name, args in (
        ("apply_patch", {"patch": patch}),
        ("write_file", {"path": "new.md", "content": "three\n"}),
        ("write_file", {"path": "b.md", "content": "x"}),
        ("apply_patch", {"patch": "*** Begin Patch\n*** Delete File: b.md\n*** End Patch\n"}),
        ("own", {"path": "mine"}),
        ("write_file", {"path": "private/x", "content": "y"}),
        ("read_file", {"path": "../x\x1b"}),
        ("read_file", {"path": "missing.md"}),
        ("no_such_tool", {}),
    ):
        snapshot.call(name, args)
    completed = ["apply_patch", "write_file", "write_file", "apply_patch", "own"]
    assert kgent_calls.made == [
        *((name, "completed") for name in completed),
        ("write_file", "blocked"),
        ("read_file", "blocked"),
        ("read_file", "failed"),
        ("no_such_tool", "failed"),
    ]
    assert kgent_calls.args[-2:] == [{"path": "missing.md"}, {}]
    assert kgent_calls.refused == [
        ("write_file", "private/x", "config: deny edit private/**"),
        ("read_file", "../x\x1b", "outside_sandbox"),
    ]
    assert kgent_calls.failed == [("read_file", "missing.md", "not_found"), ("no_such_tool", "", "unknown_tool")]
    assert kgent_calls.written == {
        "a.md": "created",
        "gone.md": "removed",
        "old.md": "removed",
        "new.md": "created",
        "mine": "touched",
    }
    assert "\x1b" not in str(kgent_calls)


def test_an_agent_plays_the_script(
    kgent_run: RunContext, kgent_workspace: Path, kgent_toolset: Any, kgent_model: Any, kgent_calls: Calls
) -> None:
    from pydantic_ai import Agent

    (kgent_workspace / "a.md").write_text("one\n", encoding="utf-8")
    seen: list[list[str]] = []

    def third(answers: list[str]) -> tuple[str, dict[str, Any]]:
        seen.append(answers)
        return ("write_file", {"path": "b.md", "content": answers[0]})

    model = kgent_model(
        [("read_file", {"path": "a.md"}), ("list_files", "{}")],
        third,
        ("read_file", {"path": "missing.md"}),
        lambda answers: seen.append(answers) or "It is done.",
    )
    agent = Agent(model, toolsets=[kgent_toolset])
    assert asyncio.run(agent.run("go")).output == "It is done."
    assert seen[0][0] == "     1\tone\n"
    assert "missing.md" in seen[1][0]
    once = [
        ("list_files", "completed"),
        ("read_file", "completed"),
        ("write_file", "completed"),
        ("read_file", "failed"),
    ]
    assert sorted(kgent_calls.made[:2]) + kgent_calls.made[2:] == once
    assert kgent_calls.written == {"b.md": "created"}

    async def streamed() -> str:
        async with agent.run_stream("go") as result:
            return await result.get_output()

    assert asyncio.run(streamed()) == "It is done."
    again = kgent_calls.made[4:]
    assert sorted(again[:2]) + again[2:] == once
    assert asyncio.run(Agent(kgent_model(), toolsets=[kgent_toolset]).run("go")).output == "done"
    # A conversation that is gone on with.
    first = asyncio.run(Agent(kgent_model("one", "two"), toolsets=[kgent_toolset]).run("go"))
    assert asyncio.run(Agent(kgent_model("one", "two")).run("go", message_history=first.all_messages())).output == "two"
    assert Calls(kgent_run.run_dir).made == kgent_calls.made


@pytest.mark.slow
def test_the_report_of_a_test_that_fails_has_its_calls(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from kgent_tools import ToolRegistry\n"
        "def test_fails(kgent_run, tmp_path):\n"
        "    ToolRegistry(kgent_run).materialize().call('read_file', {'path': '../x'})\n"
        "    assert kgent_run.run_dir.parent == tmp_path / 'runs'\n"
        "    assert False\n"
        "def test_harms(kgent_run):\n"
        "    (kgent_run.run_dir / 'logs/tools.jsonl').unlink()\n"
        "    assert False\n"
        "def test_passes(kgent_run):\n"
        "    ToolRegistry(kgent_run).materialize().call('list_files', {})\n"
        "def test_has_no_run():\n"
        "    assert False\n",
        encoding="utf-8",
    )
    ran = pytest_in(tmp_path, "-q")
    assert re.findall(" Calls on record in kgent_run -+\n(.*)\n", ran.stdout) == [
        "read_file     blocked     outside_sandbox: `../x` is outside the sandbox: `..` leads out of the mount",
        ANY,
    ]
    assert "cannot be read: RunError(" in ran.stdout
    assert "3 failed, 1 passed" in ran.stdout


@pytest.mark.slow
def test_where_no_fixture_is_used_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_it():\n    assert not [n for n in sys.modules if n.startswith(('kgent_tools', 'pydantic_ai'))]\n",
        encoding="utf-8",
    )
    ran = pytest_in(tmp_path, "-q")
    assert "1 passed" in ran.stdout, ran.stdout
    command = [sys.executable, "-X", "importtime", "-c", "import pytest; import pytest_kgent"]
    timed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    (us,) = re.findall(r"\| +([0-9]+) \| pytest_kgent\n", timed)
    print(f"import pytest_kgent, after pytest: {us} μs")
    assert int(us) < 50_000
