"""list_files, glob_files and grep_files find what is there, say what they left out, and end in time: cases C45 to C51."""

import codecs
import contextlib
import json
import os
import random
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Box, memory_kib, reset_peak, text_of

MIB = 1 << 20
# 500 states at once for each byte: engines that build an automaton for it take gigabytes or minutes.
EXPLOSIVE = "[ab]*a[ab]{500}c"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        yield made


def grep(box: Box, pattern: str, **named: Any) -> dict[str, Any]:
    data = box.ok("grep_files", pattern=pattern, **named).data
    assert data is not None
    return data


def glob(box: Box, pattern: str, **named: Any) -> list[str]:
    data = box.ok("glob_files", pattern=pattern, **named).data
    assert data is not None
    assert data["total"] == len(data["paths"])
    return sorted(data["paths"])


def listed(box: Box, **named: Any) -> dict[str, str]:
    data = box.ok("list_files", **named).data
    assert data is not None
    return {entry["path"]: entry["type"] for entry in data["entries"]}


@pytest.mark.parametrize("padding", [0, 200_000, 2 * MIB])
def test_c45_text_ends_at_the_first_nul_and_that_is_said(box: Box, padding: int) -> None:
    before = b"needle 1\n" + b"a" * padding + b"\n"
    box.put("mixed", before + b"\x00\nneedle 2\n")
    box.put("raw", b"\x00\x01needle\n" * 9)
    box.put("plain", "needle 3\n")
    said = f"[mixed: binary from byte {len(before)} on; what comes after is not searched.]"
    whole = box.ok("grep_files", pattern="needle")
    assert whole.data is not None
    assert [(m["path"], m["line"], m["text"]) for m in whole.data["matches"]] == [
        ("mixed", 1, "needle 1"),
        ("plain", 1, "needle 3"),
    ]
    assert said in text_of(whole)
    assert whole.data["skipped"]["binary"] == 1
    for output in ("content", "count", "files"):
        one = box.ok("grep_files", pattern="needle", path="mixed", output=output)
        assert one.data is not None
        assert one.data["count"] == 1
        assert output == "files" or said in text_of(one)
    only = box.ok("grep_files", pattern="needle", path="raw")
    assert only.data is not None
    assert (only.data["count"], only.data["skipped"]) == (0, {"binary": 1})
    assert "1 binary" in text_of(only)


TABLE: list[tuple[dict[str, bool], list[str]]] = [
    ({}, ["visible.ts"]),
    ({"hidden": False, "ignored": False}, ["visible.ts"]),
    ({"hidden": True}, [".h/n.ts", ".hidden.ts", "visible.ts"]),
    ({"ignored": True}, ["dist/b.ts", "kept.ts", "visible.ts"]),
    ({"hidden": True, "ignored": True}, [".h/n.ts", ".hidden.ts", "dist/b.ts", "kept.ts", "visible.ts"]),
]


@pytest.mark.parametrize("git", [False, True])
@pytest.mark.parametrize(("flags", "names"), TABLE)
def test_c47_one_truth_table(box: Box, git: bool, flags: dict[str, bool], names: list[str]) -> None:
    for name in ("visible.ts", ".hidden.ts", ".h/n.ts", "dist/b.ts", "kept.ts"):
        box.put(name, "needle\n")
    box.put(".gitignore", "dist/\n")
    box.put(".ignore", "kept.ts\n")
    if git:
        box.put(".git/config", "needle\n")
        box.put(".git/x.ts", "needle\n")
    assert glob(box, "**/*.ts", **flags) == names
    assert glob(box, "*.ts", **flags) == names
    assert sorted(grep(box, "needle", include="*.ts", output="files", **flags)["files"]) == names
    assert sorted(listed(box, pattern="*.ts", depth=9, **flags)) == names


