"""What edits and patches promise: all or nothing, no update lost, nothing reported done that is not."""

import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import NOBODY, Box, all_log_bytes, in_child, snapshot

from kgent_tools import RunContext, ToolResult, build_toolsets

DELETE = {"permissions": {"filesystem_delete": "allow"}}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, DELETE) as made:
        yield made


def edit(box: Box, path: str, old: str, new: str, **more: Any) -> ToolResult:
    return box.call("edit_file", path=path, edits=[{"old_text": old, "new_text": new}], **more)


def patch(box: Box, *lines: str) -> ToolResult:
    return box.call("apply_patch", patch="\n".join(["*** Begin Patch", *lines, "*** End Patch"]))


def code(result: ToolResult) -> str | None:
    return result.error and result.error.code


# What a replace keeps.


def test_edits_and_patches_keep_owner_mode_and_attributes(box: Box) -> None:
    whole = 0xFFFFFFFF
    entries = ((1, 6, whole), (2, 4, 1000), (4, 0, whole), (16, 4, whole), (32, 0, whole))
    acl = (2).to_bytes(4, "little") + b"".join(
        tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + who.to_bytes(4, "little") for tag, perm, who in entries
    )

    def make(name: str) -> Path:
        path = box.put(name, "old\n")
        os.chown(path, 12345, 54321)
        path.chmod(0o6640)
        os.setxattr(path, "user.note", b"kept")
        os.setxattr(path, "system.posix_acl_access", acl)
        return path

    def check(path: Path) -> None:
        found = path.stat()
        assert path.read_text(encoding="utf-8") == "new\n"
        # Never setuid or setgid; the rest as it was.
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 54321, 0o640)
        assert os.getxattr(path, "user.note") == b"kept"
        assert os.getxattr(path, "system.posix_acl_access") == acl

    for name in ("edited", "patched", "moved"):
        make(name)
    assert edit(box, "edited", "old", "new").ok
    assert patch(box, "*** Update File: patched", "-old", "+new").ok
    assert patch(box, "*** Update File: moved", "*** Move to: d/there", "-old", "+new").ok
    for name in ("edited", "patched", "d/there"):
        check(box.ws / name)


