"""Skills: what is found and refused, what loading brings and costs, and that it grants nothing."""

import json
import os
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import Box, Swapper, all_log_bytes, in_child, memory_kib, reset_peak, snapshot, text_of

from kgent_tools import (
    EffectivePermissionPolicy,
    PermissionRule,
    RunContext,
    RunError,
    SkillRegistry,
    ToolsConfig,
    build_toolsets,
)


def skill(root: Path, id: str, front: str | None = None, body: str = "Do it.\n") -> Path:
    """A skill's folder; `front` is what stands between the two lines of `---`."""
    folder = root / id
    folder.mkdir(parents=True)
    front = f"name: {id}\ndescription: Does {id}." if front is None else front
    (folder / "SKILL.md").write_text(f"---\n{front}\n---\n{body}", encoding="utf-8")
    return folder


def raw(root: Path, id: str, data: bytes) -> None:
    (root / id).mkdir(parents=True)
    (root / id / "SKILL.md").write_bytes(data)


VALID = {
    "plain": "name: plain\ndescription: Turns notes into minutes.",
    "quoted": "name: \"quoted\"\ndescription: 'Says: it''s quoted'",
    "folded": "name: folded\ndescription: >-\n  Cleans tables\n  of all kinds.",
    "literal": "name: literal\ndescription: |\n  First line.\n  Second line.",
    "licensed": "name: licensed\ndescription: d\nlicense: MIT. See LICENSE.",
    "compat": "name: compat\ndescription: d\ncompatibility: Needs python 3.11",
    "meta": "name: meta\ndescription: d\nmetadata:\n  author: someone\n  version: 1.0\n  tags: [a, 'b']",
    "tools-text": "name: tools-text\ndescription: d\nallowed-tools: read_file Bash(git add:*)",
    "tools-list": "name: tools-list\ndescription: d\nallowed-tools: [run_command, write_file]",
    "narrows": "name: narrows\ndescription: d\npermissions: {filesystem_write: false}",
    "other-keys": "name: other-keys\ndescription: d\nmodel: x\ndisable-model-invocation: true",
    "anchors": "name: &n anchors\ndescription: d\nlicense: *n",
    "comments": "# about\nname: comments # the id\ndescription: d",
    "UPPER_9": "name: UPPER_9\ndescription: d",
    "colon": "name: colon\ndescription: Use it: now",
    "bracket": "name: bracket\ndescription: [x] — y",
    "yes": "name: yes\ndescription: 1.0",
}
INVALID = {
    "no-name": ("description: d", 2, "`name` is missing"),
    "no-description": ("name: no-description", 2, "`description` is missing"),
    "empty-description": ("name: empty-description\ndescription: ~", 3, "`description` is empty, not text"),
    "other-name": ("name: plain\ndescription: d", None, "`name` is `plain`, but the folder is `other-name`"),
    "path-name": (
        "name: ../../outside/s\ndescription: d",
        None,
        "`name` is `../../outside/s`, but the folder is `path-name`",
    ),
    "list": ("- a\n- b", 2, "the front matter is not a mapping of names to values"),
    "twice": ("name: twice\ndescription: d\nname: twice", 4, "`name` is given twice"),
    "python": ("name: python\ndescription: !!python/object/apply:os.system ['touch /tmp/x']", 3, "is refused"),
    "deep": ("name: deep\ndescription: d\nmetadata: " + "[" * 40, 4, "nested deeper than 16 levels"),
    "bad-permission": ("name: bad-permission\ndescription: d\npermissions: {shel: allow}", 4, "shel"),
    "long": (f"name: long\ndescription: {'x' * 1025}", 3, "more than 1024 characters"),
    "tabs": ("name: tabs\ndescription: d\nmetadata:\n\ta: b", 5, "not YAML"),
    "-dash": ("name: -dash\ndescription: d", None, "the folder's name is no id"),
}


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    root = tmp_path / "skills"
    for id, front in VALID.items():
        skill(root, id, front)
    for id, (front, _, _) in INVALID.items():
        skill(root, id, front)
    return root