@pytest.mark.parametrize("git", [False, True])
def test_c47_a_dot_in_the_pattern_asks_for_it(box: Box, git: bool) -> None:
    for name in (".hidden.ts", ".h/n.ts", ".h/.deep.ts", "sub/.h/n.ts", ".other/n.ts", "dist/.d.ts", "v.ts"):
        box.put(name, "needle\n")
    box.put(".gitignore", "dist/\n")
    if git:
        box.put(".git/config", "needle\n")
    assert glob(box, ".h/*.ts") == [".h/n.ts"]
    assert glob(box, "**/.h/*.ts") == [".h/n.ts", "sub/.h/n.ts"]
    assert glob(box, ".*.ts") == [".hidden.ts"]
    assert glob(box, ".h/.*.ts") == [".h/.deep.ts"]
    assert glob(box, "**/.*.ts", ignored=True) == [".hidden.ts", "dist/.d.ts"]
    # What is ignored can be read, and a folder that is named can be searched.
    assert box.read("dist/.d.ts") == "needle\n"
    assert grep(box, "needle", path=".h")["count"] == 1
    assert grep(box, "needle", path=".git" if git else "sub")["count"] == int(git)


def test_c47_nothing_found_says_what_was_left_out(box: Box) -> None:
    for name in (".a.ts", "dist/b.ts"):
        box.put(name, "needle\n")
    box.put(".gitignore", "dist/\n")
    for tool, args in (
        ("glob_files", {"pattern": "*.ts"}),
        ("grep_files", {"pattern": "needle"}),
        ("list_files", {}),
    ):
        result = box.ok(tool, args)
        assert result.data is not None
        assert result.data["skipped"] == {"hidden": 2, "ignored": 1}
        assert "Skipped: 2 hidden, 1 ignored." in text_of(result)


def test_c48_links_are_listed_and_never_entered(box: Box) -> None:
    folders = [f"a/d{n}" for n in range(8)]
    for folder in folders:
        box.put(f"{folder}/file", "x\n")
    for folder in folders:
        for other in range(8):
            (box.ws / folder / f"l{other}").symlink_to(f"../d{other}")
    (box.ws / "a" / "up").symlink_to("..")
    (box.ws / "self").symlink_to("self")
    (box.ws / "abs").symlink_to("/")
    start = time.perf_counter()
    assert glob(box, "**/file") == [f"{folder}/file" for folder in folders]
    assert sorted(m["path"] for m in grep(box, "x")["matches"]) == [f"{folder}/file" for folder in folders]
    entries = listed(box, depth=99)
    assert time.perf_counter() - start < 1
    assert (entries["self"], entries["abs"], entries["a/up"], entries["a/d0/l7"]) == ("link",) * 4
    assert len(entries) == 1 + 8 + 8 * 9 + 3
    assert grep(box, "x")["skipped"]["links"] == 64 + 3


def test_c49_names_with_characters_that_mean_something(box: Box) -> None:
    for name in ("app/[id]/page.tsx", "app/i/page.tsx", "{a,b}.txt", "a.txt", "my file.txt", "-n", "a\\b"):
        box.put(name, "x\n")
    one = box.ok("glob_files", pattern="app/[id]/page.tsx")
    assert one.data is not None
    assert one.data["paths"] == ["app/i/page.tsx"]
    assert "A file is named exactly app/[id]/page.tsx" in text_of(one)
    two = box.ok("glob_files", pattern="{a,b}.txt")
    assert two.data is not None
    assert two.data["paths"] == ["a.txt"]
    assert "A file is named exactly {a,b}.txt" in text_of(two)
    assert glob(box, "my file.txt") == ["my file.txt"]
    assert glob(box, "-n") == ["-n"]
    assert glob(box, "app/[[]id]/*") == ["app/[id]/page.tsx"]
    assert glob(box, "*.tsx", path="app/[id]") == ["app/[id]/page.tsx"]
    (odd,) = glob(box, "a?b")
    assert box.read(odd) == "x\n"
    assert grep(box, "x", path="app/[id]")["count"] == 1
    assert grep(box, "x", path="-n")["count"] == 1
    assert grep(box, "-n")["count"] == 0
    for broken in ("a[", "{a", "a}", "[z-a]"):
        result = box.call("glob_files", pattern=broken)
        assert result.error is not None
        assert result.error.code == "invalid_pattern"
    unclosed = box.call("glob_files", pattern="a[").error
    assert unclosed is not None
    assert "at offset 1" in unclosed.message


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("(a+)+$", None),
        ("(a|aa)+$", None),
        ("(a*)*b", None),
        ("(x+x+)+y", None),
        ("(?:a?){30}a{30}$", None),
        ("(?<=a)b", "invalid_pattern"),
        ("(?=a)b", "invalid_pattern"),
        (r"(a)\1", "invalid_pattern"),
        ("[", "invalid_pattern"),
        ("*", "invalid_pattern"),
        ("a{1000}{1000}{1000}", "invalid_pattern"),
        (r"(\w{1,1000}){1000}", "invalid_pattern"),
        (r"\pL{1,1000}", "invalid_pattern"),
        ("(" * 2000, "invalid_pattern"),
        ("x" * 100_000, "invalid_pattern"),
        ("", "invalid_args"),
    ],
)
def test_c50_patterns_cost_little_whatever_they_are(box: Box, pattern: str, code: str | None) -> None:
    box.put("f", "a" * 100_000 + "!\n")
    before = memory_kib("VmRSS")
    reset_peak()
    start = time.process_time()
    result = box.call("grep_files", pattern=pattern)
    assert time.process_time() - start < 1
    assert memory_kib("VmHWM") - before < 200 * 1024
    assert (result.error and result.error.code) == code
    if result.error is not None and code == "invalid_pattern":
        assert result.error.hint
        assert len(result.error.message) < 6000
    start = time.process_time()
    box.call("grep_files", pattern=pattern, literal=True)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("pattern", ["*" * 4000, "{a,b}" * 800, "**/" * 1300, "[a-z]" * 800, "{" * 4000, "x" * 5000])
