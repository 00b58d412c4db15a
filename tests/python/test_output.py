"""What the model sees is bounded, whole characters, and says the exact next call that reads on: cases C22, C23 and C30."""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import Box, text_of

from kgent_tools import FileContent, TextContent, ToolDefinition, ToolRegistry, ToolResult

NEXT_CALL = re.compile(r"read_file\(path=(\"(?:[^\"\\]|\\.)*\")(?:, offset=(\d+))?\)")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        yield made


def next_call(text: str) -> dict[str, Any] | None:
    """The call that the last notice names."""
    found = NEXT_CALL.findall(text)
    if not found:
        return None
    path, offset = found[-1]
    return {"path": json.loads(path)} | ({"offset": int(offset)} if offset else {})


def numbered(result: ToolResult) -> str:
    """The numbered lines of a read, without its notices."""
    if result.data is not None and result.data["lines"] == 0:
        return ""
    part = result.content[0]
    assert isinstance(part, TextContent)
    return part.text


def read_all(box: Box, args: dict[str, Any]) -> tuple[str, str, int]:
    """Reads window by window, only by what the notices say: the data joined, the lines joined, and the calls made."""
    whole, lines, calls = "", "", 0
    following: dict[str, Any] | None = args
    while following is not None:
        result = box.ok("read_file", following)
        data = result.data
        assert data is not None
        text = text_of(result)
        assert len(text.encode()) <= 51_200
        assert text.count("\n") <= 2_000
        assert data["offset"] == following.get("offset", 1)
        assert result.artifacts == [], "a read never spills"
        whole += data["content"]
        lines += numbered(result)
        calls += 1
        following = next_call(text)
        assert (data["next_offset"] is None) == (following is None)
        if following is not None:
            assert following["offset"] == data["next_offset"] == data["offset"] + data["lines"]
            following |= {"limit": args["limit"]} if "limit" in args else {}
    return whole, lines, calls


def cat_n(path: Path) -> str:
    return subprocess.run(["cat", "-n", path], capture_output=True, check=True).stdout.decode()


def test_numbered_lines_are_those_of_cat(box: Box) -> None:
    for name, content in {
        "plain": "a\nb\n",
        "no newline": "a\nb",
        "one": "x",
        "blank lines": "\n\n\nx\n\n",
        "crlf": "a\r\nb\r\n",
        "tabs": "\ta\tb\n",
        "wide": "\u2500\U0001f378\n",
        "many": "".join(f"{n}\n" for n in range(1500)),
    }.items():
        path = box.put(name, content)
        result = box.ok("read_file", path=name)
        assert numbered(result) == cat_n(path), name
        assert result.data is not None
        assert result.data["content"] == content
        assert result.data["next_offset"] is None
        assert result.data["total_lines"] == len(content.split("\n")) - content.endswith("\n")


def test_an_empty_file(box: Box) -> None:
    box.put("e")
    result = box.ok("read_file", path="e")
    assert text_of(result) == "[e is empty.]"
    assert result.data is not None
    assert {
        key: result.data[key] for key in ("content", "lines", "total_lines", "next_offset", "bytes", "truncated")
    } == {
        "content": "",
        "lines": 0,
        "total_lines": 0,
        "next_offset": None,
        "bytes": 0,
        "truncated": False,
    }


def test_numbers_go_on_beyond_six_digits(box: Box) -> None:
    path = box.put("long", "x\n" * 1_000_002)
    result = box.ok("read_file", path="long", offset=999_998)
    expected = cat_n(path).split("\n")[999_997:]
    assert numbered(result) == "\n".join(expected)


def test_a_long_file_in_windows(box: Box) -> None:
    path = box.put("long", "".join(f"line {n} \u2500\n" for n in range(30_000)))
    whole, lines, calls = read_all(box, {"path": "long"})
    assert whole == path.read_text(encoding="utf-8")
    assert lines == cat_n(path)
    assert 8 <= calls <= 40


def test_a_file_over_a_mebibyte_in_windows(box: Box) -> None:
    path = box.put("large", "".join(f"{n:099}\n" for n in range(11_000)))
    whole, lines, _ = read_all(box, {"path": "large"})
    assert whole == path.read_text(encoding="utf-8")
    assert lines == cat_n(path)


@pytest.mark.parametrize("extra", ["", "tail"])
def test_a_window_that_ends_where_a_large_file_ends(box: Box, extra: str) -> None:
    """No notice names a call that would be refused."""
    content = ("x" * 999 + "\n") * 2_000 + extra
    box.put("large", content)
    whole, _, _ = read_all(box, {"path": "large", "limit": 40})
    assert whole == content


