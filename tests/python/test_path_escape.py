"""No path that a model can write leads out of the mounts: cases C01 to C15, and their kinds."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Box, in_child, snapshot, text_of

from kgent_tools import (
    PermissionRule,
    RunContext,
    RunError,
    ToolFailure,
    ToolResult,
    ToolsConfig,
    build_toolsets,
    resolve_sandbox_path,
)

OUTSIDE_WORDS = ("TOPSECRET", "root:x:0")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        made.put("a.txt", "A\n")
        before = {name: snapshot(tmp_path / name) for name in ("outside", "ws-evil")}
        yield made
        assert {name: snapshot(tmp_path / name) for name in before} == before, "something outside was touched"


def every_tool(box: Box, path: str) -> dict[str, tuple[str | None, ToolResult]]:
    """All four tools on one path: what each answered."""
    results = {
        "read_file": box.call("read_file", path=path),
        "write_file": box.call("write_file", path=path, content="x"),
        "list_files": box.call("list_files", path=path, depth=9, hidden=True, ignored=True),
        "grep_files": box.call("grep_files", path=path, pattern="TOPSECRET|root", hidden=True, ignored=True),
    }
    for name, result in results.items():
        said = text_of(result) + repr(result.to_dict())
        said = said.replace("searched for `TOPSECRET|root`", "")
        assert not any(word in said for word in OUTSIDE_WORDS), f"{name} {path!r}: {said}"
    return {name: (result.error and result.error.code, result) for name, result in results.items()}


def all_refused(box: Box, path: str, code: str = "outside_sandbox") -> None:
    codes = {name: found for name, (found, _) in every_tool(box, path).items()}
    assert codes == dict.fromkeys(codes, code), f"{path!r}: {codes}"


@pytest.mark.parametrize(
    "path",
    [
        "../ws-evil/secret",
        "../ws-evil",
        "..",
        "../",
        "../.",
        "./..",
        "a/../..",
        "../ws/a.txt",
        "../../..",
        "..//outside",
    ],
)
def test_c01_dots_that_leave(box: Box, path: str) -> None:
    all_refused(box, path)


def test_c01_sibling_with_the_same_prefix(box: Box) -> None:
    all_refused(box, f"{box.root}/ws-evil/secret")
    all_refused(box, f"{box.root}/ws-evil")
    all_refused(box, f"{box.ws}-evil/secret")
    all_refused(box, f"{box.ws}/../ws-evil/secret")
    all_refused(box, str(box.root))


@pytest.mark.parametrize("prefix", ["deliverables", "artifacts", "workspace"])
def test_c01_dots_that_leave_another_mount(box: Box, prefix: str) -> None:
    all_refused(box, f"{prefix}/../logs/tools.jsonl")
    all_refused(box, f"{prefix}/../../x")
    all_refused(box, f"{prefix}/sub/../../events.jsonl")


def test_c02_link_out(box: Box) -> None:
    box.put("keep.txt", "nothing here\n")
    (box.ws / "link").symlink_to("../outside")
    for path in ("link/secret", "link/new", "link", "link/", "link/.", "./link", "link//secret", "link/sub/new"):
        all_refused(box, path)
    text = box.text("grep_files", pattern="TOPSECRET")
    assert "No matches" in text
    data = box.ok("list_files", depth=9).data
    assert data is not None
    assert [(e["path"], e["type"]) for e in data["entries"]] == [
        ("a.txt", "file"),
        ("keep.txt", "file"),
        ("link", "link"),
    ]


def test_c02_chains_of_links_out(box: Box) -> None:
    (box.ws / "l1").symlink_to("l2")
    (box.ws / "l2").symlink_to("l3/..")
    (box.ws / "l3").symlink_to("../outside/")
    (box.ws / "deep").mkdir()
    (box.ws / "deep/up").symlink_to("../../outside/secret")
    (box.ws / "abs").symlink_to(box.outside)
    (box.ws / "file").symlink_to(box.outside / "secret")
    for path in ("l1", "l1/outside/secret", "l3/secret", "deep/up", "abs/secret", "abs", "file", "deep/../deep/up"):
        all_refused(box, path)
    for n in range(45):
        (box.ws / f"c{n}").symlink_to(f"c{n + 1}" if n < 44 else "../outside/secret")
    assert {code for code, _ in every_tool(box, "c0").values()} <= {"outside_sandbox", "not_found"}


def test_c02_links_inside_work(box: Box) -> None:
    box.put("sub/f", "in\n")
    (box.ws / "in").symlink_to("sub")
    (box.ws / "abs").symlink_to(box.ws / "sub")
    (box.ws / "sub/back").symlink_to("../a.txt")
    (box.ws / "round").symlink_to("../ws/sub")
    for name in ("in", "abs", "round"):
        assert box.read(f"{name}/f") == "in\n"
        assert box.text("list_files", path=name).startswith("sub/")
        assert box.text("grep_files", path=name, pattern="in").splitlines()[0] == "sub/f:1:in"
        box.ok("write_file", path=f"{name}/new-{name}", content=name)
        assert (box.ws / f"sub/new-{name}").read_text(encoding="utf-8") == name
        assert (box.ws / name).is_symlink()
    assert box.read("in/back") == "A\n"
    assert box.read("in/../a.txt") == "A\n"


def test_c02_a_write_goes_through_a_link_inside(box: Box) -> None:
    box.put("dot/zshrc", "old\n")
    (box.ws / "zshrc").symlink_to("dot/zshrc")
    box.ok("write_file", path="zshrc", content="new\n")
    assert (box.ws / "zshrc").is_symlink()
    assert (box.ws / "dot/zshrc").read_bytes() == b"new\n"


def test_c02_dots_after_a_link_mean_what_the_kernel_says(box: Box) -> None:
    box.put("deep/er/f", "deep\n")
    box.put("deep/top", "top\n")
    (box.ws / "short").symlink_to("deep/er")
    assert box.read("short/../top") == "top\n"
    (box.ws / "out").symlink_to("../outside")
    all_refused(box, "out/../ws/a.txt")
    all_refused(box, "out/..")


def test_c02_link_into_another_mount(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "d.md").write_text("doc\n", encoding="utf-8")
    with Box(tmp_path, mounts={"docs": (docs, "ro")}) as box:
        (box.ws / "l").symlink_to("../docs")
        (box.ws / "labs").symlink_to(docs)
        for name in ("l", "labs"):
            result = box.ok("read_file", path=f"{name}/d.md")
            assert result.data is not None
            assert (result.data["content"], result.data["path"]) == ("doc\n", f"{name}/d.md")
            assert box.code("write_file", path=f"{name}/d.md", content="x") == "read_only"
            assert box.code("write_file", path=f"{name}/new", content="x") == "read_only"
            assert box.text("grep_files", path=name, pattern="doc") == "docs/d.md:1:doc\n"
        (docs / "back").symlink_to("../ws")
        # The requested name is judged too: what is named below a read-only mount is not written, wherever a link leads.
        assert box.code("write_file", path="docs/back/w", content="w") == "read_only"
        assert not (box.ws / "w").exists()
        assert sorted(p.name for p in docs.iterdir()) == ["back", "d.md"]


def test_c04_dangling_link_on_create(box: Box) -> None:
    (box.ws / "new.txt").symlink_to("../pwned.txt")
    (box.ws / "abs.txt").symlink_to(box.root / "pwned.txt")
    (box.ws / "dir").symlink_to("../nowhere")
    for path in ("new.txt", "abs.txt", "dir/x", "dir/a/b"):
        assert box.code("write_file", path=path, content="x") == "outside_sandbox"
    assert not (box.root / "pwned.txt").exists()
    assert not (box.root / "nowhere").exists()
    assert os.readlink(box.ws / "new.txt") == "../pwned.txt"
    (box.ws / "inner").symlink_to("made/later.txt")
    box.ok("write_file", path="inner", content="through")
    assert os.readlink(box.ws / "inner") == "made/later.txt"
    assert (box.ws / "made/later.txt").read_bytes() == b"through"


def test_c04_link_cycles_end(box: Box) -> None:
    (box.ws / "self").symlink_to("self")
    (box.ws / "x").symlink_to("y")
    (box.ws / "y").symlink_to("x")
    (box.ws / "d").mkdir()
    (box.ws / "d/up").symlink_to("..")
    for path in ("self", "x", "self/f"):
        codes = {code for code, _ in every_tool(box, path).values()}
        assert codes <= {"not_found", "outside_sandbox"}
    data = box.ok("list_files", depth=99).data
    assert data is not None
    assert [e["path"] for e in data["entries"]] == ["a.txt", "d", "d/up", "self", "x", "y"]
    assert box.read("d/up/d/up/a.txt") == "A\n"


def test_c07_absolute_paths(box: Box) -> None:
    for path in ("/kgent_probe_output.txt", "/etc/hostname", "/etc", "/", "//etc/passwd", "/proc/self/environ", "/.."):
        all_refused(box, path)
    assert not Path("/kgent_probe_output.txt").exists()
    assert not (box.ws / "kgent_probe_output.txt").exists()
    assert not (box.ws / "etc").exists()
    assert box.read(f"{box.ws}/a.txt") == "A\n"
    assert box.read(f"{box.ws}//./a.txt") == "A\n"
    box.ok("write_file", path=str(box.ws / "n/abs.txt"), content="abs")
    assert (box.ws / "n/abs.txt").read_bytes() == b"abs"
    result = box.ok("list_files", path=str(box.ws))
    assert result.data is not None
    assert [e["path"] for e in result.data["entries"]] == ["a.txt", "n"]


@pytest.mark.parametrize("path", ["~/notes.txt", "~root/x", "~", "~/", "~+/x"])
def test_c08_tilde(box: Box, path: str) -> None:
    result = box.call("write_file", path=path, content="x")
    assert result.error is not None
    assert result.error.code == "outside_sandbox"
    assert "~" in result.error.message
    all_refused(box, path)
    assert [p.name for p in box.ws.iterdir()] == ["a.txt"]


def test_c08_tilde_elsewhere_in_a_name(box: Box) -> None:
    for path in ("a~", "sub/~b.txt", "sub/~", "x~y/z"):
        box.ok("write_file", path=path, content=path)
        assert (box.ws / path).read_text(encoding="utf-8") == path
        assert box.read(path) == path


@pytest.mark.parametrize("name", ["a\0b", "\0", "a.txt\0", "\0/etc/passwd", "sub/\0", "a.txt\0.png"])
def test_c09_nul(box: Box, name: str) -> None:
    all_refused(box, name, "invalid_args")
    for tool, args in (
        ("grep_files", {"pattern": name}),
        ("grep_files", {"pattern": "x", "include": name}),
        ("list_files", {"pattern": name}),
    ):
        assert box.code(tool, args) == "invalid_args"
    assert box.read("a.txt") == "A\n"
    assert name in {record["args"].get("path") for record in box.records}


def test_c10_nothing_is_decoded(box: Box) -> None:
    literal = ("..%2Fsecret", "%2e%2e/secret", "file:///etc/hostname", "%252e%252e/x", "..\\outside\\secret")
    for path in literal:
        for tool, more in (("read_file", {}), ("list_files", {}), ("grep_files", {"pattern": "TOPSECRET"})):
            assert box.code(tool, {"path": path, **more}) == "not_found"
    for path in literal:
        box.ok("write_file", path=path, content="literal")
        assert (box.ws / path).read_bytes() == b"literal"


def test_c10_percent_is_a_character(box: Box) -> None:
    box.put("a%20b.txt", "P")
    box.put("a b.txt", "S")
    assert box.read("a%20b.txt") == "P"
    assert box.read("a b.txt") == "S"
    box.ok("write_file", path="%2e%2e/x", content="literal")
    assert (box.ws / "%2e%2e/x").read_bytes() == b"literal"


@pytest.mark.parametrize(
    "name", ["[...slug].ts", "foo..bar", "..hidden", "...", "v1..v2/x", "....", "a/.../b", "..a/b..", ". ", ".. /x"]
)
def test_c11_two_dots_in_a_name(box: Box, name: str) -> None:
    content = "needle \u2500\r\nend"
    box.ok("write_file", path=name, content=content)
    assert (box.ws / name).read_bytes() == content.encode()
    result = box.ok("read_file", path=name)
    assert result.data is not None
    assert (result.data["content"], result.data["path"]) == (content, name)
    text = box.text("grep_files", pattern="needle", path=name)
    assert text == f"{name}:1:needle \u2500\n"
    assert f"{name}:1:" in box.text("grep_files", pattern="needle", hidden=True)
    found = box.ok("list_files", depth=3, hidden=True).data
    assert found is not None
    assert name in [entry["path"] for entry in found["entries"]]


def test_c12_the_root_is_reached_through_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "a.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "alias").symlink_to("real")
    with Box(tmp_path, workspace="alias") as box:
        for path in ("a.py", f"{tmp_path}/alias/a.py", f"{tmp_path}/real/a.py"):
            result = box.ok("read_file", path=path)
            assert result.data is not None
            assert (result.data["path"], result.data["content"]) == ("a.py", "x = 1\n")
            box.ok("write_file", path=path, content="x = 1\n")
        for path in (".", f"{tmp_path}/alias", f"{tmp_path}/real", "workspace"):
            assert box.text("list_files", path=path) == "a.py\t6\n"
            assert box.text("grep_files", path=path, pattern="x") == "a.py:1:x = 1\n"
        (real / "l").symlink_to(tmp_path / "alias" / "a.py")
        (real / "m").symlink_to(real / "a.py")
        assert box.read("l") == "x = 1\n"
        assert box.read("m") == "x = 1\n"
        # What the link leads to was settled when the run was made.
        (tmp_path / "alias").unlink()
        (tmp_path / "alias").symlink_to("outside")
        assert box.read("a.py") == "x = 1\n"
        assert box.code("read_file", path="secret") == "not_found"


def test_c13_root_is_the_root(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("F\n", encoding="utf-8")
    with RunContext.create(tmp_path / "runs", workspace="/") as context:
        tools = {str(tool.name): tool for tool in build_toolsets(context)}
        for path in (f"{tmp_path}/f", f"{tmp_path}/f".lstrip("/"), f"/{tmp_path}/f"):
            result = tools["read_file"].handler({"path": path}, context)
            assert result.data is not None, result
            assert (result.data["content"], result.data["path"]) == ("F\n", f"{tmp_path}/f".lstrip("/"))
        for path in ("..", "/..", "../etc"):
            refused = tools["list_files"].handler({"path": path}, context)
            assert refused.error is not None
            assert refused.error.code == "outside_sandbox"
        # Devices and /proc lie below the root now, and are still not storage.
        for path in ("/proc/self/environ", "/dev/zero", "proc/1/environ", "/sys/kernel/notes", "/proc/self/fd/0"):
            refused = tools["read_file"].handler({"path": path}, context)
            assert refused.error is not None
            assert refused.error.code in ("not_regular_file", "outside_sandbox")
        own = context.run_dir / "logs/tools.jsonl"
        assert code_of(tools["read_file"].handler({"path": str(own)}, context)) == "not_found"


def code_of(result: ToolResult) -> str | None:
    return result.error and result.error.code


def test_c13_trailing_slash(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/a").write_text("A", encoding="utf-8")
    with RunContext.create(f"{tmp_path}/runs/", workspace=f"{tmp_path}/ws/") as context:
        (read,) = (tool for tool in build_toolsets(context) if tool.name == "read_file")
        for path in ("a", f"{tmp_path}/ws/a", "./a"):
            assert code_of(read.handler({"path": path}, context)) is None
    assert code_of_slash(tmp_path) == "not_a_directory"


def code_of_slash(root: Path) -> str:
    """A file's name with a slash behind it names no file."""
    with Box(root, runs="other") as box:
        return box.code("list_files", path="a/")


