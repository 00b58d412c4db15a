"""Search finds what ripgrep finds. Where it differs it does so on purpose, and nowhere else:

- Ignore files hold with and without a git repository: ripgrep gets `--no-require-git`.
- `hidden` alone decides on names with a dot: in ripgrep, `!.name` in an ignore file shows one.
- `include` only narrows: in ripgrep, `-g` also shows what is hidden or ignored.
- `.git` is never entered unless it is named: it holds nothing that a model should search by chance.
- `glob_files` gives links too, which a model may want to read; `rg --files` leaves them out. Neither enters them.
- The text of a file ends at its first NUL byte, however it is read, and where that is is said. ripgrep gives up the
  block that holds it, so that what it finds before depends on the size of its buffer.
- A rule that is a lone `!` says nothing, as in git; ripgrep 15.2 takes it for `!*`.
- Ignore files that are links, `.rgignore`, and a `.git` that is a file are not followed: they lead out of the sandbox.

UTF-16 with a byte order mark is no difference: both decode it.
"""

import base64
import codecs
import json
import os
import random
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import Box

RG = shutil.which("rg", path=sysconfig.get_path("scripts")) or "rg"
REPOSITORY = Path(__file__).parents[2]
CRATES = ("regex-automata", "ignore", "encoding_rs", "serde_json", "rustix")
# Nothing is cut off, and what is named like a secret is searched as ripgrep would.
CONFIG = {
    "limits": {"max_results": 1_000_000, "max_output_bytes": 67_108_864, "max_line_bytes": 1_048_576},
    "permissions": {"rules": [{"action": "read_secret", "resource": "*", "effect": "allow"}]},
}
FLAGS = [{}, {"hidden": True}, {"ignored": True}, {"hidden": True, "ignored": True}]


class Line(NamedTuple):
    """A line that matches; what is not UTF-8 is replaced."""

    path: bytes
    line: int
    column: int
    text: str