def test_an_ordinary_user_keeps_modes_and_loses_no_owner(tmp_path: Path) -> None:
    """Another user's file is left as it is where its owner cannot be kept."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)

    def work() -> None:
        with Box(home, DELETE) as box:
            for name in ("x.sh", "k"):
                box.put(name, "old\n").chmod(0o755 if name == "x.sh" else 0o600)
            box.put("moved", "old\n").chmod(0o640)
            assert edit(box, "x.sh", "old", "new").ok
            assert patch(box, "*** Update File: k", "-old", "+new").ok
            assert patch(box, "*** Update File: moved", "*** Move to: there").ok
            modes = [stat.S_IMODE((box.ws / name).stat().st_mode) for name in ("x.sh", "k", "there")]
            assert modes == [0o755, 0o600, 0o640]
            # A folder of our own holds a file of someone else's.
            before = snapshot(box.ws)
            (home / "ready").touch()
            while not (home / "laid").exists():
                time.sleep(0.01)
            theirs = snapshot(box.ws)
            assert theirs != before
            assert code(edit(box, "theirs", "old", "new")) == "io"
            assert (
                code(patch(box, "*** Update File: k", "-new", "+newer", "*** Update File: theirs", "-old", "+new"))
                == "io"
            )
            assert snapshot(box.ws) == theirs

    child = threading.Thread(target=in_child, args=(work,), kwargs={"uid": NOBODY})
    child.start()
    while not (home / "ready").exists() and child.is_alive():
        time.sleep(0.01)
    theirs = home / "ws/theirs"
    theirs.write_text("old\n", encoding="utf-8")
    theirs.chmod(0o666)
    (home / "laid").touch()
    child.join()
    assert (theirs.read_text(encoding="utf-8"), theirs.stat().st_uid) == ("old\n", os.getuid())


test_an_ordinary_user_keeps_modes_and_loses_no_owner = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)(test_an_ordinary_user_keeps_modes_and_loses_no_owner)


def test_links_are_written_through_and_hard_links_detached(box: Box) -> None:
    (box.outside / "hard").write_text("old\n", encoding="utf-8")
    os.link(box.outside / "hard", box.ws / "hard")
    box.put("dot/zshrc", "old\n")
    (box.ws / "zshrc").symlink_to("dot/zshrc")
    (box.ws / "away").symlink_to("../outside/secret")
    before = snapshot(box.outside)
    assert edit(box, "hard", "old", "new").ok
    assert edit(box, "zshrc", "old", "new").ok
    assert patch(box, "*** Update File: zshrc", "-new", "+newer").ok
    assert (box.ws / "zshrc").is_symlink()
    assert (box.ws / "dot/zshrc").read_text(encoding="utf-8") == "newer\n"
    assert (box.ws / "hard").read_text(encoding="utf-8") == "new\n"
    for result in (
        edit(box, "away", "TOPSECRET", "x"),
        patch(box, "*** Delete File: away"),
        patch(box, "*** Update File: zshrc", "*** Move to: away/x"),
    ):
        assert code(result) == "outside_sandbox"
    assert snapshot(box.outside) == before
    # A patch that deletes a link's name deletes what it leads to, which is what was authorised.
    assert patch(box, "*** Delete File: zshrc").ok
    assert not (box.ws / "dot/zshrc").exists()


def test_read_only_files_are_left(box: Box) -> None:
    path = box.put("f", "old\n")
    path.chmod(0o444)
    before = snapshot(box.ws)
    assert code(edit(box, "f", "old", "new")) == "read_only"
    assert code(patch(box, "*** Delete File: f")) == "read_only"
    assert code(patch(box, "*** Add File: .git/hooks/x", "+x")) == "read_only"
    assert snapshot(box.ws) == before


# What is seen and what may be known.


def test_a_file_that_only_seems_unchanged_is_stale(box: Box) -> None:
    """Same size, and its times set back."""
    path = box.put("f", "alpha\ngamma\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    data = box.ok("read_file", path="f").data
    assert data is not None
    with path.open("r+", encoding="utf-8") as file:
        file.write("alpha\nGAMMA\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert code(edit(box, "f", "alpha", "ALPHA")) == "stale"
    assert code(edit(box, "f", "alpha", "ALPHA", expected_hash=data["hash"])) == "stale"
    assert path.read_text(encoding="utf-8") == "alpha\nGAMMA\n"
    box.read("f")
    assert edit(box, "f", "alpha", "ALPHA").ok


def test_what_one_name_saw_another_name_knows(tmp_path: Path) -> None:
    (tmp_path / "ws/docs").mkdir(parents=True)
    with Box(
        tmp_path, {"sandbox": {"require_read_before_write": True}}, mounts={"m": (tmp_path / "ws/docs", "rw")}
    ) as box:
        box.put("docs/f", "old\n")
        (box.ws / "l").symlink_to("docs/f")
        assert code(edit(box, "m/f", "old", "new")) == "stale"
        box.read("l")
        assert edit(box, "m/f", "old", "new").ok
        assert edit(box, "docs/f", "new", "newer").ok
        box.put("docs/f", "theirs\n")
        assert code(edit(box, "m/f", "theirs", "x")) == "stale"
        # A new file needs no reading; one that is there does, to be replaced, moved or deleted too.
        box.ok("write_file", path="new", content="x")
        box.put("other", "x\n")
        assert code(box.call("write_file", path="other", content="y")) == "stale"
        assert code(box.call("write_file", path=".env", content="y")) == "denied"
        hash_ = "b3:" + "0" * 32
        assert code(box.call("write_file", path="other", content="y", expected_hash=hash_)) == "stale"


def test_no_byte_of_what_may_not_be_read_is_told(tmp_path: Path) -> None:
    canary = "CANARY-5f1c"
    rules = [{"action": "read_file", "resource": "private/**", "effect": "deny"}]
    with Box(tmp_path, {"permissions": {"filesystem_delete": "allow", "rules": rules}}) as box:
        box.put(".env", f"KEY={canary}\n")
        box.put("private/k", f"{canary}\n")
        box.put("f", "x\n")
        before = snapshot(box.ws)
        results: list[ToolResult] = []
        for path in (".env", "private/k"):
            for line in ("KEY=guess", canary[:6], "x"):
                results.append(edit(box, path, line, "y"))
                results.append(patch(box, f"*** Update File: {path}", f"-{line}", "+y"))
            results.append(patch(box, f"*** Delete File: {path}"))
            results.append(patch(box, f"*** Update File: {path}", "*** Move to: g"))
            results.append(patch(box, "*** Update File: f", f"*** Move to: {path}"))
            results.append(patch(box, f"*** Add File: {path}", "+x"))
        assert {code(result) for result in results} == {"denied"}
        assert snapshot(box.ws) == before
        told = "".join(f"{result!r}{result.to_dict()}" for result in results).encode() + all_log_bytes(box.run_dir)
        assert canary.encode() not in told
        # The same whether it is there or not.
        there, absent = (patch(box, f"*** Add File: private/{name}", "+x") for name in ("k", "n"))
        assert str(there.to_dict()).replace("private/k", "private/n") == str(absent.to_dict())
        # And no short content, nor a secret's hash, is on record.
        box.ok("write_file", path="pin", content="493817")
        box.ok("write_file", path=".env", content="K=" + "9" * 100)
        for event in box.events:
            for target in event["data"].get("targets", []):
                assert "hash" not in (target["after"] or {})


# All or nothing.


def test_a_patch_that_fails_at_any_point_leaves_the_tree_as_it_was(box: Box) -> None:
    for name in ("first", "second", "fourth"):
        box.put(f"{name}/f", f"{name}\n")
    sections = [
        ("*** Delete File: first/f",),
        ("*** Update File: second/f", "-second", "+2"),
        ("*** Add File: third/deep/f", "+3"),
    ]
    bad = [
        ("*** Update File: fourth/f", "-forth", "+4"),
        ("*** Update File: fourth/g", "-x", "+4"),
        ("*** Add File: fourth/f", "+4"),
        ("*** Delete File: third/f",),
        ("*** Update File: fourth/f", "*** Move to: second/f"),
        ("*** Add File: third/deep/f", "+again"),
        ("*** Delete File: fourth/../../outside/secret",),
    ]
    before = snapshot(box.ws)
    for last in bad:
        result = patch(box, *(line for section in (*sections, last) for line in section))
        assert code(result) in ("patch_no_match", "not_found", "already_exists", "outside_sandbox"), result
        assert snapshot(box.ws) == before, last
    assert sorted(os.listdir(box.ws)) == ["first", "fourth", "second"]


MEDDLER = """
import os, sys
folder, rounds = sys.argv[1], int(sys.argv[2])
for number in range(rounds):
    with open(folder + "/b.new", "w") as file:
        file.write(f"meddler {number}\\n")
    os.rename(folder + "/b.new", folder + "/b")