@pytest.fixture
def box(tmp_path: Path, roots: Path) -> Iterator[Box]:
    with Box(tmp_path, registry=SkillRegistry.discover([roots])) as made:
        yield made


def by_id(registry: SkillRegistry) -> dict[str, dict[str, Any]]:
    return {skill["id"]: skill for skill in registry.skills}


# What is found


def test_thirty_skills_each_feature_and_each_fault(box: Box, roots: Path) -> None:
    found = by_id(SkillRegistry.discover([roots]))
    assert len(found) == len(VALID) + len(INVALID) == 30
    assert list(found) == sorted(found)
    assert {id for id, skill in found.items() if skill["valid"]} == set(VALID)
    for id, (_, line, reason) in INVALID.items():
        assert (found[id]["line"], found[id]["file"]) == (line, roots / id / "SKILL.md")
        assert reason in found[id]["reason"]
    texts = {id: found[id]["description"] for id in ("quoted", "folded", "literal", "colon", "bracket", "yes")}
    assert texts == {
        "quoted": "Says: it's quoted",
        "folded": "Cleans tables of all kinds.",
        "literal": "First line.\nSecond line.",
        "colon": "Use it: now",
        "bracket": "[x] — y",
        "yes": "1.0",
    }
    assert {id for id in VALID if found[id]["lenient"]} == {"colon", "bracket"}
    assert found["licensed"]["license"] == "MIT. See LICENSE."
    assert found["compat"]["compatibility"] == "Needs python 3.11"
    assert found["meta"]["metadata"] == {"author": "someone", "version": "1.0", "tags": ["a", "b"]}
    assert found["tools-text"]["allowed_tools"] == ["read_file", "Bash(git add:*)"]
    assert found["tools-list"]["allowed_tools"] == ["run_command", "write_file"]
    listed = box.ok("list_skills").data
    assert listed is not None
    assert [(s["id"], s["valid"]) for s in listed["skills"]] == [(id, id in VALID) for id in sorted(found)]
    errors = {s["id"]: s["error"] for s in listed["skills"]}
    assert errors["twice"] == "SKILL.md line 4: `name` is given twice"
    for id in INVALID:
        result = box.call("load_skill", skill_id=id)
        assert result.error is not None
        assert result.error.code == "skill_invalid"
        assert result.error.details is not None
        assert result.error.details["file"] == f"skills/{id}/SKILL.md"
    for id in ("plain", "colon", "yes"):
        assert "Do it.\n" in box.text("load_skill", skill_id=id)


