"""`ask`: what the host is shown, and that its grant lifts that and nothing else (rule 28 of the threat model)."""

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Box, in_child, text_of

from kgent_tools import (
    EffectivePermissionPolicy,
    ErrorInfo,
    Grant,
    PermissionRule,
    PolicyError,
    RunContext,
    ToolDefinition,
    ToolRegistry,
    ToolResult,
)


def ask(action: str, resource: str = "*") -> PermissionRule:
    return PermissionRule(action, resource, "ask")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, runtime=[ask("edit"), ask("read_file", "private/**"), ask("list_files", "private")]) as made:
        made.put("a.txt", "old\n")
        made.put("private/k", "KEY\n")
        yield made


def refused(box: Box, tool: str, **args: Any) -> ErrorInfo:
    result = box.call(tool, **args)
    assert result.error is not None
    assert result.error.code == "approval_required", result
    return result.error


def approval(error: ErrorInfo) -> dict[str, Any]:
    assert error.details is not None
    return error.details["approval"]


def with_grant(box: Box, grant: Grant, tool: str, **args: Any) -> ToolResult:
    result = box.tools[tool].handler(args, box.context.for_call(grant=grant))
    box.check_record(tool, result)
    return result


def code(result: ToolResult) -> str:
    return "ok" if result.error is None else result.error.code


def test_the_host_is_told_all_that_it_decides_on(box: Box) -> None:
    error = refused(box, "write_file", path="./a.txt", content="new\n")
    asked = approval(error)
    assert asked["asks"] == [{"action": "edit", "resource": "a.txt"}]
    assert (asked["run_id"], asked["tool"]) == (box.context.run_id, "write_file")
    assert asked["targets"] == [{"path": "a.txt", "state": box.ok("read_file", path="a.txt").data["hash"]}]  # type: ignore[index]
    assert asked["preview"] == "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-old\n+new\n"
    assert asked["preview_omitted_bytes"] == 0
    assert error.message == "`edit` on `a.txt` needs the host's approval"
    assert error.details is not None
    assert (error.details["layer"], error.details["rule"]) == ("runtime", "runtime: ask edit *")
    blocked = box.records[-2]
    assert blocked["permission"] == {
        "action": "edit",
        "resource": "a.txt",
        "effect": "ask",
        "layer": "runtime",
        "rule": "runtime: ask edit *",
    }
    requested = [event["data"] for event in box.events if event["type"] == "permission.requested"]
    assert requested == [{"tool": "write_file", "asks": asked["asks"]}]
    assert box.read("a.txt") == "old\n"


def test_a_granted_call_runs_once_and_is_on_record(box: Box) -> None:
    change = {"path": "a.txt", "content": "new\n"}
    grant = box.context.grant(refused(box, "write_file", **change))
    assert code(with_grant(box, grant, "write_file", **change)) == "ok"
    assert box.read("a.txt") == "new\n"
    done = next(record for record in box.records if record["status"] == "completed" and record["tool"] == "write_file")
    assert done["permission"] == {
        "action": "edit",
        "resource": "a.txt",
        "effect": "allow",
        "layer": "grant",
        "rule": "runtime: ask edit *",
    }
    (granted,) = [event["data"] for event in box.events if event["type"] == "permission.granted"]
    assert granted == {
        "grant": grant.id,
        "tool": "write_file",
        "asks": [{"action": "edit", "resource": "a.txt"}],
        "once": True,
        "expires_s": 600.0,
    }
    box.put("a.txt", "old\n")
    assert code(with_grant(box, grant, "write_file", **change)) == "approval_required"
    assert box.read("a.txt") == "old\n"


