"""`kgent-tools memory`: what people see, and that a candidate is handed over once, whatever happens meanwhile."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click", reason="the extra `cli` is not installed")

from click.testing import CliRunner

from kgent_tools import ErrorInfo, MemoryItem, MemoryWriteResult, RunContext, build_toolsets
from kgent_tools._core import MemoryReview
from kgent_tools._runs import escaped
from kgent_tools.cli import cli

CLIENT = "test_cli:Client"


class Client:
    """Remembers in a list of the class, and does what `mode` says."""

    mode = "take"
    taken: list[str] = []  # noqa: RUF012

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        return []

    async def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        if self.mode == "refuse":
            return MemoryWriteResult("no", None, ErrorInfo("failed", "full\x1b[2J"))
        self.taken.append(content)
        if self.mode == "die":
            os._exit(9)
        if self.mode == "raise":
            raise OSError("lost")
        return MemoryWriteResult("written", f"stored-{len(self.taken)}")


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    module: Any = __import__("test_cli").Client
    module.mode, module.taken = "take", []
    return module


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunContext.create(tmp_path / "runs", "r1") as context:
        write = next(t for t in build_toolsets(context) if t.name == "write_memory").handler
        for content in ("likes tea", "evil\x1b[2J\u202etext\nsecond line"):
            assert write({"content": content, "tags": ["t"]}, context).ok
        return context.run_dir


def names(run: Path) -> list[str]:
    candidates, _ = MemoryReview(run.parent, run.name).list()
    return [f"{c['id']}@{c['hash']}" for c in candidates]


def states(run: Path) -> list[str]:
    return [c["status"] for c in MemoryReview(run.parent, run.name).list()[0]]


def kgent(*args: object, status: int = 0) -> str:
    ran = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert ran.exit_code == status, ran.output
    return ran.output


def test_list_shows_what_is_waiting_and_escapes_it(run: Path) -> None:
    first, second = names(run)
    text = kgent("memory", "list", run)
    assert first in text
    assert second in text
    assert "  | likes tea\n" in text
    assert "  | evil\\u{1b}[2J\\u{202e}text\n  | second line\n" in text
    assert "\x1b" not in text
    rows = [json.loads(line) for line in kgent("memory", "list", run, "--json").splitlines()]
    assert [row["content"] for row in rows] == ["likes tea", "evil\x1b[2J\u202etext\nsecond line"]
    kgent("memory", "reject", run, first)
    assert first not in kgent("memory", "list", run)
    assert first in kgent("memory", "list", run, "--all")
    assert escaped("café 茶 \u200b\x07") == "café 茶 \\u{200b}\\u{7}"


def test_accept_hands_over_and_reject_does_not(run: Path, client: type[Client], tmp_path: Path) -> None:
    logs = {name: (run / name).read_bytes() for name in ("events.jsonl", "logs/tools.jsonl")}
    first, second = names(run)
    config = tmp_path / "kgent.toml"
    config.write_text(f'[memory]\nclient = "{CLIENT}"\n', encoding="utf-8")
    assert kgent("memory", "accept", run, first, "--config", config) == f"{first.split('@')[0]}: accepted as stored-1\n"
    kgent("memory", "reject", run, second)
    assert (states(run), client.taken) == (["accepted", "rejected"], ["likes tea"])
    for again in (first, second):
        assert "already" in kgent("memory", "accept", run, again, "--client", CLIENT, status=1)
        assert "already" in kgent("memory", "reject", run, again, "--retry", status=1)
    assert client.taken == ["likes tea"]
    assert {name: (run / name).read_bytes() for name in logs} == logs
    lines = [json.loads(line) for line in (run / "archive/memory-reviews.jsonl").read_bytes().splitlines()]
    assert [(line["state"], line["client"], line["stored_id"]) for line in lines] == [
        ("unknown", CLIENT, None),
        ("accepted", CLIENT, "stored-1"),
        ("rejected", None, None),
    ]


def test_what_changed_since_it_was_listed_is_not_accepted(run: Path, client: type[Client]) -> None:
    first, _ = names(run)
    id, hash = first.split("@")
    assert "look at it again" in kgent("memory", "accept", run, f"{id}@{hash[:-1]}0", "--client", CLIENT, status=1)
    assert "no candidate" in kgent("memory", "accept", run, f"mffff@{hash}", "--client", CLIENT, status=1)
    assert "ID@HASH" in kgent("memory", "accept", run, id, "--client", CLIENT, status=2)
    file = run / "archive/candidate-memory.jsonl"
    file.write_bytes(file.read_bytes().replace(b"likes tea", b"likes gin"))
    assert "no candidate" in kgent("memory", "accept", run, first, "--client", CLIENT, status=1)
    assert client.taken == []


def test_a_refusal_may_be_tried_again(run: Path, client: type[Client]) -> None:
    first, _ = names(run)
    client.mode = "refuse"
    assert kgent("memory", "accept", run, first, "--client", CLIENT, status=1).endswith("failed: full\\u{1b}[2J\n")
    assert states(run)[0] == "failed"
    client.mode = "take"
    kgent("memory", "accept", run, first, "--client", CLIENT)
    assert states(run)[0] == "accepted"


@pytest.mark.parametrize("mode", ["die", "raise"])
def test_without_an_answer_the_state_is_unknown_and_needs_retry(run: Path, client: type[Client], mode: str) -> None:
    first, second = names(run)
    if mode == "die":
        code = (
            "import sys; sys.path.insert(0, sys.argv.pop(1)); import test_cli; test_cli.Client.mode = 'die';"
            "from kgent_tools.cli import cli; cli()"
        )
        args = [str(Path(__file__).parent), "memory", "accept", str(run), first, "--client", CLIENT]
        assert subprocess.run([sys.executable, "-c", code, *args], capture_output=True).returncode == 9
    else:
        client.mode = "raise"
        assert "unknown: OSError: lost" in kgent("memory", "accept", run, first, "--client", CLIENT, status=1)
    assert states(run) == ["unknown", "candidate"]
    client.mode = "take"
    assert "--retry" in kgent("memory", "accept", run, first, "--client", CLIENT, status=1)
    assert "--retry" in kgent("memory", "reject", run, first, status=1)
    assert client.taken in ([], ["likes tea"])
    kgent("memory", "accept", run, first, second, "--client", CLIENT, "--retry")
    assert states(run) == ["accepted", "accepted"]


def test_verify_finds_what_was_altered_and_says_where(run: Path) -> None:
    said = kgent("verify", run)
    assert "logs/tools.jsonl: ok: 2 records" in said
    log = run / "logs/tools.jsonl"
    first, second = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first.replace(b'"seq":', b'"seq";', 1) + second)
    assert "logs/tools.jsonl: broken at byte 0, record 1" in kgent("verify", run, status=1)
    log.write_bytes(second)
    assert json.loads(kgent("verify", "--json", run, status=1))["ok"] is False


def test_the_host_s_mistakes_are_told(run: Path, tmp_path: Path) -> None:
    first, _ = names(run)
    assert "which client" in kgent("memory", "accept", run, first, status=1)
    assert "gives no client" in kgent("memory", "accept", run, first, "--client", "no_such:x", status=1)
    assert "does not exist" in kgent("memory", "list", tmp_path / "none", status=2)
    (tmp_path / "other").mkdir()
    assert "not a folder of this user" in kgent("memory", "list", tmp_path / "other", status=1)


def test_nothing_in_the_current_directory_is_imported(run: Path, tmp_path: Path) -> None:
    planted = tmp_path / "project"
    planted.mkdir()
    for name in ("click.py", "queue.py", "json.py", "kgent_evil.py"):
        (planted / name).write_text(
            f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit(7)\n", encoding="utf-8"
        )
    for command in ([sys.executable, "-m", "kgent_tools"], [str(Path(sys.executable).parent / "kgent-tools")]):
        ran = subprocess.run([*command, "memory", "list", str(run)], cwd=planted, capture_output=True, text=True)
        assert (ran.returncode, "likes tea" in ran.stdout) == (0, True), ran.stderr
        accept = ["memory", "accept", str(run), names(run)[0], "--client", "kgent_evil:x"]
        ran = subprocess.run([*command, *accept], cwd=planted, capture_output=True, text=True)
        assert ran.returncode == 1
    assert not (tmp_path / "ran").exists()