def test_byte_order_marks_line_ends_and_encodings(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    lf = "---\nname: {id}\ndescription: d\n---\none\n---\ntwo\n"
    bom = b"\xef\xbb\xbf"

    def text(id: str, old: str = "\n", new: str = "\n") -> bytes:
        return lf.replace("{id}", id).replace(old, new).encode()

    raw(root, "lf", text("lf"))
    raw(root, "crlf", text("crlf", "\n", "\r\n"))
    raw(root, "bom", bom + text("bom"))
    raw(root, "bom-crlf", bom + text("bom-crlf", "\n", "\r\n"))
    raw(root, "spaces", text("spaces", "---\n", "---  \t\n"))
    raw(root, "open-end", b"---\nname: open-end\ndescription: d\n---")
    raw(root, "utf16", text("utf16").decode().encode("utf-16"))
    raw(root, "blank", b"\n" + text("blank"))
    raw(root, "lone-cr", text("lone-cr", "\n", "\r"))
    raw(root, "unclosed", b"---\nname: unclosed\n")
    raw(root, "none", b"# Title\n")
    raw(root, "empty", b"")
    raw(root, "latin", b"---\nname: latin\ndescription: caf\xe9\n---\n")
    raw(root, "huge", text("huge") + b"x" * (1 << 20))
    before = snapshot(root)
    with Box(tmp_path, registry=SkillRegistry.discover([root])) as box:
        bodies = {id: box.ok("load_skill", skill_id=id).data["body"] for id in ("lf", "crlf", "bom", "bom-crlf")}  # type: ignore[index]
        assert bodies == {
            "lf": "one\n---\ntwo\n",
            "crlf": "one\r\n---\r\ntwo\r\n",
            "bom": "one\n---\ntwo\n",
            "bom-crlf": "one\r\n---\r\ntwo\r\n",
        }
        assert box.ok("load_skill", skill_id="open-end").data["body"] == ""  # type: ignore[index]
        box.ok("load_skill", skill_id="spaces")
        found = by_id(box.registry)  # type: ignore[arg-type]
        reasons = {id: found[id]["reason"] for id in found if not found[id]["valid"]}
        assert reasons == {
            "utf16": "the file is UTF-16; save it as UTF-8",
            "blank": "the first line is not `---`",
            "lone-cr": "lines end with a lone CR",
            "unclosed": "the front matter is not closed by a line of `---`",
            "none": "the first line is not `---`",
            "empty": "the file is empty",
            "latin": "the file is not UTF-8",
            "huge": "the file has more than 1048576 bytes",
        }
        assert all(box.code("load_skill", skill_id=id) == "skill_invalid" for id in reasons)
    assert snapshot(root) == before


def test_aliases_that_expand_to_gigabytes_are_refused_in_little_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    skill(tmp_path / "skills", "bomb", "name: bomb\ndescription: d\n" + "\n".join(lines))
    reset_peak()
    before = memory_kib("VmRSS")
    found = by_id(SkillRegistry.discover([tmp_path / "skills"]))
    assert "more than 2048 values" in found["bomb"]["reason"]
    assert memory_kib("VmHWM") - before < 20_000


def test_an_earlier_root_wins_and_the_other_is_shadowed(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    skill(first, "both", "name: both\ndescription: first")
    skill(second, "both", "name: both\ndescription: second")
    skill(second, "broken-first")
    raw(first, "broken-first", b"broken")
    with Box(tmp_path, registry=SkillRegistry.discover([first, second, first])) as box:
        assert [(s["id"], s["file"].parents[1].name, s["valid"], s["shadowed"]) for s in box.registry.skills] == [  # type: ignore[union-attr]
            ("both", "first", True, False),
            ("both", "second", False, True),
            ("broken-first", "first", False, False),
            ("broken-first", "second", False, True),
        ]
        assert box.ok("load_skill", skill_id="both").data["description"] == "first"  # type: ignore[index]
        assert box.code("load_skill", skill_id="broken-first") == "skill_invalid"
    assert by_id(SkillRegistry.discover([second]))["both"]["description"] == "second"


def test_twins_of_one_root_are_both_invalid_in_any_order(tmp_path: Path) -> None:
    for order in (("Twin", "twin"), ("twin", "Twin")):
        root = tmp_path / order[0] / "skills"
        for id in order:
            skill(root, id)
        found = by_id(SkillRegistry.discover([root]))
        assert [found[id]["valid"] for id in ("Twin", "twin")] == [False, False]
        assert "upper and lower case" in found["twin"]["reason"]


def test_folders_that_are_no_skills_are_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    skill(root, "good")
    skill(root, ".hidden")
    (root / "notes").mkdir()
    (root / "README.md").write_text("x", encoding="utf-8")
    (root / "lower").mkdir()
    (root / "lower" / "skill.md").write_text("x", encoding="utf-8")
    found = by_id(SkillRegistry.discover([root]))
    assert list(found) == ["good", "lower"]
    assert found["lower"]["reason"] == "the file's name must be SKILL.md"


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_root_that_is_no_folder_is_the_host_s_to_mend(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=f"skills root .*{name}"):
        SkillRegistry.discover([tmp_path / name])


# What an attacker tries


def test_ids_never_become_paths(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    skill(root, "s")
    skill(tmp_path / "outside", "s", "name: s\ndescription: TOPSECRET")
    with Box(tmp_path, registry=SkillRegistry.discover([root])) as box:
        for id in (
            "../outside/s",
            str(tmp_path / "outside/s"),
            "s/../../outside/s",
            "",
            ".",
            "..",
            "a/b",
            "a\\b",
            "s\0",
        ):
            assert box.code("load_skill", skill_id=id) == "invalid_args", id
        assert box.code("load_skill", skill_id="S") == "not_found"
        assert box.code("load_skill", skill_id="x" * 65) == "invalid_args"
        assert box.call("load_skill", skill_id="ss").error.hint == "Did you mean `s`?"  # type: ignore[union-attr]
        assert b"TOPSECRET" not in all_log_bytes(box.run_dir)
        assert list((box.run_dir / "skills").iterdir()) == []


def test_links_and_special_files_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "skills", tmp_path / "outside"
    secret = skill(outside, "s", "name: s\ndescription: TOPSECRET", "TOPSECRET\n")
    root.mkdir()
    (root / "l").symlink_to("../outside/s")
    (root / "m").mkdir()
    (root / "m" / "SKILL.md").symlink_to("../../outside/s/SKILL.md")
    (root / "fifo").mkdir()
    os.mkfifo(root / "fifo" / "SKILL.md")
    (root / "dir" / "SKILL.md").mkdir(parents=True)
    os.mkfifo(root / "pipe")
    good = skill(root, "good")
    (good / "notes.md").write_text("kept\n", encoding="utf-8")
    (good / "away").symlink_to(secret)
    (good / "file").symlink_to(secret / "SKILL.md")
    os.mkfifo(good / "pipe")
    os.link(secret / "SKILL.md", good / "hard")
    with Box(tmp_path, registry=SkillRegistry.discover([root])) as box:
        found = by_id(box.registry)  # type: ignore[arg-type]
        assert {id: found[id]["reason"] for id in found if not found[id]["valid"]} == {
            "l": "the skill's folder is a link",
            "m": "the file is a link",
            "fifo": "it is a fifo, not a file",
            "dir": "it is a directory, not a file",
        }
        codes = {id: box.code("load_skill", skill_id=id) for id in ("l", "m", "fifo", "dir")}
        assert codes == {
            "l": "outside_sandbox",
            "m": "outside_sandbox",
            "fifo": "skill_invalid",
            "dir": "skill_invalid",
        }
        result = box.ok("load_skill", skill_id="good")
        assert result.data is not None
        assert result.data["files"] == ["skills/good/hard", "skills/good/notes.md"]
        assert "[3 links, special files or too large files were not brought in.]" in text_of(result)
        assert box.read("skills/good/notes.md") == "kept\n"
        assert {name: what[0] for name, what in snapshot(box.run_dir / "skills").items()} == {
            "good": "folder",
            "good/SKILL.md": "file",
            "good/hard": "file",
            "good/notes.md": "file",
        }


@pytest.mark.slow
def test_discovery_and_loading_while_folders_are_swapped_read_nothing_outside(tmp_path: Path) -> None:
    root, outside = tmp_path / "skills", tmp_path / "outside"
    skill(root, "s", body="inside\n")
    (root / "s" / "notes").mkdir()
    (root / "s" / "notes" / "n").write_text("inside\n", encoding="utf-8")
    secret = skill(outside, "s", "name: s\ndescription: TOPSECRET", "TOPSECRET\n")
    (secret / "notes").mkdir()
    (secret / "notes" / "n").write_text("TOPSECRET\n", encoding="utf-8")
    (tmp_path / "link").symlink_to(secret)
    (tmp_path / "notes-link").symlink_to(secret / "notes")
    seen: set[str] = set()
    with Swapper(root / "s", tmp_path / "link"):
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for found in SkillRegistry.discover([root]).skills:
                seen.add(str(found["reason"] or found["description"]))
    assert seen == {"Does s.", "the skill's folder is a link"}
    if (root / "s").is_symlink():
        os.rename(tmp_path / "link", tmp_path / "real")
        os.rename(root / "s", tmp_path / "link")
        os.rename(tmp_path / "real", root / "s")
    registry = SkillRegistry.discover([root])
    with Swapper(root / "s" / "notes", tmp_path / "notes-link"), Swapper(root / "s" / "SKILL.md", secret / "SKILL.md"):
        codes = set()
        for number in range(300):
            with RunContext.create(tmp_path / "runs", f"r{number}") as context:
                load = next(t for t in build_toolsets(context, registry) if t.name == "load_skill").handler
                result = load({"skill_id": "s"}, context)
                codes.add(result.error.code if result.error else "ok")
                assert "TOPSECRET" not in text_of(result)
    assert codes == {"ok", "stale"}
    for path in (tmp_path / "runs").glob("*/skills/**/*"):
        assert path.is_dir() or b"TOPSECRET" not in path.read_bytes(), path


def test_a_skill_that_changed_since_discovery_is_stale(box: Box, roots: Path) -> None:
    (roots / "plain" / "SKILL.md").write_text("---\nname: plain\ndescription: e\n---\nEvil.\n", encoding="utf-8")
    assert box.code("load_skill", skill_id="plain") == "stale"
    (roots / "folded" / "SKILL.md").unlink()
    assert box.code("load_skill", skill_id="folded") == "stale"
    os.rename(roots / "literal", roots / "gone")
    assert box.code("load_skill", skill_id="literal") == "stale"
    assert list((box.run_dir / "skills").iterdir()) == []


def test_skill_roots_are_read_only_through_every_mount(tmp_path: Path) -> None:
    root = tmp_path / "ws" / "my" / "skills"
    skill(root, "s")
    mounts = {"more": (tmp_path / "ws" / "my", "rw"), "deep": (root / "s", "rw")}
    before = snapshot(root)
    with Box(tmp_path, mounts=mounts) as box:
        box.ok("write_file", path="my/skills/s/new", content="x")  # nobody has said yet that it is a root
        (root / "s" / "new").unlink()
        box.registry = SkillRegistry.discover([root])
        box.tools = box.bind(box.policy)
        for path in (
            "my/skills/s/SKILL.md",
            "my/skills/new/SKILL.md",
            "more/skills/s/x",
            "deep/SKILL.md",
            "skills/s/x",
        ):
            assert box.code("write_file", path=path, content="x") == "read_only", path
        box.ok("write_file", path="my/other", content="x")
        assert "Does s." in box.read("my/skills/s/SKILL.md")
        os.rename(root, tmp_path / "ws" / "my" / "moved")
        assert box.code("write_file", path="my/other", content="x") == "sandbox_unavailable"
        os.rename(tmp_path / "ws" / "my" / "moved", root)
    assert snapshot(root) == before


def test_roots_of_the_configuration_are_frozen_from_the_start(tmp_path: Path) -> None:
    skill(tmp_path / "ws" / "skills", "s")
    file = tmp_path / "kgent.toml"
    file.write_text('[skills]\nroots = ["ws/skills"]\n', encoding="utf-8")
    with Box(tmp_path, ToolsConfig.from_file(file)) as box:
        assert box.code("write_file", path="workspace/skills/s/SKILL.md", content="x") == "read_only"
        assert box.ok("list_skills").data["skills"][0]["id"] == "s"  # type: ignore[index]
        box.ok("load_skill", skill_id="s")
        again = pickle.loads(pickle.dumps(box.tools["load_skill"]))
        assert again.handler({"skill_id": "s"}, box.context).ok
    with pytest.raises(RunError, match="missing"):
        RunContext.create(tmp_path / "runs", config={"skills": {"roots": [str(tmp_path / "missing")]}})


def test_texts_of_a_skill_cannot_forge_lines(tmp_path: Path) -> None:
    front = 'name: s\ndescription: "one\\nt: fake\\u202e\\u001b[31m' + "x" * 400 + '"'
    skill(tmp_path / "skills", "s", front)
    with Box(tmp_path, registry=SkillRegistry.discover([tmp_path / "skills"])) as box:
        text = box.text("list_skills")
        assert text.count("\n") == 1
        assert text.startswith("s: one t: fake\\u{202e}\\u{1b}[31mxxx")
        assert len(text) < 330
        instructions = box.registry.instructions(1000)  # type: ignore[union-attr]
        assert instructions.splitlines()[1].startswith("- s: one t: fake\\u{202e}")


# What loading does


def test_load_returns_summary_and_body_and_brings_the_files(tmp_path: Path) -> None:
    folder = skill(
        tmp_path / "skills", "csv", "name: csv\ndescription: Cleans tables.\ncompatibility: awk", "Step 1.\n"
    )
    (folder / "scripts").mkdir()
    (folder / "scripts" / "clean.py").write_text("print()\n", encoding="utf-8")
    (folder / "references").mkdir()
    (folder / "references" / "déjà.md").write_text("ref\n", encoding="utf-8")
    with Box(tmp_path, registry=SkillRegistry.discover([tmp_path / "skills"])) as box:
        assert box.code("read_file", path="skills/csv/scripts/clean.py") == "not_found"
        result = box.ok("load_skill", skill_id="csv")
        files = ["skills/csv/references/déjà.md", "skills/csv/scripts/clean.py"]
        assert result.data == {
            "id": "csv",
            "name": "csv",
            "description": "Cleans tables.",
            "body": "Step 1.\n",
            "files": files,
            "requested_permissions": [],
            "truncated": False,
        }
        assert [part.text for part in result.content] == [  # type: ignore[union-attr]
            f"Skill csv: Cleans tables.\nNeeds: awk\nFiles:\n  {files[0]}\n  {files[1]}\n",
            "Step 1.\n",
        ]
        assert box.read(files[0]) == "ref\n"
        assert "clean.py" in box.text("grep_files", pattern="print", path="skills")
        assert box.code("write_file", path=files[1], content="x") == "read_only"
        event = next(e for e in box.events if e["type"] == "skill.loaded")
        assert event["data"] == {"skill": "csv", "hash": event["data"]["hash"], "characters": 8, "first": True}
        record = next(r for r in box.records if r["tool"] == "load_skill")
        assert (record["permission"]["action"], record["permission"]["resource"]) == ("load_skill", "csv")


def test_a_policy_may_deny_a_skill_by_name(tmp_path: Path) -> None:
    for id in ("a", "b"):
        skill(tmp_path / "skills", id)
    rules = [{"action": "load_skill", "resource": "b", "effect": "deny"}]
    with Box(
        tmp_path, {"permissions": {"rules": rules}}, registry=SkillRegistry.discover([tmp_path / "skills"])
    ) as box:
        box.ok("load_skill", skill_id="a")
        assert box.code("load_skill", skill_id="b") == "denied"


def test_a_budget_of_skills_and_of_characters(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    for id in ("a", "b", "c", "d"):
        skill(root, id, body="x" * 100)
    skill(root, "big", body="é" * 150)
    config = {"skills": {"max_skills": 3, "max_characters": 349}}
    with Box(tmp_path, config, registry=SkillRegistry.discover([root])) as box:
        for id in ("a", "a", "b", "a"):
            box.ok("load_skill", skill_id=id)
        result = box.call("load_skill", skill_id="big")
        assert result.error is not None
        assert (result.error.code, result.error.details) == (
            "skill_budget_exceeded",
            {"skills_left": 1, "characters_left": 149, "loaded": ["a", "b"]},
        )
        assert "may load 1 more of 3 skills, with 149 more of 349 characters" in result.error.message
        box.ok("load_skill", skill_id="c")
        assert box.call("load_skill", skill_id="d").error.details["skills_left"] == 0  # type: ignore[index,union-attr]
        box.ok("load_skill", skill_id="a")
        assert sorted(p.name for p in (box.run_dir / "skills").iterdir()) == ["a", "b", "c"]
        firsts = [e["data"]["first"] for e in box.events if e["type"] == "skill.loaded"]
        assert firsts == [True, False, True, False, True, False]


def test_the_budget_holds_over_threads_and_processes(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    ids = [f"s{n}" for n in range(24)]
    for id in ids:
        folder = skill(root, id)
        (folder / "data").write_text("d" * 10_000, encoding="utf-8")
    config = {"skills": {"max_skills": 5}}
    with Box(tmp_path, config, registry=SkillRegistry.discover([root])) as box:

        def load_all() -> None:
            load = box.tools["load_skill"].handler
            with ThreadPoolExecutor(8) as pool:
                results = list(pool.map(lambda id: load({"skill_id": id}, box.context), ids))
            codes = {result.error.code for result in results if result.error}
            assert codes <= {"skill_budget_exceeded"}

        child = threading.Thread(target=in_child, args=(load_all,))
        child.start()
        load_all()
        child.join()
        loaded = sorted(p.name for p in (box.run_dir / "skills").iterdir())
        assert len(loaded) == 5
        events = [e["data"] for e in box.events if e["type"] == "skill.loaded"]
        assert sorted(e["skill"] for e in events if e["first"]) == loaded
        with RunContext.open(box.runs, box.context.run_id, workspace=box.ws, config=config) as joined:
            load = next(t for t in build_toolsets(joined, box.registry) if t.name == "load_skill").handler
            assert load({"skill_id": loaded[0]}, joined).ok
            other = next(id for id in ids if id not in loaded)
            assert load({"skill_id": other}, joined).error.code == "skill_budget_exceeded"  # type: ignore[union-attr]


def test_a_skill_asks_and_is_granted_nothing(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    skill(root, "s", "name: s\ndescription: d\nallowed-tools: [run_command, write_file]\npermissions: {shell: allow}")
    skill(
        root,
        "t",
        "name: t\ndescription: d\npermissions:\n  rules: [{action: run_command, resource: '*', effect: allow}]",
    )
    runtime = [PermissionRule("run_command", "*", "deny")]
    for options in ({"runtime": runtime}, {"config": {"permissions": {"shell": "deny"}}}, {}):
        base = tmp_path / str(len(str(options)))
        base.mkdir()
        with Box(base, registry=SkillRegistry.discover([root]), **options) as box:  # type: ignore[arg-type]
            before = [box.policy.check(action, "x").layer for action in ("run_command", "shell", "edit")]
            asked = box.ok("load_skill", skill_id="s")
            requests = ["run_command", "write_file", "shell *"]
            assert asked.data["requested_permissions"] == requests  # type: ignore[index]
            assert "Nothing of it is granted" in text_of(asked)
            assert box.records[-1]["requested"] == requests
            event = next(e for e in box.events if e["type"] == "permission.requested")
            assert event["data"] == {"skill": "s", "requested": requests, "granted": False}
            assert box.ok("load_skill", skill_id="t").data["requested_permissions"] == ["run_command *"]  # type: ignore[index]
            declared = box.registry.loaded(box.context)  # type: ignore[union-attr]
            assert [d["id"] for d in declared] == ["s", "t"]
            merged = EffectivePermissionPolicy.merge(
                context=box.context,
                skills=declared,
                runtime=options.get("runtime", []),  # type: ignore[arg-type]
            )
            for policy in (box.policy, merged):
                assert policy.check("run_command", "true").allowed is False
                assert [policy.check(action, "x").layer for action in ("run_command", "shell", "edit")] == before


def test_a_skill_narrows_from_the_next_merge(tmp_path: Path) -> None:
    front = "name: s\ndescription: d\nallowed-tools: write_file\npermissions: {filesystem_write: deny}"
    skill(tmp_path / "skills", "s", front)
    with Box(tmp_path, registry=SkillRegistry.discover([tmp_path / "skills"])) as box:
        assert box.registry.loaded(box.context) == []  # type: ignore[union-attr]
        box.ok("load_skill", skill_id="s")
        box.ok("write_file", path="a", content="x")
        merged = EffectivePermissionPolicy.merge(context=box.context, skills=box.registry.loaded(box.context))  # type: ignore[union-attr]
        said = merged.check("edit", "a")
        assert (said.allowed, said.layer, said.rule) == (False, "skill", "skill s: deny filesystem_write *")


def test_one_skill_cannot_break_the_merge_of_all(tmp_path: Path) -> None:
    rule = "{action: edit, resource: 'docs/**', effect: deny, not_match: [workspace/docs/a]}"
    skill(
        tmp_path / "skills",
        "s",
        f"name: s\ndescription: d\nallowed-tools: 'Bash(x) * a/b'\npermissions:\n  rules: [{rule}]",
    )
    with Box(tmp_path, registry=SkillRegistry.discover([tmp_path / "skills"])) as box:
        box.ok("load_skill", skill_id="s")
        merged = EffectivePermissionPolicy.merge(context=box.context, skills=box.registry.loaded(box.context))  # type: ignore[union-attr]
        assert merged.check("edit", "docs/x").allowed is False


# What is offered


def test_without_skills_their_tools_are_not_offered(tmp_path: Path) -> None:
    with Box(tmp_path) as box:
        assert not {"list_skills", "load_skill"} & set(box.tools)


def test_an_empty_root_lists_nothing(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    registry = SkillRegistry.discover([tmp_path / "skills"])
    assert (len(registry), registry.instructions(), repr(registry)) == (0, "", "SkillRegistry(0 skills)")
    with Box(tmp_path, registry=registry) as box:
        assert box.text("list_skills") == "[There are no skills.]"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(registry)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(box.tools["load_skill"])
    pickle.dumps(box.tools["read_file"])


def test_instructions_keep_to_their_budget(roots: Path) -> None:
    registry = SkillRegistry.discover([roots])
    whole = registry.instructions()
    assert whole.splitlines()[0] == "Skills: call load_skill(skill_id) before doing what a skill is for."
    assert whole.count("\n- ") == len(VALID)
    for budget in range(len(whole) + 2):
        text = registry.instructions(budget)
        assert len(text) <= budget
        if text and text != whole:
            shown = text.count("\n- ")
            assert text.endswith(f"({len(VALID) - shown} more: see list_skills)\n")
    assert registry.instructions(len(whole)) == whole


@pytest.mark.slow
def test_a_thousand_skills(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    for number in range(1000):
        skill(root, f"skill-{number:04}", f"name: skill-{number:04}\ndescription: {'word ' * 40}", "Body.\n" * 50)
    limit = len(os.listdir("/proc/self/fd"))
    start = time.perf_counter()
    registry = SkillRegistry.discover([root])
    found = time.perf_counter() - start
    config = {"skills": {"max_skills": 1000, "max_characters": 1_000_000}}
    with Box(tmp_path, config, registry=registry) as box:
        start = time.perf_counter()
        listed = box.ok("list_skills")
        listing = time.perf_counter() - start
        assert listed.data is not None
        assert listed.data["truncated"] is True
        assert len(json.dumps(listed.data)) < 2 * 51200
        assert len(text_of(listed)) <= 51200
        stored = (box.run_dir / listed.artifacts[0]).read_text(encoding="utf-8")
        assert stored.count("\n") == 1000
        load = box.tools["load_skill"].handler
        start = time.perf_counter()
        assert all(load({"skill_id": f"skill-{n:04}"}, box.context).ok for n in range(1000))
        loading = time.perf_counter() - start
        assert len(os.listdir("/proc/self/fd")) < limit + 40
        assert len(registry.instructions(4000)) <= 4000
    print(f"discover {found:.3f} s, list {listing:.3f} s, load 1,000 {loading:.3f} s")
    assert (found < 2, listing < 1, loading < 30) == (True, True, True)


def test_a_long_body_is_stored_whole(tmp_path: Path) -> None:
    skill(tmp_path / "skills", "s", body="line\n" * 15_000)
    with Box(tmp_path, registry=SkillRegistry.discover([tmp_path / "skills"])) as box:
        result = box.ok("load_skill", skill_id="s")
        assert len(text_of(result)) <= 51200
        assert result.data is not None
        assert (result.data["truncated"], len(result.data["body"])) == (True, 51200)
        assert box.read("skills/s/SKILL.md").startswith("---\nname: s\n")
