from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgent_tools import RunContext, ToolDefinition, ToolsConfig, build_toolsets

MakeContext = Callable[..., RunContext]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A project with one file, `notes.md`."""
    folder = tmp_path / "ws"
    folder.mkdir()
    (folder / "notes.md").write_text("one\ntwo\n", encoding="utf-8")
    return folder


@pytest.fixture
def make_context(tmp_path: Path, workspace: Path) -> Iterator[MakeContext]:
    """Makes runs on `workspace` from a config dict, and closes them."""
    made: list[RunContext] = []

    def make(config: dict[str, Any] | None = None, **options: Any) -> RunContext:
        parsed = ToolsConfig.from_dict(config or {})
        made.append(RunContext.create(tmp_path / "runs", workspace=workspace, config=parsed, **options))
        return made[-1]

    yield make
    for context in made:
        context.close()


@pytest.fixture
def context(make_context: MakeContext) -> RunContext:
    return make_context()


@pytest.fixture
def tools(context: RunContext) -> dict[str, ToolDefinition]:
    """The built-in tools of `context` by name."""
    return {str(tool.name): tool for tool in build_toolsets(context)}