def rg(root: Path, *args: str) -> bytes:
    """What ripgrep prints about `root`."""
    command = [RG, "--no-config", "--no-ignore-parent", "--no-ignore-global", "--no-require-git", *args, "./"]
    done = subprocess.run(command, cwd=root, capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode in (0, 1), done.stderr.decode(errors="replace")
    return done.stdout


def as_rg(flags: dict[str, Any]) -> list[str]:
    names = {
        "hidden": "--hidden",
        "ignored": "--no-ignore",
        "ignore_case": "--ignore-case",
        "literal": "--fixed-strings",
    }
    return [names[name] for name, value in flags.items() if name in names and value]


def in_git(path: bytes) -> bool:
    return b".git" in path.split(b"/")[:-1]


def has_dot(path: bytes) -> bool:
    return any(part.startswith(b".") for part in path.split(b"/"))


def rg_files(root: Path, flags: dict[str, Any]) -> set[bytes]:
    names = (name.removeprefix(b"./") for name in rg(root, "--files", "--null", *as_rg(flags)).split(b"\0") if name)
    return {name for name in names if not in_git(name) and (flags.get("hidden") or not has_dot(name))}


def rg_lines(root: Path, pattern: str, flags: dict[str, Any]) -> set[Line]:
    """ripgrep's matching lines, of each file up to its first NUL byte."""
    files = None
    if (include := flags.get("include")) is not None:
        names = rg(root, "--files", "--null", "--hidden", "--no-ignore", f"--glob={include}").split(b"\0")
        files = {name.removeprefix(b"./") for name in names}
    found: set[Line] = set()
    for row in rg(root, "--json", "--text", *as_rg(flags), f"--regexp={pattern}").splitlines():
        event = json.loads(row)
        if event["type"] != "match":
            continue
        data = event["data"]
        path = raw(data["path"]).removeprefix(b"./")
        if in_git(path) or (has_dot(path) and not flags.get("hidden")) or (files is not None and path not in files):
            continue
        bytes_, start = raw(data["lines"]), data["submatches"][0]["start"]
        end = text_end(root / os.fsdecode(path))
        if end is not None and data["absolute_offset"] + len(bytes_) > end:
            continue
        text = bytes_.removesuffix(b"\n").removesuffix(b"\r").decode(errors="replace")
        column = len(bytes_[:start].decode(errors="replace")) + 1
        found.add(Line(path, data["line_number"], column, text))
    return found


def raw(text: dict[str, str]) -> bytes:
    return text["text"].encode() if "text" in text else base64.b64decode(text["bytes"])


@cache
def text_end(path: Path) -> int | None:
    """Where the first NUL byte of a file is; it is on a line that is not compared."""
    data = path.read_bytes()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return None
    at = data.find(b"\0")
    return None if at < 0 else at


def unprinted(path: str) -> bytes:
    """The name that a printed path stands for."""
    if path.startswith('"'):
        inner = path[1:-1]
        escapes = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", '"': b'"'}

        def plain(found: re.Match[str]) -> str:
            if found[1]:
                return bytes([int(found[1], 16)]).decode(errors="surrogateescape")
            return chr(int(found[2], 16)) if found[2] else escapes[found[3]].decode()

        path = re.sub(r"\\(?:x([0-9a-f]{2})|u\{([0-9a-f]+)\}|(.))", plain, inner)
    return path.removeprefix("workspace/").encode(errors="surrogateescape")


def our_files(box: Box, flags: dict[str, Any], start: str = ".") -> set[bytes]:
    data = box.ok("glob_files", pattern="**", path=start, **flags).data
    assert data is not None
    assert not data["truncated"]
    assert len(set(data["paths"])) == len(data["paths"]) == data["total"]
    names = map(unprinted, data["paths"])
    return {below(name, start) for name in names if not (box.ws / os.fsdecode(name)).is_symlink()}


def our_lines(box: Box, pattern: str, flags: dict[str, Any], start: str = ".") -> set[Line]:
    data = box.ok("grep_files", pattern=pattern, path=start, **flags).data
    assert data is not None
    assert not data["truncated"]
    rows = [Line(unprinted(m["path"]), m["line"], m["column"], m["text"]) for m in data["matches"]]
    assert len(set(rows)) == len(rows) == data["count"]
    # A line that holds the first NUL byte, or what is left of it, is not compared.
    found: set[Line] = set()
    for row in rows:
        end = text_end(box.ws / os.fsdecode(row.path))
        if end is None or not on_last_line(box.ws / os.fsdecode(row.path), row.line, end):
            found.add(row._replace(path=below(row.path, start)))
    return found


def on_last_line(path: Path, line: int, end: int) -> bool:
    return path.read_bytes()[:end].count(b"\n") + 1 <= line


def below(name: bytes, start: str) -> bytes:
    return name if start == "." else name.removeprefix(os.fsencode(start) + b"/")


def agree(theirs: Callable[[], set[Any]], ours: Callable[[], set[Any]], what: object) -> int:
    """Fails where both differ; what another process changes in the meantime is not held against either."""
    before = theirs()
    mine = ours()
    after = before if before == mine else theirs()
    missed, surplus = (before & after) - mine, mine - (before | after)
    assert not missed, f"{what}: {len(missed)} not found, such as {sorted(missed)[:3]}"
    assert not surplus, f"{what}: {len(surplus)} found that ripgrep does not, such as {sorted(surplus)[:3]}"
    return len(mine)


def tree(root: Path, workspace: Path) -> Box:
    return Box(root, CONFIG, workspace=str(workspace))


@cache
def crate_folders() -> dict[str, Path]:
    """The sources of our dependencies, where cargo unpacked them."""
    command = ["cargo", "metadata", "--format-version=1", "--offline", "--locked"]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True)
    except FileNotFoundError:
        return {}
    packages = json.loads(done.stdout)["packages"] if done.returncode == 0 else []
    return {package["name"]: Path(package["manifest_path"]).parent for package in packages}


def crate(name: str) -> Path:
    folder = crate_folders().get(name)
    if folder is None or not folder.is_dir():
        pytest.skip(f"cargo has not unpacked the sources of {name}")
    return folder