def test_c50_globs_cost_little_whatever_they_are(box: Box, pattern: str) -> None:
    for n in range(20):
        box.put(f"{'a' * 200}{n}", "x\n")
    for tool, args in (
        ("glob_files", {"pattern": pattern}),
        ("list_files", {"pattern": pattern}),
        ("grep_files", {"pattern": "x", "include": pattern}),
    ):
        before = memory_kib("VmRSS")
        reset_peak()
        start = time.process_time()
        error = box.call(tool, args).error
        assert time.process_time() - start < 1
        assert memory_kib("VmHWM") - before < 200 * 1024
        assert error is None or error.code == "invalid_pattern"


def test_c51_names_that_are_not_utf_8(box: Box) -> None:
    folder = os.fsencode(box.ws)
    odd = [bytes.fromhex("64e96ae02e747874"), bytes.fromhex("64e86ae02e747874")]
    for n, name in enumerate([*odd, b"ok.txt"]):
        with open(folder + b"/" + name, "wb") as file:
            file.write(b"NEEDLE %d\n" % n)
    names = sorted(listed(box))
    assert len(names) == 3
    assert names == glob(box, "*.txt") == sorted(m["path"] for m in grep(box, "NEEDLE")["matches"])
    assert "ok.txt" in names
    assert sorted(box.read(name) for name in names) == [f"NEEDLE {n}\n" for n in range(3)]
    for name in names:
        name.encode()
        assert grep(box, "NEEDLE", path=name)["count"] == 1
    assert json.dumps(names)


def test_context_lines(box: Box) -> None:
    box.put("f", "".join(f"line {n}\n" for n in range(1, 21)).replace("line 5\n", "needle\n"))
    box.put("g", "needle\n\n\nneedle\nend\n\n\n\nneedle")

    def shown(context: int, path: str) -> str:
        return text_of(box.ok("grep_files", pattern="needle", context=context, path=path))

    assert shown(0, "f") == "f:5:needle\n"
    assert shown(2, "f") == "f-3-line 3\nf-4-line 4\nf:5:needle\nf-6-line 6\nf-7-line 7\n"
    assert shown(20, "f").count("\n") == 20
    # Windows that touch are one, others are set apart.
    assert shown(1, "g") == "g:1:needle\ng-2-\ng-3-\ng:4:needle\ng-5-end\n--\ng-8-\ng:9:needle\n"
    both = text_of(box.ok("grep_files", pattern="needle", context=1))
    assert both == shown(1, "f") + shown(1, "g") or both == shown(1, "f") + "--\n" + shown(1, "g")
    data = grep(box, "needle", context=2)
    assert (data["count"], data["files"], [m["line"] for m in data["matches"]]) == (4, 2, [5, 1, 4, 9])