def test_relative_means_the_workspace_wherever_the_process_stands(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(box.outside)
    assert box.read("a.txt") == "A\n"
    assert box.code("read_file", path="secret") == "not_found"
    box.ok("write_file", path="new", content="x")
    assert (box.ws / "new").exists()


def test_a_hard_link_to_outside_is_detached(box: Box) -> None:
    (box.ws / "hard").hardlink_to(box.outside / "secret")
    box.ok("write_file", path="hard", content="mine\n")
    assert (box.outside / "secret").read_bytes() == b"TOPSECRET\n"
    assert (box.ws / "hard").read_bytes() == b"mine\n"


def test_hard_links_are_refused_where_the_config_says_so(tmp_path: Path) -> None:
    with Box(tmp_path, {"sandbox": {"hard_links": "deny"}}) as box:
        box.put("plain", "plain\n")
        (box.ws / "hard").hardlink_to(box.outside / "secret")
        assert box.code("read_file", path="hard") == "denied"
        assert box.code("write_file", path="hard", content="x") == "denied"
        assert "TOPSECRET" not in box.text("grep_files", pattern="SECRET")
        assert box.read("plain") == "plain\n"


@pytest.mark.parametrize("name", [".git/config", ".git/hooks/pre-commit", "sub/.git/config", ".git", "sub/.git"])
def test_git_is_not_written(box: Box, name: str) -> None:
    box.put("sub/f", "f")
    assert box.code("write_file", path=name, content="x") == "read_only"
    assert not (box.ws / name).exists()


def test_git_is_not_written_through_a_link(box: Box) -> None:
    box.put(".git/config", "[core]\n")
    (box.ws / "g").symlink_to(".git")
    (box.ws / "c").symlink_to(".git/config")
    for path in ("g/config", "c", "g/new", "sub/../.git/config", "./.git//config", f"{box.ws}/.git/config"):
        assert box.code("write_file", path=path, content="x") == "read_only"
    assert box.read(".git/config") == "[core]\n"
    assert snapshot(box.ws / ".git").keys() == {"config"}
    box.ok("write_file", path=".gitignore", content="x")
    box.ok("write_file", path="git/config", content="x")


SECRETS = [".env", ".env.local", "sub/.env", ".ssh/id_ed25519", ".aws/credentials", ".netrc", "id_rsa", "x.pem"]


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_not_read(box: Box, name: str) -> None:
    box.put(name, "PASSWORD=CANARY4\n")
    (box.ws / "innocent").symlink_to(name)
    assert box.code("read_file", path=name) == "denied"
    assert box.code("read_file", path="innocent") == "denied"
    for args in ({"path": name}, {"path": "innocent"}):
        assert box.code("grep_files", {"pattern": "CANARY", **args}) == "denied"
    text = box.text("grep_files", pattern="CANARY|PASSWORD", hidden=True, ignored=True)
    assert "CANARY4" not in text
    result = box.ok("write_file", path=name, content="NEW\n")
    assert "CANARY4" not in text_of(result) + repr(result.to_dict())
    assert result.data is not None
    assert (result.data["diff"], result.data["hash"], result.data["created"]) == (None, None, None)


def test_an_example_of_secrets_is_read(box: Box) -> None:
    box.put(".env.example", "PASSWORD=\n")
    assert box.read(".env.example") == "PASSWORD=\n"


def run_dir_names(box: Box, name: str) -> list[str]:
    """All spellings of the run's own folder through the workspace."""
    run = f"{name}/{box.context.run_id}"
    return [run, f"workspace/{run}", f"{box.ws}/{run}", f"x/../{run}", f"./{name}//{box.context.run_id}"]


@pytest.fixture
def nested(tmp_path: Path) -> Iterator[Box]:
    """A run whose runs directory lies in the workspace."""
    with Box(tmp_path, runs="ws/runs") as made:
        made.put("a.txt", "A\n")
        made.put("x/y", "")
        yield made


def test_the_runs_directory_is_out_of_reach(nested: Box) -> None:
    box = nested
    other = RunContext.create(box.runs, run_id="other", workspace=box.ws)
    other.close()
    box.ok("write_file", path="deliverables/d", content="mine")
    (box.ws / "l").symlink_to("runs")
    (box.ws / "labs").symlink_to(box.runs)
    (box.ws / "log").symlink_to(box.run_dir / "logs/tools.jsonl")
    before = snapshot(box.runs / "other")
    files = ("logs/tools.jsonl", "events.jsonl", "logs/errors.jsonl", "archive/candidate-memory.jsonl", "new")
    names = [f"{run}/{file}" for run in run_dir_names(box, "runs") for file in files]
    names += ["runs", "runs/new", "runs/other/events.jsonl", "runs/other/workspace/x", "l", "l/other/new", "labs/new"]
    names += ["log"]
    for path in names:
        for name, (code, result) in every_tool(box, path).items():
            assert code in ("not_found", "outside_sandbox", "read_only"), f"{name} {path}: {result}"
    listed = box.ok("list_files", depth=9, hidden=True, ignored=True).data
    assert listed is not None
    assert [e["path"] for e in listed["entries"]] == ["a.txt", "l", "labs", "log", "x", "x/y"]
    found = box.text("grep_files", pattern="run_id|mine", hidden=True, ignored=True)
    assert "tools.jsonl" not in found
    assert "mine" not in found.replace("run_id|mine", "")
    assert snapshot(box.runs / "other") == before
    assert box.read("deliverables/d") == "mine"
    assert box.text("list_files", path="deliverables") == "deliverables/d\t4\n"


def test_the_runs_directory_is_out_of_reach_when_it_was_moved(nested: Box) -> None:
    box = nested
    (box.ws / "runs").rename(box.ws / "r2")
    seen = {sink: (box.ws / "r2" / box.context.run_id / sink).stat().st_size for sink in ("logs/tools.jsonl",)}
    for path in ("a.txt", *run_dir_names(box, "r2"), f"r2/{box.context.run_id}/logs/tools.jsonl", "deliverables/x"):
        for tool, args in (
            ("read_file", {"path": path}),
            ("write_file", {"path": path, "content": "x"}),
            ("list_files", {"path": path}),
            ("grep_files", {"path": path, "pattern": "run_id"}),
        ):
            assert code_of(box.tools[tool].handler(args, box.context)) == "sandbox_unavailable"
    assert (box.ws / "r2" / box.context.run_id / "logs/tools.jsonl").stat().st_size > seen["logs/tools.jsonl"]
    (box.ws / "r2").rename(box.ws / "runs")
    box.new()
    assert box.read("a.txt") == "A\n"


def test_the_runs_directory_is_out_of_reach_when_it_was_replaced(nested: Box) -> None:
    box = nested
    (box.ws / "runs").rename(box.ws / "r2")
    (box.ws / "runs").symlink_to("r2")
    assert code_of(box.tools["read_file"].handler({"path": "a.txt"}, box.context)) == "sandbox_unavailable"


def test_a_mount_in_the_runs_directory_is_refused(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "x").mkdir(parents=True)
    for workspace in (runs, runs / "x"):
        with pytest.raises(RunError, match="runs directory"):
            RunContext.create(runs, run_id="r", workspace=workspace)
    assert [p.name for p in runs.iterdir()] == ["x"]


def test_overlapping_mounts_take_the_strictest_mode(tmp_path: Path) -> None:
    (tmp_path / "ws/vendor").mkdir(parents=True)
    with Box(tmp_path, mounts={"vendor": (tmp_path / "ws/vendor", "ro")}) as box:
        box.put("vendor/v", "v")
        for path in ("vendor/v", "workspace/vendor/v", f"{box.ws}/vendor/v", "vendor/new", "workspace/vendor/new"):
            assert box.code("write_file", path=path, content="x") == "read_only"
        assert snapshot(box.ws / "vendor").keys() == {"v"}
        assert box.read("workspace/vendor/v") == "v"


@contextlib.contextmanager
def bound(*pairs: tuple[Path, Path]) -> Iterator[None]:
    """Bind mounts of the kernel: what the first names is seen under the second too."""
    done: list[Path] = []
    try:
        for source, target in pairs:
            target.mkdir(exist_ok=True)
            if subprocess.run(["mount", "--bind", source, target], capture_output=True).returncode != 0:
                pytest.skip("this process may not bind mounts")
            done.append(target)
        yield
    finally:
        for target in reversed(done):
            subprocess.run(["umount", "--lazy", target], check=True)


def test_bind_mounts_are_other_names_of_the_same_file(tmp_path: Path) -> None:
    """Each name has the strictest mode and every deny of all the names (rule 4 of the threat model)."""
    ws, docs = tmp_path / "ws", tmp_path / "docs"
    (ws / "private").mkdir(parents=True)
    (ws / "private/k").write_text("KEY", encoding="utf-8")
    (ws / "vendor").mkdir()
    (ws / "vendor/v").write_text("V", encoding="utf-8")
    (tmp_path / "runs").mkdir()
    (ws / "kgent.toml").touch()
    config = ToolsConfig.from_file(ws / "kgent.toml")
    pairs = [(ws / "private", ws / "open"), (ws / "vendor", docs), (tmp_path / "runs", ws / "r"), (ws, ws / "again")]
    deny = [PermissionRule("*", "private/**", "deny"), PermissionRule("external_directory", "docs", "deny")]
    with bound(*pairs), Box(tmp_path, mounts={"docs": (docs, "ro")}, runtime=deny, config=config) as box:
        for path in ("private/k", "open/k", "again/private/k", "again/open/k"):
            assert box.code("read_file", path=path) in {"denied", "not_found"}, path
        for path in ("docs/v", "vendor/v", "again/vendor/v"):
            assert box.code("read_file", path=path) == "denied", path
            assert box.code("write_file", path=path, content="x") in {"denied", "read_only"}, path
        for path in ("r", f"r/{box.context.run_id}/events.jsonl", f"again/r/{box.context.run_id}/events.jsonl"):
            assert box.code("read_file", path=path) == "not_found", path
            assert box.code("write_file", path=path, content="x") == "not_found", path
        assert box.code("write_file", path="again/kgent.toml", content="x") == "read_only"
        listed = box.ok("list_files", depth=9).data
        assert listed is not None
        shown = {entry["path"] for entry in listed["entries"]}
        assert not {path for path in shown if path.endswith(("/k", "/v", ".jsonl")) or path.startswith(("r/", "docs"))}
        assert box.text("grep_files", pattern="KEY|V").count("KEY") == 0


def test_a_workspace_folder_with_a_mount_s_name(box: Box) -> None:
    box.put("deliverables/f", "mine\n")
    assert box.code("read_file", path="deliverables/f") == "not_found"
    assert box.code("read_file", path="./deliverables/f") == "not_found"
    assert box.read("workspace/deliverables/f") == "mine\n"
    assert box.text("grep_files", pattern="mine") == "workspace/deliverables/f:1:mine\n"
    assert "workspace/deliverables/f" in box.text("list_files", depth=2)


ODD_NAMES = [
    "a\nb",
    "tab\there",
    'q"uote',
    "back\\slash",
    "esc\x1b[2J",
    "bidi\u202egpj.exe",
    "zero\u200bwidth",
    "sep\u2028x",
    "a:1:b",
    "-n",
    "my file",
    "caf\u00e9",
    "cafe\u0301",
    "tag\U000e0041",
]


def test_printed_names_read_back(box: Box) -> None:
    """Names of every kind, and bytes that are no text: what a tool prints is what it takes (C51)."""
    raw = {name.encode() for name in ODD_NAMES} | {b"d\xe9j\xe0.txt", b"d\xe9j\xe1.txt", b"\xff"}
    for name in raw:
        with open(os.path.join(os.fsencode(box.ws), name), "wb") as file:
            file.write(b"NEEDLE " + name.hex().encode() + b"\n")
    result = box.ok("list_files")
    assert result.data is not None
    paths = [entry["path"] for entry in result.data["entries"] if entry["path"] != "a.txt"]
    assert len(set(paths)) == len(raw)
    assert {bytes.fromhex(box.read(path).split()[1]) for path in paths} == raw
    for path in paths:
        assert not any(ord(c) < 32 or c in "\u202e\u200b\u2028\U000e0041" for c in path)
    rows = box.text("grep_files", pattern="NEEDLE").splitlines()
    assert len(rows) == len(raw)
    matches = box.ok("grep_files", pattern="NEEDLE").data
    assert matches is not None
    assert {m["path"] for m in matches["matches"]} == set(paths)
    for path in paths:
        box.ok("write_file", path=path, content="NEW")
    assert {os.fsencode(p.name) for p in box.ws.iterdir()} == raw | {b"a.txt"}


def test_refusals_are_no_oracle(box: Box) -> None:
    """What is outside looks the same whether it exists or not."""
    (box.ws / "link").symlink_to("../outside")
    pairs = [
        ("../outside/secret", "../outside/absent"),
        (f"{box.outside}/secret", f"{box.outside}/absent"),
        ("link/secret", "link/absent"),
        ("link/secret/x", "link/absent/x"),
    ]
    for there, absent in pairs:
        for tool, more in (("read_file", {}), ("write_file", {"content": "x"}), ("list_files", {})):
            first = box.call(tool, {"path": there, **more})
            second = box.call(tool, {"path": absent, **more})
            assert first.error is not None
            assert second.error is not None
            said = [str(e.to_dict()).replace(p, "P") for e, p in ((first.error, there), (second.error, absent))]
            assert said[0] == said[1]


def test_resolve_sandbox_path(box: Box) -> None:
    box.put("sub/f", "")
    (box.ws / "in").symlink_to("sub")
    (box.ws / "out").symlink_to("../outside")
    resolved = resolve_sandbox_path("in/f", box.context)
    assert (str(resolved), resolved.mount, resolved.name) == ("sub/f", "workspace", "f")
    assert str(resolve_sandbox_path(str(box.ws / "sub/new"), box.context)) == "sub/new"
    assert str(resolve_sandbox_path("deliverables/x", box.context)) == "deliverables/x"
    assert resolve_sandbox_path("sub/f", box.context) == resolved
    for path, code in (("../x", "outside_sandbox"), ("out/secret", "outside_sandbox"), ("~", "outside_sandbox")):
        with pytest.raises(ToolFailure) as caught:
            resolve_sandbox_path(path, box.context)
        assert caught.value.code == code


def test_a_folder_that_may_not_be_entered(tmp_path: Path) -> None:
    """As an ordinary user: the error says what failed, and the search goes on with the rest."""
    shared = Path(tempfile.mkdtemp())
    shared.chmod(0o777)

    def work() -> None:
        with Box(shared) as box:
            box.put("open/f", "needle\n")
            box.put("shut/f", "needle\n")
            box.put("sealed", "needle\n").chmod(0)
            (box.ws / "shut").chmod(0)
            assert box.code("read_file", path="shut/f") == "io"
            assert box.code("read_file", path="sealed") == "io"
            assert box.code("write_file", path="shut/n", content="x") == "io"
            result = box.ok("grep_files", pattern="needle")
            assert result.data is not None
            assert [m["path"] for m in result.data["matches"]] == ["open/f"]
            assert sum(result.data["skipped"].values()) == 2
            (box.ws / "shut").chmod(0o700)

    try:
        in_child(work, uid=65534)
    finally:
        shutil.rmtree(shared)


def test_paths_that_are_too_long(box: Box) -> None:
    for path in ("x" * 256, "x/" * 2048, "/" + "y" * 5000):
        all_refused(box, path, "invalid_args")
    box.ok("write_file", path="n" * 255, content="x")


def test_a_socket_is_not_connected(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(box.ws)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.sock")
        listener.listen()
        listener.settimeout(0)
        assert box.code("read_file", path="s.sock") == "not_regular_file"
        assert box.code("write_file", path="s.sock", content="x") == "not_regular_file"
        with pytest.raises(BlockingIOError):
            listener.accept()
