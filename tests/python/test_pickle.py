"""What may travel to another process does, and what may not says so."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Box, Ran

from kgent_tools import (
    EffectivePermissionPolicy,
    ErrorInfo,
    FileContent,
    KgentError,
    PermissionRule,
    RunContext,
    RunError,
    TextContent,
    ToolDefinition,
    ToolFailure,
    ToolRegistry,
    ToolResult,
    ToolsConfig,
    build_toolsets,
)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, {"limits": {"max_results": 7}}, runtime=[PermissionRule("*", "private/**", "deny")]) as made:
        made.put("a", "A\n")
        yield made


def trip(value: Any) -> Any:
    """There and back, with every protocol that is in use."""
    results = [pickle.loads(pickle.dumps(value, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    return results[-1]


def test_results(box: Box) -> None:
    made = ToolResult(
        ok=True,
        summary="s",
        data={"a": [1, 2.5, None, True, "\u2500"]},
        artifacts=["artifacts/x"],
        content=[TextContent("t"), FileContent("image/png", b"\x00\xff")],
    )
    failed = ToolResult(ok=False, summary="f", error=ErrorInfo("io", "m", "h", {"k": [1]}))
    for result in (made, failed, box.call("read_file", path="a"), box.call("read_file", path="../x")):
        back = trip(result)
        assert type(back) is ToolResult
        assert back.to_dict() == result.to_dict()
        assert [repr(part) for part in back.content] == [repr(part) for part in result.content]
        assert back.error == result.error
    first, second = trip(made).content
    assert (first.text, second.media_type, second.data) == ("t", "image/png", b"\x00\xff")


def test_errors_and_failures() -> None:
    error = ErrorInfo("not_found", "m", "h", {"k": 1})
    assert trip(error) == error
    failure = trip(ToolFailure("m", "h", "no_match"))
    assert (failure.message, failure.hint, failure.code) == ("m", "h", "no_match")
    assert str(trip(RunError("why"))) == "why"
    assert isinstance(trip(RunError("why")), KgentError)


def test_policies(box: Box) -> None:
    skill = {"id": "s", "permissions": {"filesystem_write": "deny"}}
    for policy in (
        box.policy,
        EffectivePermissionPolicy.merge(),
        EffectivePermissionPolicy.merge(config={"permissions": {"shell": "ask"}}, skills=[skill]),
    ):
        back = trip(policy)
        assert back == policy
        assert back.explain() == policy.explain()
        assert back.check("edit", "private/x").layer == policy.check("edit", "private/x").layer
    rule = PermissionRule("edit", "a/**", "deny")
    assert trip(rule) == rule


def test_a_forged_policy_is_refused(box: Box) -> None:
    for text in (
        "",
        "{}",
        "[]",
        '{"mounts": [], "layers": {"runtim": []}}',
        box.policy.to_json().replace("deny", "maybe"),
    ):
        with pytest.raises(KgentError):
            EffectivePermissionPolicy.from_json(text)


def test_configs(tmp_path: Path) -> None:
    config = ToolsConfig.from_dict({"limits": {"max_results": 7}, "permissions": {"shell": "ask"}})
    assert trip(config).to_dict() == config.to_dict()
    path = tmp_path / "kgent.toml"
    path.write_text("[limits]\nmax_results = 7\n", encoding="utf-8")
    assert trip(ToolsConfig.from_file(path)).to_dict() == ToolsConfig.from_file(path).to_dict()


def test_a_context_joins_the_same_run(box: Box) -> None:
    call = box.context.for_call(
        call_id="c", conversation_id="k", step=2, agent="me", trace=("ab" * 16, "cd" * 8), timeout_s=9
    )
    back = trip(call)
    assert type(back) is RunContext
    assert (back.run_id, back.run_dir, back.mounts, back.limits) == (
        box.context.run_id,
        box.context.run_dir,
        box.context.mounts,
        box.context.limits,
    )
    tools = {str(tool.name): tool for tool in build_toolsets(back, policy=trip(box.policy))}
    assert tools["read_file"].handler({"path": "a"}, back).ok
    record = box.records[-1]
    assert [record[key] for key in ("call_id", "conversation_id", "step", "agent")] == ["c", "k", 2, "me"]
    denied = tools["read_file"].handler({"path": "private/x"}, back)
    assert denied.error is not None
    assert denied.error.code == "denied"


def test_a_context_with_mounts(tmp_path: Path) -> None:
    with Box(tmp_path, mounts={"docs": (tmp_path / "ws-evil", "ro"), "data": (tmp_path / "outside", "rw")}) as box:
        assert trip(box.context).mounts == {
            "workspace": "rw",
            "deliverables": "rw",
            "artifacts": "ro",
            "skills": "ro",
            "docs": "ro",
            "data": "rw",
        }


def test_a_context_in_another_interpreter(box: Box, tmp_path: Path) -> None:
    (tmp_path / "pickle").write_bytes(pickle.dumps((box.context, box.policy)))
    code = """