def test_same_files_in_this_repository(tmp_path: Path) -> None:
    with tree(tmp_path, REPOSITORY) as box:
        for flags in FLAGS[:2]:
            assert agree(lambda f=flags: rg_files(REPOSITORY, f), lambda f=flags: our_files(box, f), flags) > 50


@pytest.mark.slow
def test_same_files_in_this_repository_with_what_was_built(tmp_path: Path) -> None:
    with tree(tmp_path, REPOSITORY) as box:
        for flags in FLAGS[2:]:
            assert agree(lambda f=flags: rg_files(REPOSITORY, f), lambda f=flags: our_files(box, f), flags) > 50


@pytest.mark.parametrize("name", CRATES)
def test_same_files_in_a_crate(tmp_path: Path, name: str) -> None:
    folder = crate(name)
    with tree(tmp_path, folder) as box:
        for flags in FLAGS:
            assert agree(lambda f=flags: rg_files(folder, f), lambda f=flags: our_files(box, f), flags) > 10


def sample_lines(root: Path, dice: random.Random) -> list[str]:
    """Lines of text from files all over a tree."""
    names = sorted(rg_files(root, {}))
    lines: list[str] = []
    for name in dice.sample(names, min(len(names), 60)):
        data = (root / os.fsdecode(name)).read_bytes()
        if b"\0" not in data:
            texts = [line for line in data.decode(errors="ignore").splitlines() if 12 < len(line.strip()) < 160]
            lines += dice.sample(texts, min(len(texts), 20))
    return lines


INCLUDES = ["*.rs", "*.{rs,toml}", "src/*.rs", "src/**", "**/*.md", "[a-m]*", "*s.*", "**/src/**/*.rs", "?????.rs"]