@pytest.mark.parametrize("name", ["my file", 'q"uote', "back\\slash", "new\nline", "deliverables/d", "caf\u00e9", "~x"])
def test_the_next_call_names_every_path_so_that_it_is_found(box: Box, name: str) -> None:
    content = "".join(f"{n}\n" for n in range(3_000))
    if name.startswith("deliverables/"):
        (box.run_dir / name).write_text(content, encoding="utf-8")
        first = {"path": name}
    else:
        box.put(name, content)
        listed = box.ok("list_files").data
        assert listed is not None
        first = {"path": listed["entries"][0]["path"]}
    whole, _, calls = read_all(box, first)
    assert (whole, calls) == (content, 2)


LINES = st.lists(
    st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=60)
    | st.sampled_from(
        ["", "\r", "\t", "x" * 1990, "\u2500" * 660, "     1\tx", "[Lines 1 to 2.]", "\ufeff", "\U0001f378" * 499]
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, repeat=st.sampled_from([1, 1, 1, 40]), ended=st.booleans(), limit=st.none() | st.integers(1, 50))
def test_any_text_file_is_given_back_window_by_window(
    box: Box, lines: list[str], repeat: int, ended: bool, limit: int | None
) -> None:
    content = "\n".join(lines * repeat) + ("\n" if ended and lines else "")
    if limit is not None and content.count("\n") > 40 * limit:
        limit *= 20
    box.put("any", content)
    # A mark at the very start is no part of the first line.
    shown = content.removeprefix("\ufeff")
    whole, numbers, _ = read_all(box, {"path": "any"} | ({} if limit is None else {"limit": limit}))
    assert whole == shown
    assert numbers == "".join(f"{n:>6}\t{line}" for n, line in enumerate(re.findall(r"[^\n]*\n|[^\n]+$", shown), 1))


def test_byte_order_mark(box: Box) -> None:
    box.put("bom", b"\xef\xbb\xbfhello\r\n")
    result = box.ok("read_file", path="bom")
    assert result.data is not None
    assert (result.data["content"], result.data["encoding"], result.data["bytes"]) == ("hello\r\n", "utf-8-bom", 10)
    found = box.ok("grep_files", pattern="^hello").data
    assert found is not None
    assert [(m["line"], m["text"]) for m in found["matches"]] == [(1, "hello")]
    box.put("middle", "a\ufeffb\n")
    assert box.read("middle") == "a\ufeffb\n"


def test_utf_16(box: Box) -> None:
    for codec, bom in (("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff")):
        box.put("wide", bom + "alpha\r\nbeta\r\n".encode(codec))
        result = box.ok("read_file", path="wide", offset=2)
        assert result.data is not None
        assert (result.data["content"], result.data["encoding"]) == ("beta\r\n", codec.replace("-16-", "-16"))
        found = box.ok("grep_files", pattern="beta")
        assert found.data is not None
        assert found.data["count"] == 1 or sum(found.data["skipped"].values()) == 1


def test_bytes_that_are_no_text_are_said(box: Box) -> None:
    box.put("latin", b"caf\xe9\n")
    result = box.ok("read_file", path="latin")
    assert result.data is not None
    assert (result.data["content"], result.data["encoding"]) == ("caf\ufffd\n", "unknown")
    assert "not valid UTF-8" in text_of(result)


