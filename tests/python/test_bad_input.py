"""Bad input gets an error that says what to do: which field, what is wrong, what to send instead."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Box, in_child

from kgent_tools import ConfigError, KgentError, RunContext, RunError, ToolsConfig, build_toolsets


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        made.put("f", "one\ntwo\n")
        made.put("bin", b"\x7fELF\x00\x01")
        made.put("d/x", "")
        yield made


# tool, arguments, code, what the message names, what the hint (or the message, where it lists them) says to send
WRONG: list[tuple[str, Any, str, str, str]] = [
    # missing and unknown names
    ("read_file", {}, "invalid_args", "`path`", "path"),
    ("write_file", {"path": "n"}, "invalid_args", "`content`", "content"),
    ("write_file", {"content": "x"}, "invalid_args", "`path`", "path"),
    ("grep_files", {}, "invalid_args", "`pattern`", "pattern"),
    ("read_file", {"path": "f", "line_limit": 1}, "invalid_args", "`line_limit`", "path, offset, limit"),
    ("grep_files", {"pattern": "x", "dir": "sub"}, "invalid_args", "`dir`", "pattern, path, include"),
    ("write_file", {"path": "n", "content": "x", "dry_run": True}, "invalid_args", "`dry_run`", "path, content"),
    ("write_file", {"Path": "n", "content": "x"}, "invalid_args", "`Path`", "path, content"),
    ("list_files", {"path": ".", "reason": "I want to"}, "invalid_args", "`reason`", "path, depth, pattern"),
    # wrong types
    ("read_file", {"path": 5}, "invalid_args", "`path`", "text"),
    ("read_file", {"path": ["f"]}, "invalid_args", "`path`", "text"),
    ("read_file", {"path": None}, "invalid_args", "`path`", "null"),
    ("read_file", {"path": True}, "invalid_args", "`path`", "text"),
    ("read_file", {"path": "f", "offset": "first"}, "invalid_args", "`offset`", "integer"),
    ("read_file", {"path": "f", "offset": 1.5}, "invalid_args", "`offset`", "integer"),
    ("read_file", {"path": "f", "limit": True}, "invalid_args", "`limit`", "integer"),
    ("read_file", {"path": "f", "limit": []}, "invalid_args", "`limit`", "integer"),
    ("read_file", {"path": "f", "offset": -1}, "invalid_args", "`offset`", "integer"),
    ("read_file", {"path": "f", "offset": "\u0661"}, "invalid_args", "`offset`", "integer"),
    ("write_file", {"path": "n", "content": 5}, "invalid_args", "`content`", "text"),
    ("write_file", {"path": "n", "content": {"a": 1}}, "invalid_args", "`content`", "text"),
    ("write_file", {"path": "n", "content": ["a"]}, "invalid_args", "`content`", "text"),
    ("list_files", {"hidden": "yes"}, "invalid_args", "`hidden`", "true or false"),
    ("list_files", {"hidden": 1}, "invalid_args", "`hidden`", "true or false"),
    ("list_files", {"depth": "deep"}, "invalid_args", "`depth`", "integer"),
    ("grep_files", {"pattern": "x", "output": "lines"}, "invalid_args", "`output`", "content, files, count"),
    ("grep_files", {"pattern": ["x"]}, "invalid_args", "`pattern`", "text"),
    # values out of range
    ("read_file", {"path": "f", "offset": 0}, "invalid_args", "`offset`", "from 1"),
    ("read_file", {"path": "f", "limit": 0}, "invalid_args", "`limit`", "from 1"),
    ("read_file", {"path": "f", "offset": 3}, "invalid_args", "`offset`", "1 to 2"),
    ("grep_files", {"pattern": "x", "context": 21}, "invalid_args", "`context`", "20"),
    ("list_files", {"depth": 0}, "invalid_args", "`depth`", "1"),
    ("read_file", {"path": ""}, "invalid_args", "path", "`.`"),
    ("grep_files", {"pattern": ""}, "invalid_args", "`pattern`", "list_files"),
    ("grep_files", {"pattern": "x", "include": ""}, "invalid_args", "`include`", "glob"),
    # what is there is not what was meant
    ("read_file", {"path": "nope"}, "not_found", "`nope`", "list_files"),
    ("read_file", {"path": "no/such/folder/f"}, "not_found", "`no/such/folder/f`", "list_files"),
    ("list_files", {"path": "nope"}, "not_found", "`nope`", "list_files"),
    ("grep_files", {"pattern": "x", "path": "nope"}, "not_found", "`nope`", "list_files"),
    ("read_file", {"path": "d"}, "is_directory", "`d`", "list_files"),
    ("read_file", {"path": "."}, "is_directory", "`.`", "list_files"),
    ("write_file", {"path": "d", "content": "x"}, "is_directory", "`d`", ""),
    ("write_file", {"path": ".", "content": "x"}, "is_directory", "`.`", ""),
    ("list_files", {"path": "f"}, "not_a_directory", "`f`", "read_file"),
    ("read_file", {"path": "f/g"}, "not_a_directory", "`f/g`", ""),
    ("write_file", {"path": "f/g", "content": "x"}, "not_a_directory", "`f/g`", ""),
    ("read_file", {"path": "bin"}, "binary", "`bin`", "text"),
    # patterns
    ("grep_files", {"pattern": "(?<=a)b"}, "invalid_pattern", "`pattern`", "literal"),
    ("grep_files", {"pattern": r"(a)\1"}, "invalid_pattern", "`pattern`", "literal"),
    ("grep_files", {"pattern": "["}, "invalid_pattern", "`pattern`", "literal"),
    ("grep_files", {"pattern": "*"}, "invalid_pattern", "`pattern`", "literal"),
    ("grep_files", {"pattern": r"(\w{1,1000}){1000}"}, "invalid_pattern", "`pattern`", "literal"),
    ("grep_files", {"pattern": "x" * 100_000}, "invalid_pattern", "`pattern`", "4096"),
    ("grep_files", {"pattern": "a\nb", "literal": True}, "invalid_pattern", "`pattern`", "line"),
    ("grep_files", {"pattern": "a\\nb"}, "invalid_pattern", "`pattern`", ""),
    ("grep_files", {"pattern": "x", "include": "a["}, "invalid_pattern", "`include`", "[[]"),
    ("list_files", {"pattern": "{a"}, "invalid_pattern", "`pattern`", "{a,b}"),
    # what is not allowed
    ("read_file", {"path": "../x"}, "outside_sandbox", "`../x`", "workspace"),
    ("read_file", {"path": "/etc/passwd"}, "outside_sandbox", "`/etc/passwd`", "workspace"),
    ("write_file", {"path": ".git/x", "content": ""}, "read_only", "`.git/x`", ""),
    ("write_file", {"path": "artifacts/x", "content": ""}, "read_only", "`artifacts/x`", "deliverables"),
    ("read_file", {"path": ".env"}, "denied", "`.env`", ""),
    # the whole arguments
    ("read_file", [], "invalid_args", "arguments", "object"),
    ("read_file", 5, "invalid_args", "arguments", "object"),
    ("read_file", None, "invalid_args", "arguments", "object"),
    ("read_file", "f", "invalid_args", "JSON", ""),
    ("read_file", '["f"]', "invalid_args", "arguments", "object"),
    ("read_file", '{"path": "f",}', "invalid_args", "", "name"),
    ("read_file", '{"path": "f"} x', "invalid_args", "", "nothing more"),
    ("read_file", '{"path": "f", "path": "g"}', "invalid_args", "path", "twice"),
]


@pytest.mark.parametrize(("tool", "args", "code", "field", "send"), WRONG, ids=[f"{w[0]}-{w[1]!r}"[:60] for w in WRONG])
def test_bad_input_says_what_to_do(box: Box, tool: str, args: Any, code: str, field: str, send: str) -> None:
    before = sorted(os.listdir(box.ws))
    result = box.tools[tool].handler({} if args == {} else args, box.context)
    box.check_record(tool, result)
    error = result.error
    assert error is not None, f"it was let through: {result}"
    assert error.code == code
    assert field in error.message
    said = f"{error.message} {error.hint or ''}"
    assert send in said
    assert result.summary.startswith(f"{code}: ")
    assert len(error.message) <= 500
    assert "\n" not in error.message
    assert not re.search(r"line \d+ column|serde|Some\(|Error\(|\bu64\b|usize", said)
    assert str(box.root) not in said
    assert sorted(os.listdir(box.ws)) == before
    assert (result.data, result.artifacts) == (None, [])


@pytest.mark.parametrize(("tool", "args", "code"), [w[:3] for w in WRONG if w[2] not in ("denied", "invalid_args")])
def test_every_other_failure_has_a_hint(box: Box, tool: str, args: Any, code: str) -> None:
    error = box.call(tool, args).error
    assert error is not None
    assert error.hint, f"{tool} {args!r}: {error}"
    assert error.mendable == (code not in ("outside_sandbox", "read_only", "denied"))


def test_too_large(tmp_path: Path) -> None:
    with Box(tmp_path, {"limits": {"max_file_bytes": 100}}) as box:
        error = box.call("write_file", path="n", content="x" * 101).error
        assert error is not None
        assert (error.code, error.hint is not None) == ("too_large", True)
        assert "`content`" in error.message
        assert "101" in error.message
        assert "100" in error.message


def test_did_you_mean_nothing_that_is_not_asked_for(box: Box) -> None:
    """Look-alikes are told apart (C80): exact bytes only."""
    box.put("cafe\u0301.txt", "decomposed")
    assert box.code("read_file", path="caf\u00e9.txt") == "not_found"
    box.ok("write_file", path="caf\u00e9.txt", content="composed")
    assert (box.read("cafe\u0301.txt"), box.read("caf\u00e9.txt")) == ("decomposed", "composed")


def test_c29_surrogates(box: Box) -> None:
    handler = box.tools["write_file"].handler
    whole = handler('{"path":"e.txt","content":"\\ud83c\\udf78"}', box.context)
    assert whole.ok
    assert (box.ws / "e.txt").read_bytes() == b"\xf0\x9f\x8d\xb8"
    box.new()
    for args in ('{"path":"e2.txt","content":"x\\ud83c"}', {"path": "e2.txt", "content": "x\ud83c"}):
        error = box.call("write_file", args).error
        assert error is not None
        assert error.code == "invalid_args"
        assert "content" in error.message
        assert "surrogate" in error.message
    for args in ('{"path":"e2.txt","content":"\\udf78\\ud83c"}', '{"path":"\\ud83cx","content":"x"}'):
        assert box.code("write_file", args) == "invalid_args"
    assert box.code("grep_files", {"pattern": "x\ud83c"}) == "invalid_args"
    assert not (box.ws / "e2.txt").exists()


SHAPES = [
    {"path": "f", "offset": 2, "limit": 1},
    {"path": "f", "offset": "2", "limit": "1"},
    {"path": "f", "offset": 2.0, "limit": 1.0},
    '{"path": "f", "offset": 2, "limit": 1}',
    '{"path": "f", "offset": "2", "limit": 1.0}',
    ' {"path":"\\u0066","offset":2e0,"limit":1} ',
]


@pytest.mark.parametrize("args", SHAPES, ids=str)
def test_c60_the_same_call_in_other_shapes(box: Box, args: Any) -> None:
    result = box.ok("read_file", args)
    assert result.data is not None
    assert (result.data["content"], result.data["offset"], result.data["lines"]) == ("two\n", 2, 1)
    repaired = box.records[-1]["repairs"]
    plain = args is SHAPES[0] or args is SHAPES[3]
    assert bool(repaired) == (not plain)
    assert box.records[-1]["args"]["path"] == "f"


def test_c60_null_means_absent(box: Box) -> None:
    assert box.ok("read_file", path="f", offset=None, limit=None).data == box.ok("read_file", path="f").data
    flags = {"path": None, "depth": None, "pattern": None, "hidden": None, "ignored": None}
    assert box.ok("list_files", flags).data == box.ok("list_files", {}).data
    for text in ("true", "false"):
        same = box.ok("list_files", hidden=text == "true").data
        assert box.ok("list_files", hidden=text).data == same


@pytest.mark.parametrize(
    "content", ["[1,2]", '{"a":1}', "null", "true", "5", '"quoted"', "", " ", "\\n", "$&", "%s {0}"]
)
def test_c60_text_is_never_parsed(box: Box, content: str) -> None:
    box.ok("write_file", path="j", content=content)
    assert (box.ws / "j").read_text(encoding="utf-8") == content
    box.ok("write_file", json.dumps({"path": "j2", "content": content}))
    assert (box.ws / "j2").read_text(encoding="utf-8") == content


def test_c60_the_whole_arguments_twice_encoded(box: Box) -> None:
    args = json.dumps(json.dumps({"path": "f"}))
    result = box.call("read_file", args)
    assert result.ok or (result.error is not None and result.error.code == "invalid_args")


def test_c61_nothing_is_written_by_a_call_with_an_invented_argument(box: Box) -> None:
    for extra in (
        {"dry_run": True},
        {"Content": "y"},
        {"path ": "n"},
        {"": 1},
        {"reason": None},
        {"expected-hash": "x"},
    ):
        error = box.call("write_file", {"path": "n", "content": "x", **extra}).error
        assert error is not None
        assert error.code == "invalid_args"
        assert next(iter(extra)) in error.message
        assert "expected_hash" in error.message, "the accepted names are listed"
    assert not (box.ws / "n").exists()


def test_expected_hash(box: Box) -> None:
    data = box.ok("read_file", path="f").data
    assert data is not None
    seen = data["hash"]
    assert re.fullmatch("b3:[0-9a-f]{32}", seen)
    for wrong in ("b3:" + "0" * 32, seen[:10], seen[:-1], "", seen.upper()):
        error = box.call("write_file", path="f", content="x", expected_hash=wrong).error
        assert error is not None
        assert error.code in ("stale", "invalid_args")
    assert box.code("write_file", path="absent", content="x", expected_hash=seen) == "stale"
    assert not (box.ws / "absent").exists()
    assert box.read("f") == "one\ntwo\n"
    written = box.ok("write_file", path="f", content="one\n2\n", expected_hash=seen).data
    assert written is not None
    assert (written["created"], written["bytes"]) == (False, 6)
    assert written["diff"] == "--- f\n+++ f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    again = box.ok("read_file", path="f").data
    assert again is not None
    assert again["hash"] == written["hash"]
    assert box.code("write_file", path="f", content="x", expected_hash=seen) == "stale"


def test_schemas_name_every_argument_and_its_limits(box: Box) -> None:
    for tool in box.tools.values():
        schema = tool.input_schema
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        for name, field in schema["properties"].items():
            assert field.get("description"), f"{tool.name}.{name}"
    assert box.tools["read_file"].input_schema["required"] == ["path"]
    assert box.tools["write_file"].input_schema["required"] == ["path", "content"]
    assert "1-based" in box.tools["read_file"].input_schema["properties"]["offset"]["description"]


# config, what the message names
CONFIGS: list[tuple[Any, str]] = [
    ({"permision": {}}, "permision"),
    ({"permissions": {"filesystem_wirte": False}}, "permissions.filesystem_wirte"),
    ({"permissions": {"shell": "yes"}}, "permissions.shell"),
    ({"permissions": {"shell": 1}}, "permissions.shell"),
    ({"permissions": {"shell": None}}, "permissions.shell"),
    ({"permissions": {"rules": {}}}, "permissions.rules"),
    ({"permissions": {"rules": ["deny"]}}, "permissions.rules"),
    ({"permissions": {"rules": [{"action": "*", "resource": "x"}]}}, "effect"),
    ({"permissions": {"rules": [{"action": "*", "resource": "x", "effect": "Deny"}]}}, "effect"),
    ({"permissions": {"rules": [{"action": "*", "resource": "x", "effect": "deny", "why": ""}]}}, "why"),
    ({"permissions": {"rules": [{"action": "*", "resource": "a[", "effect": "deny"}]}}, "permissions.rules"),
    ({"permissions": {"rules": [{"action": "*", "resource": "a", "effect": "deny", "match": ["b"]}]}}, "rule"),
    ({"sandbox": {"hard_links": "never"}}, "sandbox.hard_links"),
    ({"sandbox": {"hidden": "*.sqlite"}}, "sandbox.hidden"),
    ({"sandbox": {"hidden": [1]}}, "sandbox.hidden"),
    ({"sandbox": {"read_only": ["a["]}}, "sandbox.read_only"),
    ({"sandbox": {"require_read_before_write": "true"}}, "sandbox.require_read_before_write"),
    ({"memory": {"write_mode": "on"}}, "memory.write_mode"),
    ({"memory": {"timeout_s": -1}}, "memory.timeout_s"),
    ({"memory": {"client": "no"}}, "memory.client"),
    ({"skills": {"roots": "skills"}}, "skills.roots"),
    ({"skills": {"max_skills": 1.5}}, "skills.max_skills"),
    ({"limits": {"max_output_lines": "2000"}}, "limits.max_output_lines"),
    ({"limits": {"max_output_lines": 0}}, "limits.max_output_lines"),
    ({"limits": {"max_output_lines": -1}}, "limits.max_output_lines"),
    ({"limits": {"max_output_lines": True}}, "limits.max_output_lines"),
    ({"limits": {"max_file_bytes": 2**70}}, "max_file_bytes"),
    ({"limits": {"timeout_s": 0}}, "limits.timeout_s"),
    ({"limits": {"timeout_s": float("inf")}}, "timeout_s"),
    ({"limits": {"timeout_s": float("nan")}}, "timeout_s"),
    ({"limits": {"timeout": 5}}, "limits.timeout"),
    ({"limits": 5}, "limits"),
    ({"records": {"durability": "high"}}, "records.durability"),
    ({"records": {"redact": ["("]}}, "records.redact"),
    ({"records": {"redact": [".*"]}}, "records.redact"),
    ({"records": {"audit": True}}, "records.audit"),
    ([], "config"),
    ("x", "config"),
    ({1: 2}, ""),
]


@pytest.mark.parametrize(("config", "key"), CONFIGS, ids=[repr(c[0])[:60] for c in CONFIGS])
def test_a_wrong_config_names_the_key_and_leaves_nothing(tmp_path: Path, config: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ToolsConfig.from_dict(config)
    assert isinstance(caught.value, KgentError)
    assert key in str(caught.value)
    with pytest.raises(KgentError):
        RunContext.create(tmp_path / "runs", config=config)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_config_file_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "kgent.toml"
    for text, expected in (
        ("[limits]\nmax_output_lines = 'x'\n", r"kgent\.toml:2: .*limits\.max_output_lines"),
        ("\n[permissions]\nshel = true\n", r"kgent\.toml:3: .*permissions\.shel"),
        ("[limits\n", r"kgent\.toml:1"),
        ("[limits]\n[limits]\n", r"kgent\.toml:2"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=expected):
            ToolsConfig.from_file(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"kgent\.toml"):
        ToolsConfig.from_file(path)
    for other in (tmp_path, tmp_path / "absent", Path("/dev/zero")):
        with pytest.raises(ConfigError):
            ToolsConfig.from_file(other)


def test_a_config_from_a_file_and_a_dict_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "kgent.toml"
    path.write_text('[limits]\nmax_results = 7\n[permissions]\nshell = "ask"\n', encoding="utf-8")
    config = ToolsConfig.from_file(path)
    assert (
        config.to_dict()
        == ToolsConfig.from_dict({"limits": {"max_results": 7}, "permissions": {"shell": "ask"}}).to_dict()
    )
    assert ToolsConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert config.to_dict()["limits"]["max_output_lines"] == 2000


def test_the_config_file_is_read_only_for_tools(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    path = tmp_path / "ws/kgent.toml"
    path.write_text("[permissions]\nshell = false\n", encoding="utf-8")
    config = ToolsConfig.from_file(path)
    with RunContext.create(tmp_path / "runs", workspace=tmp_path / "ws", config=config) as context:
        (write,) = (tool for tool in build_toolsets(context) if tool.name == "write_file")
        (tmp_path / "ws/l").symlink_to("kgent.toml")
        for name in ("kgent.toml", "./kgent.toml", "l", str(path)):
            result = write.handler({"path": name, "content": "[permissions]\nshell = true\n"}, context)
            assert result.error is not None
            assert result.error.code == "read_only"
    assert path.read_text(encoding="utf-8") == "[permissions]\nshell = false\n"


@pytest.mark.parametrize(
    "run_id",
    ["a/b", "../x", "/abs", "", ".", "..", ".hidden", "-x", "a\0b", "a b", "x" * 129, "a\nb", "caf\u00e9", "a\\b"],
)
def test_a_run_id_that_is_no_folder_name(tmp_path: Path, run_id: str) -> None:
    for make in (RunContext.create, RunContext.open):
        with pytest.raises(RunError, match="run_id"):
            make(tmp_path / "runs", run_id)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_exists_or_does_not(tmp_path: Path) -> None:
    RunContext.create(tmp_path / "runs", "one").close()
    with pytest.raises(RunError, match=r"already exists.*RunContext\.open"):
        RunContext.create(tmp_path / "runs", "one")
    with pytest.raises(RunError, match="two"):
        RunContext.open(tmp_path / "runs", "two")
    with pytest.raises(RunError):
        RunContext.open(tmp_path / "elsewhere", "one")
    assert sorted(os.listdir(tmp_path)) == ["runs"]
    assert os.listdir(tmp_path / "runs") == ["one"]


def test_wrong_mounts_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    wrong: list[dict[str, Any]] = [
        {"workspace": tmp_path / "absent"},
        {"workspace": tmp_path / "file"},
        {"workspace": "/proc"},
        {"mounts": {"docs": tmp_path / "absent"}},
        {"mounts": {"docs": tmp_path / "file"}},
        {"mounts": {"docs": (tmp_path, "wr")}},
        {"mounts": {"workspace": tmp_path}},
        {"mounts": {"runs": tmp_path}},
        {"mounts": {"a/b": tmp_path}},
        {"mounts": {"": tmp_path}},
        {"mounts": {"..": tmp_path}},
    ]
    for options in wrong:
        with pytest.raises(KgentError) as caught:
            RunContext.create(tmp_path / "deep/er/runs", **options)
        assert str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_a_runs_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for runs in (tmp_path / "file", tmp_path / "file/runs"):
        with pytest.raises(RunError, match="file"):
            RunContext.create(runs)


def test_an_unwritable_runs_directory() -> None:
    """As an ordinary user: an error at once, and nothing left behind."""
    shared = Path(tempfile.mkdtemp())
    shared.chmod(0o755)
    (shared / "runs").mkdir()

    def child() -> None:
        for runs in (shared / "runs", shared / "new", shared / "new/er"):
            with pytest.raises(RunError, match=re.escape(str(runs))):
                RunContext.create(runs, "r")

    try:
        in_child(child, uid=65534)
        assert sorted(os.listdir(shared)) == ["runs"]
        assert os.listdir(shared / "runs") == []
    finally:
        shutil.rmtree(shared)


def test_for_call_refuses_what_makes_no_sense(box: Box) -> None:
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(KgentError):
            box.context.for_call(timeout_s=seconds)