"""


def test_a_patch_is_taken_back_where_another_writer_comes_between(box: Box) -> None:
    """The second file changes under the commit: then the first is as it was, and what the other wrote stays."""
    box.put("a", "0\n")
    box.put("b", "start\n")
    box.put("gone", "here\n")
    meddler = subprocess.Popen([sys.executable, "-c", MEDDLER, str(box.ws), "700"])
    seen: Counter[str | None] = Counter()
    count = 0
    while meddler.poll() is None:
        b = box.ok("read_file", path="b").data
        assert b is not None
        lines = b["content"].splitlines()
        result = patch(
            box, "*** Update File: a", f"-{count}", f"+{count + 1}", "*** Add File: new", "+x",
            "*** Delete File: gone", "*** Update File: b", f" {lines[0]}", f"+ours {count + 1}",
        )  # fmt: skip
        seen[code(result)] += 1
        done = result.ok or bool(result.error and (result.error.details or {}).get("done"))
        count += done
        assert (box.ws / "a").read_text(encoding="utf-8") == f"{count}\n", result
        assert (box.ws / "new").exists() == (not (box.ws / "gone").exists()) == done, result
        if done:
            (box.ws / "new").unlink()
            box.put("gone", "here\n")
            box.read("gone")
        elif (box.ws / "b").read_text(encoding="utf-8").count("ours"):
            box.put("b", "reset\n")
    assert seen["stale"], seen
    assert set(seen) <= {None, "stale", "io", "patch_no_match"}, seen
    assert (box.ws / "b").read_text(encoding="utf-8").startswith("meddler 699\n")
    assert sorted(p.name for p in box.ws.iterdir()) == ["a", "b", "gone"]


# Locks.


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_patches_over_the_same_files_in_opposite_order_end(box: Box) -> None:
    names = ["a/f", "b/f", "c/f"]
    for name in names:
        box.put(name, "0\n")

    def work(order: list[str]) -> None:
        for _ in range(40):
            for name in order:
                box.tools["read_file"].handler({"path": name}, box.context)
            lines = [line for name in order for line in (f"*** Update File: {name}", "@@", "+x", "*** End of File")]
            text = "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
            while True:
                result = box.tools["apply_patch"].handler({"patch": text}, box.context)
                if result.ok:
                    break
                assert code(result) == "stale", result
                for name in order:
                    box.tools["read_file"].handler({"path": name}, box.context)

    orders = [names, names[::-1], [names[1], names[2], names[0]]]
    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    threads.append(threading.Thread(target=in_child, args=(lambda: work(names[::-1]),)))
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert {(box.ws / name).read_text(encoding="utf-8") for name in names} == {"0\n" + "x\n" * 160}


def test_edits_of_one_file_by_any_spelling_lose_nothing(box: Box) -> None:
    box.put("d/f", "".join(f"{n}:\n" for n in range(4)))
    (box.ws / "l").symlink_to("d")
    spellings = ["d/f", "l/f", "workspace/d/./f", str(box.ws / "d/f")]

    def work(n: int) -> None:
        for _ in range(30):
            box.tools["read_file"].handler({"path": spellings[n]}, box.context)
            edits = [{"old_text": f"{n}:", "new_text": f"{n}:x"}]
            while not (
                result := box.tools["edit_file"].handler({"path": spellings[n], "edits": edits}, box.context)
            ).ok:
                assert code(result) == "stale", result
                box.tools["read_file"].handler({"path": spellings[n]}, box.context)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    expected = "".join(f"{n}:{'x' * 30}\n" for n in range(4))
    assert (box.ws / "d/f").read_text(encoding="utf-8") == expected


# An editor beside two runs. The long form: KGENT_EDITS=30000.

EDITOR = """
import os, sys, time
path = sys.argv[1]
number = 0
def mine():
    with open(path) as file:
        return file.read().startswith(f"editor {number}\\n")