def test_images_and_pdf_come_as_files(box: Box) -> None:
    for name, start, media_type in (
        ("a.png", b"\x89PNG\r\n\x1a\n", "image/png"),
        ("a.txt", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("a.pdf", b"%PDF-1.7\n", "application/pdf"),
    ):
        content = start + bytes(range(256))
        box.put(name, content)
        files = [part for part in box.ok("read_file", path=name).content if isinstance(part, FileContent)]
        assert [(part.media_type, part.data) for part in files] == [(media_type, content)]


WIDE = ["\u2500", "\U0001f378", "\u00e9"]


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("back", range(5))
def test_c30_a_line_cut_at_its_limit(tmp_path: Path, wide: str, back: int) -> None:
    limit = 300
    with Box(tmp_path, {"limits": {"max_line_bytes": limit}}) as box:
        line = "a" * (limit - back) + wide * 10
        box.put("f", f"{line}\nnext\n")
        result = box.ok("read_file", path="f")
        assert result.data is not None
        first, second = numbered(result).split("\n")[:2]
        shown = first.removeprefix("     1\t")
        assert line.startswith(shown)
        assert limit - 4 < len(shown.encode()) <= limit
        assert second == "     2\tnext"
        assert result.data["truncated"] is True
        assert f"Line 1 has {len(line.encode()) + 1} bytes" in text_of(result)
        found = box.ok("grep_files", pattern="a").data
        assert found is not None
        ((match),) = found["matches"]
        assert match["truncated"] is True
        assert match["text"].endswith("\u2026")
        assert line.startswith(match["text"][:-1])
        assert limit - 4 < len(match["text"][:-1].encode()) <= limit
        # The match itself is always inside.
        found = box.ok("grep_files", pattern=f"{wide}+$").data
        assert found is not None
        assert found["matches"][0]["text"].endswith(wide * 10)


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("size", range(4998, 5003))
def test_c30_an_output_cut_at_its_limit(tmp_path: Path, wide: str, size: int) -> None:
    """A Python tool's text of every length about the limit, cut in every place of a character."""
    with Box(tmp_path, {"limits": {"max_output_bytes": 5000}}) as box:
        for back in range(5):
            text = "a" * (size - back) + wide * 3
            result = answer(box, text)
            shown = text_of(result)
            assert len(shown.encode()) <= 5000
            if len(text.encode()) <= 5000:
                assert (shown, result.artifacts) == (text, [])
                continue
            head, notice, tail = (part.text for part in result.content if isinstance(part, TextContent))
            assert text.startswith(head)
            assert text.endswith(tail)
            assert notice.startswith("[")
            (artifact,) = result.artifacts
            assert (box.run_dir / artifact).read_text(encoding="utf-8") == text


def answer(box: Box, text: str) -> ToolResult:
    """The result of a tool that answers with `text`."""
    registry = ToolRegistry(box.context)

    def handler(args: dict[str, Any], context: object) -> ToolResult:
        return ToolResult(ok=True, summary="done", content=[TextContent(text)])

    definition = ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)
    with registry.register({"say": definition}):
        result = registry.materialize().call("say", {})
    assert result.ok, result
    box.new()
    return result


@pytest.mark.parametrize("wide", WIDE)
def test_c30_summaries_are_cut_at_200_characters(box: Box, wide: str) -> None:
    for length in (199, 200, 201, 5000):
        summary = ToolResult(ok=True, summary=wide * length + "\nmore").summary
        assert len(summary) <= 200
        assert "\n" not in summary
        assert summary.startswith(wide * 190 if length > 200 else wide * min(length, 199))


def test_c30_names_and_patterns_in_records(box: Box) -> None:
    wide = "\u2500"
    for length in range(508, 513):
        box.call("grep_files", pattern="a" * length + wide * 10, literal=True)
        box.call("read_file", path="b" * (length % 200) + wide * 10)
        box.call("read_file", {"path": "x", "c" * length + wide * 10: "d" * length + wide * 10})


def test_a_large_search_goes_to_an_artifact_that_is_read_on(box: Box) -> None:
    for n in range(30):
        box.put(f"src/f{n:02}.py", "".join(f"needle {k} {'y' * 60}\n" for k in range(33)))
    result = box.ok("grep_files", pattern="needle")
    text = text_of(result)
    assert len(text.encode()) <= 51_200
    assert text.count("\n") <= 2_000
    (artifact,) = result.artifacts
    assert re.fullmatch(r"artifacts/[A-Za-z0-9.-]+", artifact)
    whole = (box.run_dir / artifact).read_text(encoding="utf-8")
    expected = "".join(f"src/f{n:02}.py:{k + 1}:needle {k} {'y' * 60}\n" for n in range(30) for k in range(33))
    assert whole == expected
    head, notice = (part.text for part in result.content[:2] if isinstance(part, TextContent))
    assert expected.startswith(head)
    following = next_call(notice)
    assert following is not None
    assert following == {"path": artifact, "offset": head.count("\n") + 1}
    rest, _, _ = read_all(box, following)
    assert head + rest == expected
    named = [r for r in box.records if r["tool"] == "grep_files"]
    assert named[-1]["artifacts"] == [artifact]
    assert named[-1]["truncated"] is True
    created = [e for e in box.events if e["type"] == "artifact.created"]
    assert [e["data"] for e in created] == [{"path": artifact}]


def test_an_artifact_is_read_only_and_searched(box: Box) -> None:
    (artifact,) = answer(box, "needle\n" * 20_000).artifacts
    assert box.code("write_file", path=artifact, content="x") == "read_only"
    found = box.ok("grep_files", pattern="needle", path=artifact, output="count")
    assert text_of(found).startswith(f"{artifact}:20000\n")
    whole, _, _ = read_all(box, {"path": artifact})
    assert whole == "needle\n" * 20_000