import pickle, sys
from pathlib import Path
from kgent_tools import build_toolsets
context, policy = pickle.loads(Path(sys.argv[1]).read_bytes())
tools = {tool.name: tool for tool in build_toolsets(context, policy=policy)}
print(tools["read_file"].handler({"path": "a"}, context).data["content"].strip())
print(tools["read_file"].handler({"path": "private/a"}, context).error.code)
"""
    assert Ran(code, str(tmp_path / "pickle")).out == "A\ndenied\n"
    assert [record["seq"] for record in box.records] == [1, 2]


def test_a_context_whose_folders_are_others_now_is_refused(box: Box) -> None:
    pickled = pickle.dumps(box.context)
    box.ws.rename(box.root / "moved")
    with pytest.raises(KgentError):
        pickle.loads(pickled)
    box.ws.mkdir()
    with pytest.raises(RunError, match="mounts"):
        pickle.loads(pickled)


def test_built_in_definitions_travel_by_name(box: Box) -> None:
    for name, tool in box.tools.items():
        back = trip(tool)
        assert back.name == name
        assert back.input_schema == tool.input_schema


def awaited(box: Box) -> ToolDefinition:
    async def handler(args: Any, context: Any) -> ToolResult:
        return ToolResult(ok=True, summary="s")

    registry = ToolRegistry(box.context)
    registry.register({"later": ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)})
    return next(tool for tool in registry.materialize().definitions if tool.name == "later")


def test_what_does_not_travel(box: Box) -> None:
    def handler(args: Any, context: Any) -> ToolResult:
        return ToolResult(ok=True, summary="s")

    definition = ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)
    registry = ToolRegistry(box.context)
    registration = registry.register({"mine": definition})
    snapshot = registry.materialize()
    bound = next(tool for tool in snapshot.definitions if tool.name == "mine")
    pickled: list[str] = []
    pending = awaited(box).handler.begin({}, box.context, print)
    registrar = registry.registrar
    for value in (registry, registrar, snapshot, registration, definition, bound, bound.handler, pending):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            try:
                pickle.dumps(value, protocol)
            except TypeError:
                continue
            except Exception as error:
                pickled.append(f"{type(value).__name__} with protocol {protocol}: {error!r}")
            else:
                pickled.append(f"{type(value).__name__} with protocol {protocol}")
        with pytest.raises(TypeError):
            copy.deepcopy(value)
    assert pickled == []
    caught: list[BaseException] = []

    def trying(args: Any, context: Any) -> ToolResult:
        for value in (context, context.sandbox):
            try:
                pickle.dumps(value)
            except TypeError as error:
                caught.append(error)
        return ToolResult(ok=True, summary="s")

    registry.register({"trying": ToolDefinition(description="d", input_schema={"type": "object"}, handler=trying)})
    assert registry.materialize().call("trying", {}).ok
    assert len(caught) == 2