def test_a_grant_for_more_than_one_call_holds_until_it_expires(box: Box) -> None:
    error = refused(box, "read_file", path="private/k")
    grant = box.context.grant(error.details or {}, once=False)
    assert [text_of(with_grant(box, grant, "read_file", path="private/k")).strip() for _ in "12"] == ["1\tKEY"] * 2
    over = box.context.grant(error, once=False, expires_s=0.0)
    assert code(with_grant(box, over, "read_file", path="private/k")) == "approval_required"


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("write_file", {"path": "a.txt", "content": "other\n"}),
        ("write_file", {"path": "b.txt", "content": "new\n"}),
        ("write_file", {"path": "a.txt", "content": "new\n", "expected_hash": "b3:" + "0" * 32}),
        ("read_file", {"path": "private/k"}),
    ],
)
def test_a_grant_is_for_its_own_tool_and_arguments(box: Box, tool: str, args: dict[str, Any]) -> None:
    grant = box.context.grant(refused(box, "write_file", path="a.txt", content="new\n"))
    assert code(with_grant(box, grant, tool, **args)) == "approval_required"
    assert box.read("a.txt") == "old\n"


def test_a_file_changed_after_asking_asks_again(box: Box) -> None:
    change = {"path": "a.txt", "content": "new\n"}
    grant = box.context.grant(refused(box, "write_file", **change))
    box.put("a.txt", "theirs\n")
    again = with_grant(box, grant, "write_file", **change)
    assert again.error is not None
    assert "-theirs\n+new" in approval(again.error)["preview"]
    assert box.read("a.txt") == "theirs\n"


def test_a_file_made_or_removed_after_asking_asks_again(box: Box) -> None:
    for path, disturb in (("n.txt", lambda: box.put("n.txt", "x")), ("a.txt", lambda: (box.ws / "a.txt").unlink())):
        grant = box.context.grant(refused(box, "write_file", path=path, content="new\n"))
        disturb()
        assert code(with_grant(box, grant, "write_file", path=path, content="new\n")) == "approval_required"


def test_a_link_changed_after_asking_asks_again(box: Box) -> None:
    link = box.ws / "link"
    link.symlink_to("a.txt")
    box.put("b.txt", "old\n")
    error = refused(box, "write_file", path="link", content="new\n")
    assert [target["path"] for target in approval(error)["targets"]] == ["a.txt"]
    assert approval(error)["asks"] == [{"action": "edit", "resource": name} for name in ("link", "a.txt")]
    grant = box.context.grant(error)
    link.unlink()
    link.symlink_to("b.txt")
    assert code(with_grant(box, grant, "write_file", path="link", content="new\n")) == "approval_required"
    assert (box.read("a.txt"), box.read("b.txt")) == ("old\n", "old\n")


def test_a_link_that_leads_to_what_is_asked_is_asked_before_it_is_read(box: Box) -> None:
    (box.ws / "link").symlink_to("private/k")
    error = refused(box, "read_file", path="link")
    assert "KEY" not in json.dumps(error.details)
    assert code(with_grant(box, box.context.grant(error), "read_file", path="link")) == "ok"


def test_a_grant_never_lifts_a_deny(tmp_path: Path) -> None:
    rules = [ask("edit"), PermissionRule("edit", "b.txt", "deny")]
    with Box(tmp_path, runtime=rules) as box:
        grant = box.context.grant(refused(box, "write_file", path="a.txt", content="x"))
        denied = EffectivePermissionPolicy.merge(context=box.context, runtime=[PermissionRule("edit", "a.txt", "deny")])
        handler = box.bind(denied)["write_file"].handler
        result = handler({"path": "a.txt", "content": "x"}, box.context.for_call(grant=grant))
        assert box.check_record("write_file", result)["permission"]["rule"] == "runtime: deny edit a.txt"
        assert code(result) == "denied"
        assert box.code("write_file", path="b.txt", content="x") == "denied"
        assert not list(box.ws.iterdir())


def test_a_grant_of_one_call_is_used_up_by_one_of_many_processes(box: Box) -> None:
    grant = box.context.grant(refused(box, "read_file", path="private/k"))
    outcomes = box.ws / "outcomes"
    outcomes.mkdir()

    def replay() -> None:
        result = box.tools["read_file"].handler({"path": "private/k"}, box.context.for_call(grant=grant))
        (outcomes / f"{os.getpid()}-{code(result)}").touch()

    for _ in range(4):
        in_child(replay)
    replay()
    assert sorted(path.name.split("-")[1] for path in outcomes.iterdir()) == ["approval_required"] * 4 + ["ok"]