def test_one_enormous_line_shows_both_ends_and_where_the_whole_is(box: Box) -> None:
    text = "A" + "x" * 200_000 + "Z"
    result = answer(box, text)
    shown = text_of(result)
    assert shown.startswith("Ax")
    assert shown.endswith("xZ")
    (artifact,) = result.artifacts
    assert artifact in shown
    assert (box.run_dir / artifact).read_text(encoding="utf-8") == text


def test_limits_are_counted_over_all_parts(box: Box) -> None:
    """Notices and parts of a result count too."""
    registry = ToolRegistry(box.context)
    parts = [TextContent("x" * 999 + "\n") for _ in range(100)]

    def handler(args: dict[str, Any], context: object) -> ToolResult:
        return ToolResult(ok=True, summary="done", content=parts)

    registry.register({"say": ToolDefinition(description="d", input_schema={"type": "object"}, handler=handler)})
    result = registry.materialize().call("say", {})
    assert len(text_of(result).encode()) <= 51_200
    assert len(result.artifacts) == 1


@pytest.mark.parametrize(
    "limits", [{"max_output_lines": 1}, {"max_output_bytes": 1}, {"max_line_bytes": 1}, {"max_results": 1}]
)
def test_the_smallest_limits(tmp_path: Path, limits: dict[str, int]) -> None:
    """Nothing panics, whatever the host sets."""
    with Box(tmp_path, {"limits": limits}) as box:
        box.put("f", "needle \u2500\n" * 50)
        for tool, args in (
            ("read_file", {"path": "f"}),
            ("grep_files", {"pattern": "needle"}),
            ("grep_files", {"pattern": "needle", "context": 3}),
            ("grep_files", {"pattern": "\u2500", "output": "count"}),
            ("list_files", {}),
            ("write_file", {"path": "f2", "content": "x\n" * 50}),
        ):
            assert box.call(tool, args).ok, (tool, limits)


def test_search_shapes(box: Box) -> None:
    box.put("b.py", "x = 1\nneedle\ny = 2\nneedle two\n")
    box.put("a/c.txt", "Needle\n")
    box.put("app/[id]/page.tsx", "needle\n")
    box.put("-n", "needle\n")
    assert text_of(box.ok("grep_files", pattern="needle", include="*.py")) == "b.py:2:needle\nb.py:4:needle two\n"
    context = text_of(box.ok("grep_files", pattern="two", context=1, include="*.py"))
    assert context == "b.py-3-y = 2\nb.py:4:needle two\n"
    files = box.ok("grep_files", pattern="needle", output="files")
    assert text_of(files) == "-n\napp/[id]/page.tsx\nb.py\n"
    assert files.data is not None
    assert files.data["files"] == ["-n", "app/[id]/page.tsx", "b.py"]
    assert text_of(box.ok("grep_files", pattern="needle", output="count")) == "-n:1\napp/[id]/page.tsx:1\nb.py:2\n"
    assert box.ok("grep_files", pattern="needle", ignore_case=True).data["count"] == 5  # type: ignore[index]
    # A path is literal, a pattern or path that begins with `-` is data (C49).
    assert text_of(box.ok("grep_files", pattern="needle", path="app/[id]")) == "app/[id]/page.tsx:1:needle\n"
    assert text_of(box.ok("grep_files", pattern="needle", path="-n")) == "-n:1:needle\n"
    assert "No matches" in text_of(box.ok("grep_files", pattern="-n"))
    (match, *_) = box.ok("grep_files", pattern="eed", path="b.py").data["matches"]  # type: ignore[index]
    assert match == {"path": "b.py", "line": 2, "column": 2, "text": "needle", "truncated": False}


def test_anchors_and_columns(box: Box) -> None:
    box.put("f", "one\ntwo one\n  three\nlast one")
    table: list[tuple[str, list[tuple[int, int]]]] = [
        ("one", [(1, 1), (2, 5), (4, 6)]),
        ("one$", [(1, 1), (2, 5), (4, 6)]),
        ("^one", [(1, 1)]),
        ("^one$", [(1, 1)]),
        (r"\bone\b", [(1, 1), (2, 5), (4, 6)]),
        (r"\S+$", [(1, 1), (2, 5), (3, 3), (4, 6)]),
        (r"^\s+", [(3, 1)]),
        (r"e\z", [(1, 3), (2, 7), (3, 7), (4, 8)]),
    ]
    for pattern, places in table:
        data = box.ok("grep_files", pattern=pattern).data
        assert data is not None
        assert [(m["line"], m["column"]) for m in data["matches"]] == places, pattern