def generate(dice: random.Random, lines: list[str], count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Patterns that are taken from lines, of many shapes, each with flags."""
    for number in range(count):
        line = dice.choice(lines).strip()
        words = re.findall(r"[A-Za-z_]{3,}", line) or ["fn"]
        one, two = dice.choice(words), dice.choice(words)
        start = dice.randrange(len(line) - 6)
        piece = line[start : start + dice.randint(4, 24)]
        shapes: list[str] = [
            one,
            rf"\b{one}\b",
            rf"^\s*{one}",
            rf"{one}.*{two}",
            rf"({one}|{two}_?\w+)\s*[(:=]",
            f"{one[:2]}[a-z_]+{one[-1]}\\b",
            rf"(?i){one}$",
            rf"{re.escape(piece)}$",
            rf"^{re.escape(line[:12])}",
            rf"{one}\W+{two}",
            r"[A-Z]{3,}_[A-Z]+[^\w\s]",
            rf"\b\d{{2,}}\b.*{two}",
            r"[^\x00-\x7F]+",
            rf"(?:{one[:1]}{{1,2}}|{two[:2]})\w*\(\)",
            rf"{one}[^\n]{{0,10}}$",
            r"\p{Lu}\p{Ll}+<",
            r";\s+$",
            rf"(?-i:{one}).{{3}}(?P<x>{two[-2:]})?",
        ]
        flags: dict[str, Any] = {}
        if number % 3 == 0:
            pattern, flags["literal"] = piece, True
        else:
            pattern = shapes[number % len(shapes)]
        if dice.random() < 0.25:
            flags["ignore_case"] = True
        if dice.random() < 0.3:
            flags["include"] = dice.choice(INCLUDES)
        yield pattern, flags | dice.choice(FLAGS)


def check_patterns(tmp_path: Path, root: Path, seed: int, count: int, *, built: bool = False) -> int:
    """How many lines both found."""
    dice = random.Random(seed)
    found = 0
    with tree(tmp_path, root) as box:
        for pattern, flags in generate(dice, sample_lines(root, dice), count):
            chosen = flags if built else {name: value for name, value in flags.items() if name != "ignored"}
            found += agree(
                lambda p=pattern, f=chosen: rg_lines(root, p, f),
                lambda p=pattern, f=chosen: our_lines(box, p, f),
                (pattern, chosen),
            )
    return found


def test_same_lines_in_this_repository(tmp_path: Path) -> None:
    assert check_patterns(tmp_path, REPOSITORY, 1, 24) > 100


@pytest.mark.slow
def test_same_lines_in_this_repository_at_length(tmp_path: Path) -> None:
    assert check_patterns(tmp_path, REPOSITORY, 2, 76) > 300


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "name"), [*enumerate(CRATES)])
def test_same_lines_in_a_crate(tmp_path: Path, seed: int, name: str) -> None:
    assert check_patterns(tmp_path, crate(name), 100 + seed, 20, built=True) > 50


ODD_TEXTS: list[bytes] = [
    b"",
    b"needle",
    b"needle\r\nNEEDLE\r\n\r\n needle \r\n",
    b"\xef\xbb\xbfneedle\nx\n",
    b"\n\n\nneedle\n\n",
    codecs.BOM_UTF16_LE + "one\nneedle \u2500\r\nthree\n".encode("utf-16-le"),
    codecs.BOM_UTF16_BE + "one\nneedle \u2500\nneedle".encode("utf-16-be"),
    codecs.BOM_UTF16_LE + ("x" * 9000 + "\nneedle\n").encode("utf-16-le") * 70,
    b"caf\xe9 needle\nneedle \xff\xfe\n",
    b"needle 1\nneedle \x00 2\nneedle 3\n",
    b"needle 1\n" + b"a" * 200_000 + b"\n\x00\nneedle 2\n",
    (b"x" * 9000 + b"\nneedle\n") * 130,
    b"a" * 100_000 + b"needle\n" + b"needle" * 20_000,
    "\u2500needle\U0001f378\nn\u00e9\u00e8dle \u017f\u212a sk\n".encode(),
]


def test_same_lines_in_texts_of_every_kind(tmp_path: Path) -> None:
    """Empty, without a last line end, CRLF, marked, UTF-16, no UTF-8, binary, larger than what is read whole."""
    with Box(tmp_path, CONFIG) as box:
        for n, text in enumerate(ODD_TEXTS):
            box.put(f"f{n:02}", text)
        patterns = ["needle", "^needle", "needle$", "(?m)^needle$", "^$", r"\s$", r"needle\s*\r?$", "^", r"[^x]+$"]
        patterns += ["e{2}|^$", r"(?i)SK", r"n\w\wdle", r"\bneedle\b", "^.", r"\W$", r"(?-u:\xe9)", "needle|\u2500"]
        for pattern in patterns:
            for flags in ({}, {"ignore_case": True}):
                agree(
                    lambda p=pattern, f=flags: rg_lines(box.ws, p, f),
                    lambda p=pattern, f=flags: our_lines(box, p, f),
                    (pattern, flags),
                )


NAMES = st.sampled_from(["a", "b", "x.py", "y.rs", ".h", "a b", "build", "#x", "!y", "z.PY", "\u00e9"])
RULE_PARTS = st.sampled_from(
    ["a", "b", "x.py", "y.rs", ".h", "a b", "build", "*", "*.py", "?", "[ab]", "**", "{a,b}", "x*"]
)
ENDS = ["", "", "", "/", " ", "\\ ", "\r", "/**"]
ODD_RULES = ["", "#x", r"\#x", r"\!y", "/", "**", "/**", "!*", "!*/", "**/", "[", "a//b", r"a\ b", "*/*", "!/a/", "./a"]
RULES = st.one_of(
    st.sampled_from(ODD_RULES),
    st.builds(
        lambda no, root, parts, end: no + root + "/".join(parts) + end,
        st.sampled_from(["", "", "!"]),
        st.sampled_from(["", "", "/", "**/"]),
        st.lists(RULE_PARTS, min_size=1, max_size=3),
        st.sampled_from(ENDS),
    ),
)
RULE_FILES = st.lists(RULES, min_size=1, max_size=5).map("\n".join)
TREES = st.recursive(
    st.none(),
    lambda below: st.fixed_dictionaries(
        {"names": st.dictionaries(NAMES, below, max_size=5)}, optional={".gitignore": RULE_FILES, ".ignore": RULE_FILES}
    ),
    max_leaves=20,
).filter(lambda node: node is not None)


def plant(folder: Path, node: dict[str, Any]) -> None:
    folder.mkdir()
    for name in (".gitignore", ".ignore"):
        if name in node:
            (folder / name).write_text(node[name], encoding="utf-8")
    for name, below_ in node["names"].items():
        if below_ is None:
            (folder / name).write_text("needle\n", encoding="utf-8")
        else:
            plant(folder / name, below_)


def check_trees(examples: int) -> None:
    """Trees with ignore files of every kind, as repositories and as plain folders, from the top and from within."""
    with tempfile.TemporaryDirectory() as name, Box(Path(name), CONFIG) as box:
        numbers = iter(range(1_000_000))

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        @given(TREES, st.one_of(st.none(), RULE_FILES), st.sampled_from(FLAGS))
        def check(node: dict[str, Any], exclude: str | None, flags: dict[str, Any]) -> None:
            start = f"t{next(numbers)}"
            root = box.ws / start
            plant(root, node)
            plain = our_files(box, flags, start)
            assert plain == rg_files(root, flags)
            if exclude is None:
                subprocess.run(["git", "init", "--quiet", root], check=True)
                assert our_files(box, flags, start) == plain
            else:
                (root / ".git" / "info").mkdir(parents=True)
                (root / ".git" / "info" / "exclude").write_text(exclude, encoding="utf-8")
                assert our_files(box, flags, start) == rg_files(root, flags)
            assert {row.path for row in our_lines(box, "needle", flags, start)} == {
                row.path for row in rg_lines(root, "needle", flags)
            }
            for within in sorted(path for path in root.iterdir() if path.is_dir() and path.name != ".git")[:1]:
                assert our_files(box, flags, f"{start}/{within.name}") == rg_files(within, flags)
            shutil.rmtree(root)

        check()


def test_same_files_under_generated_ignore_files() -> None:
    check_trees(60)


@pytest.mark.slow
def test_same_files_under_generated_ignore_files_at_length() -> None:
    check_trees(120)


def names_of(found: Iterable[bytes]) -> list[str]:
    return sorted(name.decode() for name in found)


def test_where_search_differs_from_ripgrep(tmp_path: Path) -> None:
    """Each difference that is listed at the top of this file is there, and is no other than that."""
    with Box(tmp_path, CONFIG) as box:
        for name in ("v.py", ".h.py", "o.py", ".git/config.py", "sub/.git", "sub/s.py", "r.py", "g.py"):
            box.put(name, "needle\n")
        box.put(".gitignore", "!.h.py\no.py\n")
        box.put(".rgignore", "r.py\n")
        box.put("elsewhere", "g.py\n")
        (box.ws / ".ignore").symlink_to("elsewhere")
        (box.ws / "link.py").symlink_to("v.py")
        ours = box.ok("glob_files", pattern="**/*.py").data
        assert ours is not None
        assert sorted(ours["paths"]) == ["g.py", "link.py", "r.py", "sub/s.py", "v.py"]
        plain = rg(box.ws, "--files").split()
        assert names_of(name.removeprefix(b"./") for name in plain if name.endswith(b".py")) == [
            ".h.py",
            "sub/s.py",
            "v.py",
        ]
        hidden = box.ok("grep_files", pattern="needle", hidden=True, ignored=True, output="files").data
        assert hidden is not None
        assert hidden["files"] == [".h.py", "g.py", "o.py", "r.py", "sub/.git", "sub/s.py", "v.py"]
        assert names_of(rg_files(box.ws, {"hidden": True, "ignored": True})) == sorted(
            [*hidden["files"], ".gitignore", ".rgignore", "elsewhere"]
        )
        assert b".git/config.py" in rg(box.ws, "--files", "--hidden", "--no-ignore")
        named = box.ok("grep_files", pattern="needle", path=".git", output="files").data
        assert named is not None
        assert named["files"] == [".git/config.py"]
        narrowed = box.ok("grep_files", pattern="needle", include="o.py").data
        assert narrowed is not None
        assert (narrowed["count"], narrowed["skipped"]["ignored"]) == (0, 1)
        assert rg(box.ws, "--count", "--glob=o.py", "needle") == b"./o.py:1\n"