def test_modes_agree(box: Box) -> None:
    counts = {"a/one": 1, "b": 3, "c/d/e": 2}
    for name, count in counts.items():
        box.put(name, "needle needle\nother\n" * count)
    box.put("none", "other\n")
    content, files, count = (grep(box, "needle", output=mode) for mode in ("content", "files", "count"))
    assert (content["count"], content["files"]) == (6, 3)
    assert [m["path"] for m in content["matches"]] == ["a/one", "b", "b", "b", "c/d/e", "c/d/e"]
    assert files["files"] == list(counts)
    assert (count["count"], count["files"]) == (6, 3)
    assert text_of(box.ok("grep_files", pattern="needle", output="count")) == "a/one:1\nb:3\nc/d/e:2\n"
    assert text_of(box.ok("grep_files", pattern="needle", output="files")) == "a/one\nb\nc/d/e\n"


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("lines", [3, 20_000])
def test_marked_texts_are_searched_as_text(box: Box, codec: str, lines: int) -> None:
    """Also those that are not read whole."""
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(codec, b"")
    text = "first \u2500\r\n" + "filler of some length\n" * (lines - 2) * 2 + "last \U0001f378 needle"
    box.put("f", mark + text.encode(codec))
    number = text.count("\n") + 1
    assert [(m["line"], m["column"], m["text"]) for m in grep(box, "^first")["matches"]] == [(1, 1, "first \u2500")]
    (match,) = grep(box, "needle$")["matches"]
    assert (match["line"], match["column"], match["text"]) == (number, 8, "last \U0001f378 needle")
    assert grep(box, "\u2500|\U0001f378", output="count")["count"] == 2
    assert grep(box, "needle", context=1)["skipped"] == {}


@pytest.mark.parametrize("wide", ["x", "\u00e9", "\u2500", "\U0001f378"])
def test_long_lines_are_cut_around_the_match(tmp_path: Path, wide: str) -> None:
    """Whatever lies at the borders of the cut, what is shown is text of the line with the match in it."""
    limit = 100
    with Box(tmp_path, {"limits": {"max_line_bytes": limit}}) as box:
        places = [0, 1, 2, 3, 24, 49, 50, 51, 99, 100, 101, 102, 150, 198, 199, 200]
        lines = [("ab"[: n % 3] + wide * n + "needle" + wide * (200 - n)) for n in places]
        box.put("f", "\n".join(lines))
        matches = grep(box, "needle")["matches"]
        assert len(matches) == len(lines)
        for line, match in zip(lines, matches, strict=True):
            shown = match["text"].removeprefix("\u2026").removesuffix("\u2026")
            assert match["truncated"] is True
            assert shown in line
            assert "needle" in shown
            assert limit - 8 <= len(shown.encode()) <= limit
            assert match["column"] == line.index("needle") + 1
            assert match["text"].startswith("\u2026") != line.startswith(shown)
            assert match["text"].endswith("\u2026") != line.endswith(shown)
        # A match that is itself longer shows its beginning.
        (whole,) = grep(box, f"needle{wide}+", path="f", context=0)["matches"][:1]
        assert whole["text"].startswith("needle" + wide * 10)


def test_lines_longer_than_what_is_searched_are_counted(box: Box) -> None:
    box.put("f", "needle" + "x" * (3 * MIB) + "needle\nneedle\n")
    data = grep(box, "needle")
    assert [(m["line"], m["column"]) for m in data["matches"]] == [(1, 1), (2, 1)]
    assert data["skipped"] == {"line_ends_not_searched": 1}


def test_order_is_the_same_in_every_run(box: Box) -> None:
    dice = random.Random(7)
    names = [f"{dice.choice('abc')}/{dice.choice('xyz')}{n:03}" for n in range(400)]
    for name in dice.sample(names, len(names)):
        path = box.put(name, "needle\n" * dice.randint(1, 3))
        os.utime(path, ns=(0, dice.randint(1, 5) * 10**9))
    first = {tool: box.ok(tool, args).data for tool, args in ORDERED}
    for _ in range(20):
        assert {tool: box.ok(tool, args).data for tool, args in ORDERED} == first
    matches = first["grep_files"]["matches"]  # type: ignore[index]
    assert [m["path"] for m in matches] == sorted(m["path"] for m in matches)
    paths = first["glob_files"]["paths"]  # type: ignore[index]
    assert paths == sorted(paths, key=lambda name: (-(box.ws / name).stat().st_mtime_ns, name))


