"""The tests that the design card lists for these parts, by name."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Box, parse_lines

from kgent_tools import EffectivePermissionPolicy, PermissionRule, ToolsConfig


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        yield made


def test_runtime_deny_rules_win(tmp_path: Path) -> None:
    config = {"permissions": {"filesystem_write": True, "rules": [{"action": "*", "resource": "*", "effect": "allow"}]}}
    skill = {"id": "s", "permissions": {"filesystem_write": "allow"}}
    runtime = [PermissionRule("filesystem_write", "private/**", "deny")]
    with Box(tmp_path, config, runtime=runtime, skills=[skill]) as box:
        kept = box.put("private/f", "old")
        said = box.policy.check("edit", "private/f")
        assert (said.allowed, said.layer, said.effect) == (False, "runtime", "deny")
        result = box.call("write_file", path="private/f", content="new")
        assert result.error is not None
        assert (result.error.code, result.error.status) == ("denied", "blocked")
        assert kept.read_text(encoding="utf-8") == "old"
        permission = box.records[-1]["permission"]
        assert permission == {
            "action": "edit",
            "resource": "private/f",
            "effect": "deny",
            "layer": "runtime",
            "rule": permission["rule"],
        }
        assert "private/**" in permission["rule"]
        box.ok("write_file", path="public/f", content="new")


def test_runtime_deny_of_a_capability_wins(tmp_path: Path) -> None:
    runtime = [PermissionRule("filesystem_write", "*", "deny")]
    with Box(tmp_path, {"permissions": {"filesystem_write": "allow"}}, runtime=runtime) as box:
        assert box.policy.filesystem_write is False
        unfiltered = box.bind(EffectivePermissionPolicy.merge(context=box.context))
        assert set(unfiltered) >= {"grep_files", "list_files", "read_file", "write_file"}
        assert set(unfiltered) - set(box.tools) == {
            name for name, tool in unfiltered.items() if "filesystem_write" in tool.capabilities
        }


def test_sandbox_constraints_win(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "d").write_text("doc", encoding="utf-8")
    config = {
        "permissions": {"rules": [{"action": "*", "resource": "*", "effect": "allow"}]},
        "sandbox": {"read_only": ["vendor/**"], "hidden": ["*.sqlite"]},
    }
    with Box(tmp_path, config, mounts={"docs": (docs, "ro")}) as box:
        box.put("vendor/v", "v")
        box.put("x.sqlite", "db")
        assert box.read("docs/d") == "doc"
        assert box.code("write_file", path="docs/d", content="x") == "read_only"
        assert box.code("write_file", path="vendor/v", content="x") == "read_only"
        assert box.code("write_file", path="artifacts/a", content="x") == "read_only"
        assert box.code("read_file", path="x.sqlite") == "not_found"
        said = box.policy.check("edit", "docs/d")
        assert (said.allowed, said.layer) == (False, "sandbox")
        assert (docs / "d").read_text(encoding="utf-8") == "doc"


def test_skill_permissions_cannot_grant_alone(tmp_path: Path) -> None:
    everything = {name: "allow" for name in ("filesystem_delete", "shell", "network")}
    skill = {"id": "s", "permissions": everything}
    with Box(tmp_path, skills=[skill]) as box:
        policy = box.policy
        assert (policy.filesystem_delete, policy.shell, policy.network) == (False, False, False)
        assert (policy.filesystem_read, policy.filesystem_write, policy.memory_write) == (True, True, True)
        assert policy.check("shell", "ls").layer == "default"
    granting = {"id": "s", "permissions": {"rules": [{"action": "*", "resource": "*", "effect": "allow"}]}}
    denied = ToolsConfig.from_dict({"permissions": {"filesystem_write": "deny"}})
    merged = EffectivePermissionPolicy.merge(config=denied, skills=[granting])
    assert merged.filesystem_write is False
    assert merged.check("edit", "a").layer == "config"
    assert merged.check("read_secret", ".env").allowed is False


def test_a_skill_may_narrow(tmp_path: Path) -> None:
    skill = {"id": "s", "permissions": {"filesystem_write": "deny"}}
    merged = EffectivePermissionPolicy.merge(skills=[skill])
    assert (merged.filesystem_write, merged.check("edit", "a").layer) == (False, "skill")


def test_destructive_operations_are_off_by_default() -> None:
    policy = EffectivePermissionPolicy.merge()
    assert policy.effect("filesystem_delete") == "deny"
    enabled = EffectivePermissionPolicy.merge(config={"permissions": {"filesystem_delete": "ask", "network": True}})
    assert (enabled.effect("filesystem_delete"), enabled.filesystem_delete, enabled.network) == ("ask", False, True)


def test_filesystem_read_obeys_max_bytes(tmp_path: Path) -> None:
    with Box(tmp_path, {"limits": {"max_file_bytes": 1000}}) as box:
        lines = "".join(f"line {n}\n" for n in range(2000))
        box.put("big", lines)
        data = box.ok("read_file", path="big").data
        assert data is not None
        assert len(data["content"].encode()) <= 1000
        assert lines.startswith(data["content"])
        assert data["truncated"] is True
        assert data["bytes"] == len(lines)
        assert data["next_offset"] == data["lines"] + 1
        assert box.code("write_file", path="new", content="x" * 1001) == "too_large"
        assert not (box.ws / "new").exists()


def test_write_outside_sandbox_is_blocked(box: Box) -> None:
    for path in ("../outside/new", str(box.outside / "new"), "/kgent_probe", "a/../../outside/new", "~/new"):
        result = box.call("write_file", path=path, content="x")
        assert result.error is not None
        assert (result.error.code, result.error.status) == ("outside_sandbox", "blocked")
    assert sorted(p.name for p in box.outside.iterdir()) == ["secret"]
    assert list(box.ws.iterdir()) == []
    assert not Path("/kgent_probe").exists()


def test_write_under_deliverables_succeeds(box: Box) -> None:
    result = box.ok("write_file", path="deliverables/a/report.md", content="# Report\n")
    assert result.data is not None
    assert (result.data["path"], result.data["created"], result.data["bytes"]) == ("deliverables/a/report.md", True, 9)
    assert (box.run_dir / "deliverables/a/report.md").read_bytes() == b"# Report\n"
    assert box.read("deliverables/a/report.md") == "# Report\n"


def test_grep_returns_bounded_output(tmp_path: Path) -> None:
    limits = {"max_output_lines": 100, "max_output_bytes": 8000, "max_results": 500, "max_line_bytes": 200}
    with Box(tmp_path, {"limits": limits}) as box:
        for n in range(40):
            box.put(f"f{n:02}", f"needle {'x' * 500}\n" * 50)
        result = box.ok("grep_files", pattern="needle")
        text = "".join(part.text for part in result.content)  # type: ignore[union-attr]
        assert len(text.encode()) <= 8000
        assert text.count("\n") <= 100
        assert result.data is not None
        assert result.data["truncated"] is True
        assert len(result.data["matches"]) <= 500
        assert len(json.dumps(result.data["matches"])) <= 2 * 8000
        assert all(len(match["text"]) <= 200 + 2 and "needle" in match["text"] for match in result.data["matches"])
        assert len(result.artifacts) == 1


def test_tool_call_record_contains_duration_status_summary(box: Box) -> None:
    box.put("a", "1\n2\n")
    box.ok("read_file", path="a")
    record = box.records[-1]
    assert record["duration_us"] > 0
    assert record["status"] == "completed"
    assert record["summary"] == "read a: 2 lines from line 1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", record["started_at"])
    assert {key: record[key] for key in ("v", "seq", "run_id", "tool", "scope", "args", "error", "call_id")} == {
        "v": 1,
        "seq": 1,
        "run_id": box.context.run_id,
        "tool": "read_file",
        "scope": "location",
        "args": {"path": "a"},
        "error": None,
        "call_id": None,
    }
    assert (record["repairs"], record["artifacts"], record["truncated"], record["bytes_in"]) == ([], [], False, 4)


def test_the_caller_s_ids_are_on_record(box: Box) -> None:
    box.put("a", "1\n")
    trace = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    call = box.context.for_call(call_id="c/../1", conversation_id="k", step=3, agent="me", trace=trace)
    box.tools["read_file"].handler({"path": "a"}, call)
    box.tools["read_file"].handler({"path": "a"}, call)
    first, second = box.records
    keys = ("call_id", "conversation_id", "step", "agent", "trace_id", "span_id")
    assert [first[key] for key in keys] == ["c/../1", "k", 3, "me", *trace]
    assert first["id"] != second["id"]
    assert [event["call_id"] for event in box.events if event["type"] == "tool.completed"] == ["c/../1", "c/../1"]


def test_minimal_run_can_write_deliverable_through_filesystem_tool(tmp_path: Path) -> None:
    with Box(tmp_path) as box:
        box.ok("write_file", path="deliverables/report.md", content="done\n")
        run = box.run_dir
    assert (run / "deliverables/report.md").read_bytes() == b"done\n"
    events = parse_lines((run / "events.jsonl").read_bytes())
    assert [e["type"] for e in events] == ["run.created", "tool.started", "tool.completed", "run.closed"]
    target = {"path": "deliverables/report.md", "before": None, "after": {"bytes": 5}}
    assert events[1]["data"] == {"tool": "write_file", "targets": [target]}
    assert [e["seq"] for e in events] == [1, 2, 3, 4]
    assert sorted(p.name for p in run.iterdir()) == [
        "archive",
        "artifacts",
        "deliverables",
        "events.jsonl",
        "logs",
        "skills",
    ]


def test_tool_rejection_writes_event_and_error_log(tmp_path: Path) -> None:
    with Box(tmp_path, runtime=[PermissionRule("edit", "private/**", "deny")]) as box:
        result = box.call("write_file", path="private/x", content="SECRET CONTENT")
        assert result.error is not None
        record, error = box.records[-1], box.errors[-1]
        event = box.events[-1]
        assert (event["type"], event["id"], event["data"]["code"]) == ("tool.blocked", record["id"], "denied")
        assert (error["code"], error["tool"], error["id"]) == ("denied", "write_file", record["id"])
        assert error["message"] == result.error.message
        assert "tool.started" not in [e["type"] for e in box.events]
        assert not (box.ws / "private").exists()
