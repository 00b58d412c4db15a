"""A pytest plugin for agents whose tools kgent_tools governs: a run, its toolset and a scripted model, and what they did.

pytest loads it wherever kgent_tools is installed, so it lies outside that package and imports it when a fixture is used.
Every fixture may be overridden as usual; `kgent_config` also for one test, by
`@pytest.mark.parametrize("kgent_config", [{...}])`. The calls of a test that fails are part of its report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from kgent_tools import RunContext
    from kgent_tools._runs import Call
    from kgent_tools.pydantic_adapter import KgentToolset

__all__ = ["Calls"]


class Calls:
    """What is on record of the calls of a run, at each look. Texts and files' contents are there by their lengths only."""

    def __init__(self, run: str | os.PathLike[str]) -> None:
        """Reads the run in the folder `run`, such as `context.run_dir`; it may be in use."""
        self._run = run

    @property
    def made(self) -> list[tuple[str, str]]:
        """The tool and the status of each call, in the order in which they ended."""
        return [(call.tool, call.status) for call in self._calls()]

    @property
    def args(self) -> list[dict[str, Any]]:
        """The arguments of each call, as they were recorded."""
        return [call.record.get("args") or {} for call in self._calls()]

    @property
    def refused(self) -> list[tuple[str, str, str]]:
        """The tool, the resource, and the rule or else the error's code, of each call that was blocked."""
        return [
            (call.tool, call.resource, call.rule or call.code) for call in self._calls() if call.status == "blocked"
        ]

    @property
    def failed(self) -> list[tuple[str, str, str]]:
        """The tool, the resource and the error's code of each call that failed and was not blocked."""
        return [
            (call.tool, call.resource, call.code)
            for call in self._calls()
            if call.status not in ("completed", "blocked")
        ]

    @property
    def written(self) -> dict[str, str]:
        """The sandbox path of each file that calls wrote: `created`, `changed` or `removed` in the end.

        It is `touched` where a tool of the application's was called on it, which may have changed it.
        """
        from kgent_tools import LogReader

        begun: dict[str, list[dict[str, Any]]] = {}
        states: dict[str, tuple[Any, Any]] = {}
        for event in LogReader.open(self._run, "events"):
            if event["type"] == "tool.started":
                begun[event["id"]] = event["data"]["targets"]
            for target in begun.pop(event["id"], []) if event["type"] == "tool.completed" else []:
                unknown = None if "after" in target else ...
                before, _ = states.get(target["path"], (target.get("before", unknown), None))
                states[target["path"]] = (before, target.get("after", unknown))
        return {path: _change(*state) for path, state in states.items() if state != (None, None)}

    def __str__(self) -> str:
        """A line for each call."""
        from kgent_tools._runs import escaped

        return "\n".join(f"{call.tool:<13} {call.status:<11} {escaped(call.summary)}" for call in self._calls())

    def _calls(self) -> Iterator[Call]:
        from kgent_tools import LogReader
        from kgent_tools._runs import Call

        return map(Call.of, LogReader.open(self._run))


def _change(before: object, after: object) -> str:
    if ... in (before, after):
        return "touched"
    if before is None:
        return "created"
    return "removed" if after is None else "changed"


@pytest.fixture
def kgent_config() -> dict[str, Any]:
    """The configuration of `kgent_run`: the defaults; override it."""
    return {}


@pytest.fixture
def kgent_workspace(tmp_path: Path) -> Path:
    """The project that the tools work on: an empty folder, for the test to fill."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def kgent_runs(tmp_path: Path) -> Path:
    """The folder that keeps the test's runs."""
    return tmp_path / "runs"


@pytest.fixture
def kgent_run(kgent_runs: Path, kgent_workspace: Path, kgent_config: dict[str, Any]) -> Iterator[RunContext]:
    """A run on `kgent_workspace` under `kgent_config`, closed when the test has ended."""
    from kgent_tools import RunContext

    with RunContext.create(kgent_runs, workspace=kgent_workspace, config=kgent_config) as context:
        yield context


@pytest.fixture
def kgent_toolset(kgent_run: RunContext) -> KgentToolset:
    """The tools of `kgent_run` for a Pydantic AI agent: the built-in ones, and those that are registered there."""
    from kgent_tools import ToolRegistry
    from kgent_tools.pydantic_adapter import KgentToolset

    return KgentToolset.from_registry(ToolRegistry(kgent_run), None, kgent_run)


@pytest.fixture
def kgent_model() -> Callable[..., Any]:
    """Makes a Pydantic AI model that plays a script: `kgent_tools.pydantic_adapter.scripted_model`."""
    from kgent_tools.pydantic_adapter import scripted_model

    return scripted_model


@pytest.fixture
def kgent_calls(kgent_run: RunContext) -> Calls:
    """What is on record of the calls in `kgent_run`."""
    return Calls(kgent_run.run_dir)


# Of the older kind, which every pytest knows: this is loaded for tests that have nothing to do with it.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Adds the calls to the report of a test that failed."""
    report: pytest.TestReport = (yield).get_result()
    run = getattr(item, "funcargs", {}).get("kgent_run")
    if run is not None and call.when == "call" and report.failed:
        try:
            calls = str(Calls(run.run_dir))
        except Exception as error:  # the test may have harmed the log, or made another fixture of that name
            calls = f"cannot be read: {error!r}"
        report.sections.append(("Calls on record in kgent_run", calls))