ORDERED: list[tuple[str, dict[str, Any]]] = [
    ("grep_files", {"pattern": "needle"}),
    ("glob_files", {"pattern": "**"}),
    ("list_files", {"depth": 9}),
]


@pytest.mark.slow
def test_a_cap_stops_the_work(tmp_path: Path) -> None:
    """Not only the output: of 20,000 files that all match, few are read."""
    with Box(tmp_path, {"limits": {"max_results": 50}}) as box:
        text = "common = 1\n" + "filler of some length\n" * 50
        for folder in range(200):
            for n in range(100):
                box.put(f"d{folder:03}/f{n:03}", text)
        times: list[float] = []
        for pattern in ("rare|comm0n", "common"):
            start = time.perf_counter()
            data = grep(box, pattern)
            times.append(time.perf_counter() - start)
        assert (data["count"], data["truncated"]) == (50, True)
        assert [m["path"] for m in data["matches"]] == [f"d000/f{n:03}" for n in range(50)]
        read = [record["bytes_in"] for record in box.records[-2:]]
        assert read[0] == 20_000 * len(text)
        assert read[1] < read[0] / 20
        assert times[1] < times[0] / 5
        for mode in ("files", "count"):
            assert grep(box, "common", output=mode)["truncated"] is True
            assert box.records[-1]["bytes_in"] < read[0] / 20


def explosive_text(shape: str) -> dict[str, str]:
    """4 MiB that the explosive pattern almost matches everywhere."""
    letters = "".join(random.Random(5).choices("ab", k=MIB))
    lines = "dc\n".join(letters[n : n + 1000] for n in range(0, MIB - 10_000, 1000))
    if shape == "lines":
        return {"f": lines * 4}
    if shape == "one line":
        return {"f": "dc".join(letters[n : n + 100_000] for n in range(0, MIB, 100_000)) * 4}
    return {f"f{n}": lines if shape == "files" else letters[:-10] + "dc" for n in range(4)}


@pytest.mark.parametrize("shape", ["lines", "one line", "files", "files of one line"])
def test_a_deadline_holds_inside_a_file(tmp_path: Path, shape: str) -> None:
    with Box(tmp_path, {"limits": {"timeout_s": 2}}) as box:
        for name, text in explosive_text(shape).items():
            box.put(name, text)
        before = memory_kib("VmRSS")
        reset_peak()
        start = time.perf_counter()
        error = box.call("grep_files", pattern=EXPLOSIVE).error
        assert time.perf_counter() - start < 3
        assert memory_kib("VmHWM") - before < 200 * 1024
        assert error is None or error.code == "timeout"


@pytest.mark.parametrize("shape", ["lines", "files of one line"])
def test_cancelling_holds_inside_a_file(box: Box, shape: str) -> None:
    for name, text in explosive_text(shape).items():
        box.put(name, text)
    timer = threading.Timer(0.3, box.context.cancel)
    timer.start()
    start = time.perf_counter()
    assert box.code("grep_files", pattern=EXPLOSIVE) == "cancelled"
    assert time.perf_counter() - start < 3
    timer.join()


def test_a_search_without_descriptors_says_what_it_left_out(box: Box) -> None:
    for name in ("a/x", "a/y", "b/x"):
        box.put(name, "needle\n")
    box.ok("grep_files", pattern="needle")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        # One is left: a folder can be opened, but nothing in it.
        os.close(held.pop())
        result = box.call("grep_files", pattern="needle")
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    if box.context.guarantees()["mounts"]["workspace"]["resolver"] == "descent":
        # It takes two to open the first folder.
        assert result.error is not None
        assert result.error.code == "io"
        return
    assert result.data is not None
    assert (result.data["count"], result.data["skipped"]) == (0, {"out_of_descriptors_or_memory": 3})