while not os.path.exists(path + ".stop"):
    if number:
        # While a change of ours is taken back the name shows it for a moment.
        for _ in range(200):
            if mine():
                break
            time.sleep(0.005)
        else:
            sys.exit(f"lost: {number}: {open(path).read()!r}")
    number += 1
    with open(path + ".new", "w") as file:
        file.write(f"editor {number}\\n")
    os.rename(path + ".new", path)
    time.sleep(0.0005)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_editor_and_two_runs_lose_no_update(tmp_path: Path) -> None:
    total = int(os.environ.get("KGENT_EDITS", "500"))
    with Box(tmp_path) as box:
        shared = box.put("shared", "editor 0\n")
        box.put("count", "0\n")
        editor = subprocess.Popen([sys.executable, "-c", EDITOR, str(shared)], stderr=subprocess.PIPE)
        results: Counter[str] = Counter()

        def work(context: RunContext, times: int) -> None:
            tools = {str(tool.name): tool.handler for tool in build_toolsets(context)}
            for n in range(times):
                path = "shared" if n % 2 else "count"
                while True:
                    seen = tools["read_file"]({"path": path}, context).data
                    assert seen is not None
                    content = seen["content"]
                    new = f"{content}ours\n" if n % 2 else f"{int(content) + 1}\n"
                    if n % 2 and "ours" in content:
                        new = content.replace("ours\n", "", 1)
                    edits = [{"old_text": content, "new_text": new}]
                    result = tools["edit_file"]({"path": path, "edits": edits, "expected_hash": seen["hash"]}, context)
                    results[f"{path} {code(result) or 'ok'}"] += 1
                    done = result.ok or bool(result.error and (result.error.details or {}).get("done"))
                    if done or n % 2:
                        break

        # The editor's line stays first; what is ours is added to the end of it.
        second = RunContext.create(tmp_path / "runs2", workspace=box.ws)
        try:
            workers = [
                threading.Thread(target=work, args=(box.context, total // 4)),
                threading.Thread(target=work, args=(second, total // 4)),
                threading.Thread(
                    target=in_child, args=(lambda: work(box.context, total // 4),), kwargs={"seconds": 3000}
                ),
                threading.Thread(target=in_child, args=(lambda: work(second, total // 4),), kwargs={"seconds": 3000}),
            ]
            for one in workers:
                one.start()
            for one in workers:
                one.join()
        finally:
            Path(f"{shared}.stop").touch()
            _, said = editor.communicate()
            second.close()
        assert editor.returncode == 0, said.decode()
        # Each of the four made half of its calls on the counter, and each that was reported done is in it.
        assert (box.ws / "count").read_text(encoding="utf-8") == f"{4 * ((total // 4 + 1) // 2)}\n"
        assert results["count ok"], results
        assert results["shared stale"], results
        assert set(results) <= {f"{path} {end}" for path in ("count", "shared") for end in ("ok", "stale", "io")}, (
            results
        )


# Death in the middle. The long form: KGENT_KILLS=1000.


def make_plan(box: Box, n: int, tree: dict[str, str]) -> tuple[str, dict[str, Any], dict[str, str | None]]:
    """A call on the files of `tree`, and what each file that it names holds afterwards."""
    size = 200_000 if n % 3 else 4_000
    text = f"{n} " + "x" * size + "\n"
    if n % 2:
        return (
            "edit_file",
            {"path": "a", "edits": [{"old_text": tree["a"].rstrip("\n"), "new_text": text.rstrip()}]},
            {"a": text},
        )
    lines = ["*** Begin Patch", "*** Update File: a", f"-{tree['a'].rstrip()}", f"+{text.rstrip()}"]
    lines += [
        "*** Update File: d/b",
        f"-{tree['d/b'].rstrip()}",
        f"+{text.rstrip()}",
        f"*** Add File: new/{n}",
        f"+{n}",
    ]
    after: dict[str, str | None] = {"a": text, "d/b": text, f"new/{n}": f"{n}\n"}
    if f"new/{n - 2}" in tree:
        lines.append(f"*** Delete File: new/{n - 2}")
        after[f"new/{n - 2}"] = None
    return "apply_patch", {"patch": "\n".join([*lines, "*** End Patch"])}, after


def read_text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_calls_leave_whole_files_and_are_reported(tmp_path: Path) -> None:
    rounds = int(os.environ.get("KGENT_KILLS", "60"))
    generator = random.Random(7)
    reported: Counter[str] = Counter()
    with Box(tmp_path, DELETE) as box:
        run_id, options = box.context.run_id, {"workspace": box.ws, "config": box.context.config}
        for name in ("a", "d/b"):
            box.put(name, "start\n")
        box.context.close()
        log = box.run_dir / "events.jsonl"
        known = log.stat().st_size
        for n in range(rounds):
            files = [p for p in box.ws.rglob("*") if p.is_file() and not p.name.startswith(".kgent-")]
            tree = {str(p.relative_to(box.ws)): p.read_text(encoding="utf-8") for p in files}
            tool, args, after = make_plan(box, n, tree)
            ready, write_ready = os.pipe()
            pid = os.fork()
            if pid == 0:
                context = RunContext.open(box.runs, run_id, **options)
                handler = next(t.handler for t in build_toolsets(context) if t.name == tool)
                os.write(write_ready, b"x")
                handler(args, context)
                os._exit(0)
            os.read(ready, 1)
            if n % 4 < 2:
                # Between the announcement and the end, where it matters most.
                while log.stat().st_size == known:
                    pass
                until = time.perf_counter() + generator.random() * 0.0015
                while time.perf_counter() < until:
                    pass
            else:
                time.sleep(generator.random() * 0.05)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(ready)
            os.close(write_ready)
            states = {}
            for name, new in after.items():
                now = read_text(box.ws / name)
                assert now in (tree.get(name), new), f"{n}: {name} is neither old nor new"
                states[name] = "done" if now == new else "not_done"
            begun = [e["id"] for e in box.new()["events.jsonl"] if e["type"] == "tool.started"]
            with RunContext.open(box.runs, run_id, **options):
                pass
            ended = [e for e in box.new()["events.jsonl"] if e["type"] == "tool.failed"]
            for event in ended:
                assert ([event["id"]], event["data"]["code"]) == (begun, "interrupted")
                found = {target["path"]: target["outcome"] for target in event["data"]["targets"]}
                assert found == states
                reported["partly" if len(set(found.values())) > 1 else next(iter(found.values()))] += 1
            known = log.stat().st_size
            for leftover in box.ws.rglob(".kgent-*"):
                leftover.unlink()
    assert sum(reported.values()) > rounds // 20, reported