def test_a_forged_event_grants_nothing(box: Box) -> None:
    grant = box.context.grant(refused(box, "read_file", path="private/k"))
    with (box.run_dir / "events.jsonl").open("a", encoding="utf-8") as events:
        events.write(json.dumps(box.events[-1]) + "\n")
    assert code(box.tools["read_file"].handler({"path": "private/k"}, box.context)) == "approval_required"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(grant)
    travelled = pickle.loads(pickle.dumps(box.context.for_call(call_id="c", grant=grant)))
    assert code(box.tools["read_file"].handler({"path": "private/k"}, travelled)) == "approval_required"
    travelled.close()


def test_a_request_of_another_run_or_of_another_shape_is_refused(box: Box, tmp_path: Path) -> None:
    error = refused(box, "read_file", path="private/k")
    with RunContext.create(tmp_path / "runs") as other, pytest.raises(PolicyError, match="belongs to run"):
        other.grant(error)
    for request in ({}, {"approval": {}}, {"approval": 1}, {**approval(error), "extra": 1}, "yes", None):
        with pytest.raises(PolicyError, match="no request for approval"):
            box.context.grant(request)  # type: ignore[arg-type]
    for seconds in (-1.0, float("nan"), 1e300):
        with pytest.raises(PolicyError):
            box.context.grant(error, expires_s=seconds)


def test_the_last_request_of_a_call_id_is_kept(box: Box) -> None:
    context = box.context.for_call(call_id="c1")
    handler = box.tools["read_file"].handler
    assert box.context.requested("c1") is None
    result = handler({"path": "private/k"}, context)
    assert result.error is not None
    assert box.context.requested("c1") == approval(result.error)
    for number in range(300):
        handler({"path": "private/k"}, box.context.for_call(call_id=f"other{number}"))
    assert box.context.requested("c1") is None


def test_a_secret_may_be_replaced_and_is_not_shown(box: Box) -> None:
    box.put(".env", "TOKEN=canary\n")
    error = refused(box, "write_file", path=".env", content="TOKEN=new\n")
    assert "canary" not in json.dumps(error.details)
    assert approval(error)["preview"] == "TOKEN=new\n"
    assert code(with_grant(box, box.context.grant(error), "write_file", path=".env", content="TOKEN=new\n")) == "ok"


def test_a_preview_deceives_nobody_and_counts_what_it_leaves_out(box: Box) -> None:
    error = refused(box, "write_file", path="n", content="a\u202eb\x1b[2J\n" + "x" * 9000)
    asked = approval(error)
    assert "+a\\u{202e}b\\u{1b}[2J\n" in asked["preview"]
    assert len(asked["preview"].encode()) < 4200
    assert asked["preview_omitted_bytes"] > 4900


def test_a_python_tool_asks_and_what_its_handler_meets_is_asked_too(box: Box) -> None:
    seen: list[str] = []

    def fetch(args: dict[str, Any], context: Any) -> ToolResult:
        seen.append(context.sandbox.read_bytes("private/k").decode())
        return ToolResult(ok=True, summary="fetched")

    registry = ToolRegistry(box.context)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    registry.register({"fetch": ToolDefinition(description="x", input_schema=schema, handler=fetch)})
    rules = [ask("fetch"), ask("read_file", "private/**")]
    snapshot = registry.materialize(EffectivePermissionPolicy.merge(context=box.context, runtime=rules))
    first = snapshot.call("fetch", {"n": 1})
    assert first.error is not None
    assert approval(first.error)["asks"] == [{"action": "fetch", "resource": "fetch"}]
    assert approval(first.error)["preview"] == '{\n  "n": 1\n}'
    handler = next(tool for tool in snapshot.definitions if tool.name == "fetch").handler
    second = handler({"n": 1}, box.context.for_call(grant=box.context.grant(first.error)))
    assert second.error is not None
    assert [one["action"] for one in approval(second.error)["asks"]] == ["fetch", "fetch", "read_file"]
    assert not seen
    third = handler({"n": 1}, box.context.for_call(grant=box.context.grant(second.error)))
    assert (code(third), seen) == ("ok", ["KEY\n"])


def test_walks_leave_out_what_is_asked(box: Box) -> None:
    assert "KEY" not in box.text("grep_files", pattern="KEY")
    assert refused(box, "list_files", path="private")