def test_columns_count_characters(box: Box) -> None:
    box.put("f", "\u2500\U0001f378 x\n")
    data = box.ok("grep_files", pattern="x").data
    assert data is not None
    assert data["matches"] == [{"path": "f", "line": 1, "column": 4, "text": "\u2500\U0001f378 x", "truncated": False}]


def test_c50_patterns_that_explode(box: Box) -> None:
    box.put("f", "a" * 100_000 + "!\n")
    box.put("g", "a.b(\naxb(\n")
    for pattern in ("(a+)+$", "(a|aa)+$"):
        result = box.ok("grep_files", pattern=pattern, path="f")
        assert "No matches" in text_of(result)
    found = box.ok("grep_files", pattern="a.b(", literal=True).data
    assert found is not None
    assert [(m["line"], m["text"]) for m in found["matches"]] == [(1, "a.b(")]


def test_lists_in_order_with_types_and_sizes(box: Box) -> None:
    box.put("b", "xx")
    box.put("a/z", "1")
    box.put("a-b", "")
    (box.ws / "l").symlink_to("nowhere")
    result = box.ok("list_files", depth=2)
    assert sorted(text_of(result).splitlines()) == ["a-b\t0", "a/", "a/z\t1", "b\t2", "l\t(link)"]
    assert result.data is not None
    entries = {e["path"]: (e["type"], e["size"]) for e in result.data["entries"]}
    assert {name: kind for name, (kind, _) in entries.items()} == {
        "a": "directory",
        "a/z": "file",
        "a-b": "file",
        "b": "file",
        "l": "link",
    }
    assert (entries["a/z"][1], entries["b"][1], entries["a-b"][1]) == (1, 2, 0)
    again = box.ok("list_files", depth=2).data
    assert again == result.data


def test_hidden_and_ignored_names(box: Box) -> None:
    for name in ("v.ts", ".h.ts", ".d/n.ts", "dist/b.ts", ".git/config"):
        box.put(name, "needle\n")
    box.put(".gitignore", "dist/\n")

    def listed(**flags: bool) -> list[str]:
        data = box.ok("list_files", depth=9, pattern="*.ts", **flags).data
        assert data is not None
        return sorted(e["path"] for e in data["entries"])

    def found(**flags: bool) -> list[str]:
        data = box.ok("grep_files", pattern="needle", output="files", include="*.ts", **flags).data
        assert data is not None
        return sorted(data["files"])

    table: list[tuple[dict[str, bool], list[str]]] = [
        ({}, ["v.ts"]),
        ({"hidden": True}, [".d/n.ts", ".h.ts", "v.ts"]),
        ({"ignored": True}, ["dist/b.ts", "v.ts"]),
        ({"hidden": True, "ignored": True}, [".d/n.ts", ".h.ts", "dist/b.ts", "v.ts"]),
    ]
    for flags, names in table:
        assert listed(**flags) == names
        assert found(**flags) == names
    assert box.read("dist/b.ts") == "needle\n"
    assert box.ok("grep_files", pattern="needle").data["skipped"]["ignored"] == 1  # type: ignore[index]


def test_results_are_cut_at_max_results(tmp_path: Path) -> None:
    with Box(tmp_path, {"limits": {"max_results": 10}}) as box:
        for n in range(25):
            box.put(f"f{n:02}", "needle\nneedle\n")
        listed = box.ok("list_files")
        assert listed.data is not None
        assert (len(listed.data["entries"]), listed.data["truncated"]) == (10, True)
        assert [e["path"] for e in listed.data["entries"]] == [f"f{n:02}" for n in range(10)]
        assert "first 10" in text_of(listed)
        found = box.ok("grep_files", pattern="needle")
        assert found.data is not None
        assert (len(found.data["matches"]), found.data["truncated"]) == (10, True)
        assert [m["path"] for m in found.data["matches"]] == [f"f{n // 2:02}" for n in range(10)]
        assert "first 10" in text_of(found)


def test_outputs_are_bounded_in_a_temporary_folder_of_any_depth() -> None:
    """Names as long as they may be take their part of the bound."""
    with tempfile.TemporaryDirectory() as name, Box(Path(name)) as box:
        for n in range(300):
            box.put("/".join([f"{n:03}" + "d" * 240] * 3) + "/f", "needle\n")
        for tool, args in (("list_files", {"depth": 9}), ("grep_files", {"pattern": "needle"})):
            result = box.ok(tool, args)
            assert len(text_of(result).encode()) <= 51_200
            assert len(result.artifacts) == 1
            assert len(json.dumps(result.data)) <= 2 * 51_200
