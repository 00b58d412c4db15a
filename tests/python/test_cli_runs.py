"""`kgent-tools log`, `stats`, `runs`, `verify`, `report`, `call`, `tools`, `policy`: what they say, and of which runs."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click", reason="the extra `cli` is not installed")
pytest.importorskip("rich", reason="the extra `cli` is not installed")

from click.testing import CliRunner, Result
from rich.cells import cell_len

from kgent_tools import RunContext, build_toolsets
from kgent_tools.cli import cli

HOSTILE = "evil\x1b[2J\x1b]0;x\x07\u202etxt\u200b 茶茶.md"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
LOGS = ("logs/tools.jsonl", "events.jsonl", "logs/errors.jsonl")


def ran(*args: object, status: int = 0, input: str | None = None) -> Result:
    done = CliRunner().invoke(cli, [str(arg) for arg in args], input=input)
    assert done.exit_code == status, (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "\x1b" not in done.output
    return done


def rows(output: str) -> list[list[str]]:
    return [line.split("\t") for line in output.splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A closed run: two reads, one of them of a hostile name; a search; a failure; a denied write."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "notes.md").write_text("one\ntwo\n", encoding="utf-8")
    (workspace / HOSTILE).write_text("x", encoding="utf-8")
    config = {"permissions": {"rules": [{"action": "edit", "resource": "private/**", "effect": "deny"}]}}
    with RunContext.create(tmp_path / "runs", "r1", workspace=workspace, config=config) as context:
        tools = {str(tool.name): tool.handler for tool in build_toolsets(context)}
        call = context.for_call(agent="scout")
        tools["read_file"]({"path": "notes.md"}, call)
        tools["read_file"]({"path": HOSTILE}, call)
        tools["grep_files"]({"pattern": "two"}, call)
        tools["read_file"]({"path": "missing.md"}, call)
        tools["write_file"]({"path": "private/x", "content": "y"}, call)
        return context.run_dir


def test_log_lists_filters_and_gives_whole_records(run: Path) -> None:
    table = rows(ran("log", run).output)
    assert table[0] == ["time", "tool", "status", "took", "summary"]
    assert [(row[1], row[2]) for row in table[1:]] == [
        ("read_file", "completed"),
        ("read_file", "completed"),
        ("grep_files", "completed"),
        ("read_file", "failed"),
        ("write_file", "blocked"),
    ]
    records = [json.loads(line) for line in (run / LOGS[0]).read_bytes().splitlines()]
    assert [json.loads(line) for line in ran("log", run, "--json").output.splitlines()] == records

    def seqs(*options: str) -> list[int]:
        return [json.loads(line)["seq"] for line in ran("log", run, "--json", *options).output.splitlines()]

    assert seqs("--tool", "read_file") == [1, 2, 4]
    assert seqs("--tool", "*_file", "--status", "completed", "--status", "blocked") == [1, 2, 5]
    assert seqs("--path", "private/*") == [5]
    assert seqs("--path", "otes") == [1]
    assert seqs("--since", records[2]["started_at"]) == [3, 4, 5]
    assert seqs("--until", records[2]["started_at"]) == [1, 2]
    assert (seqs("--since", "1h"), seqs("--until", "1h")) == ([1, 2, 3, 4, 5], [])
    assert "is no time" in ran("log", run, "--since", "yesterday", status=2).output


def test_stats_sums_up(run: Path) -> None:
    records = [json.loads(line) for line in (run / LOGS[0]).read_bytes().splitlines()]
    found = json.loads(ran("stats", run, "--json").stdout)
    took = sorted(r["duration_us"] for r in records if r["tool"] == "read_file")
    assert found["tools"]["read_file"] == {
        "calls": 3,
        "failed": 1,
        "blocked": 0,
        "p50_us": took[1],
        "p95_us": took[2],
        "max_us": took[2],
        "total_us": sum(took),
        "bytes_in": sum(r["bytes_in"] for r in records if r["tool"] == "read_file"),
        "bytes_out": sum(r["bytes_out"] for r in records if r["tool"] == "read_file"),
    }
    assert found["denied"] == [
        {"decision": "config: deny edit private/**", "tool": "write_file", "resource": "private/x", "calls": 1}
    ]
    assert [r["duration_us"] for r in found["slowest"]] == sorted((r["duration_us"] for r in records), reverse=True)
    assert found["unfinished"] == []
    text = ran("stats", run).stdout
    assert "\nread_file\t3\t1\t0\t" in text
    assert "\n1\twrite_file\tconfig: deny edit private/**\tprivate/x\n" in text


def test_runs_are_shown_at_a_glance(run: Path) -> None:
    (run.parent / "no-run").mkdir()
    with RunContext.create(run.parent, "r2") as context:
        assert [row[:2] for row in rows(ran("runs", run.parent).output)[1:]] == [["r1", "closed"], ["r2", "open"]]
        del context
    (run.parent / "r2" / LOGS[1]).write_bytes(b"{}\n")
    found = [json.loads(line) for line in ran("runs", run.parent, "--json").output.splitlines()]
    assert [(look["run"], look["state"], look["calls"], look["failed"], look["blocked"]) for look in found] == [
        ("r1", "closed", 5, 1, 1),
        ("r2", "damaged", 0, 0, 0),
    ]
    assert "does not exist" in ran("runs", run / "none", status=2).output
    assert "no runs in" in ran("runs", run.parent / "no-run").output


def test_verify_has_a_status_for_scripts(run: Path) -> None:
    assert ran("verify", run).output.endswith("ok (plain: by numbers only, which anybody can write; closed)\n")
    log = run / LOGS[0]
    first, _, *rest = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([first, *rest]))
    said = ran("verify", run, status=1).output
    assert f"logs/tools.jsonl: missing at byte {len(first)}, record 2" in said
    assert "DAMAGED" in said
    assert json.loads(ran("verify", run, "--json", status=1).output)["ok"] is False
    ran("verify", run / "none", status=2)


COMMANDS = [["log"], ["log", "--json"], ["stats"], ["stats", "--json"], ["verify"], ["verify", "--json"]]
COMMANDS += [["report", "-o", "{out}"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_answers_of_every_kind_of_run(run: Path, tmp_path: Path, command: list[str]) -> None:
    command = [part.format(out=tmp_path / "r.html") for part in command]
    line = (run / LOGS[0]).read_bytes().splitlines(keepends=True)

    def of(folder: Path, *statuses: int) -> str:
        done = CliRunner().invoke(cli, [*command, str(folder)])
        assert done.exit_code in statuses, (done.output, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert "Traceback" not in done.output
        assert "\x1b" not in done.output
        return done.output

    with RunContext.create(tmp_path / "live", "live") as context:  # being written
        next(t for t in build_toolsets(context) if t.name == "list_files").handler({}, context)
        of(context.run_dir, 0)
        half = b'{"v":1,"seq":2,"id":"x\x1b'
        with (context.run_dir / LOGS[0]).open("ab") as log:
            log.write(half)
        said = of(context.run_dir, 0)
        assert "cut" in said or 'torn": 1' in said or command[0] == "report"
        with (context.run_dir / LOGS[0]).open("ab") as log:  # as it was, for the run's end
            log.truncate(log.tell() - len(half))
    (run / LOGS[0]).write_bytes(
        b"\x00\xff\xfe\n" * 3 + line[-1] + b'{"seq":9,"tool":{},"started_at":[],"error":7}\n[]\n'
    )
    said = of(run, 0, 1)
    assert "broken" in said or command[0] == "report"
    (run / LOGS[0]).write_bytes(b"")
    of(run, 0, 1)
    (run / LOGS[0]).unlink()
    assert "cannot be read: No such file" in of(run, 2)
    (run / LOGS[0]).mkdir()
    assert "cannot be read" in of(run, 2)
    assert "does not exist" in of(tmp_path / "\x1b[2Jnone", 2)
    assert "is a file" in of(run / LOGS[1], 2)
    assert "cannot be read" in of(tmp_path, 2)


def test_so_do_follow_runs_and_memory(run: Path, tmp_path: Path) -> None:
    with RunContext.create(run.parent, "live") as context:  # being written
        write = next(t for t in build_toolsets(context) if t.name == "write_memory").handler
        assert ran("memory", "list", context.run_dir).output == ""
        write({"content": "tea"}, context)
        assert "| tea" in ran("memory", "list", context.run_dir).output
        live, candidates = context.run_dir, context.run_dir / "archive/candidate-memory.jsonl"
        assert rows(ran("runs", run.parent).output)[1][:5:4] == ["live", "1"]
    whole = candidates.read_bytes()
    candidates.write_bytes(b"\x00\xff\n[]\n" + whole + b'{"v":1,"half\x1b')
    said = ran("memory", "list", live).output
    assert "| tea" in said
    assert "line 1 was passed over: it is not JSON" in said
    candidates.unlink()
    candidates.mkdir()
    assert "cannot be read" in ran("memory", "list", live, status=1).output
    (live / LOGS[0]).write_bytes((live / LOGS[0]).read_bytes() + b'{"half\x1b')
    assert "cut off" in ran("log", "--follow", live).output  # and ends, as the run was closed
    (live / LOGS[1]).write_bytes(b'{"half\x1b')
    assert rows(ran("runs", run.parent).output)[1][:2] == ["live", "open"]
    (live / LOGS[1]).unlink()
    (live / LOGS[1]).mkdir()
    assert rows(ran("runs", run.parent).output)[1][:2] == ["live", "unreadable"]
    for command in (["log", "--follow"], ["stats"], ["verify"], ["report", "-o", tmp_path / "r.html"]):
        assert "cannot be read" in ran(*command, live, status=2).output
    for command in (["log", "--follow"], ["runs"], ["memory", "list"]):
        assert "does not exist" in ran(*command, tmp_path / "none", status=2).output
        assert "is a file" in ran(*command, run / LOGS[1], status=2).output


@pytest.mark.slow
def test_follow_shows_calls_as_they_come_and_ends_with_the_run(tmp_path: Path) -> None:
    with RunContext.create(tmp_path / "runs") as context:
        call = next(t for t in build_toolsets(context) if t.name == "list_files").handler
        call({}, context)
        command = [sys.executable, "-m", "kgent_tools", "log", "--follow", "--json", str(context.run_dir)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        ) as process:
            assert process.stdout is not None
            seen = [json.loads(process.stdout.readline())["seq"]]
            for _ in range(3):
                call({}, context)
                seen.append(json.loads(process.stdout.readline())["seq"])
            context.close()
            assert process.wait(10) == 0
            assert process.stdout.read() == ""
    assert seen == [1, 2, 3, 4]


def in_terminal(columns: int, *args: object) -> list[str]:
    """What the command prints in a terminal of that width."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {
        "TERM": "xterm-256color"
    }
    command = [sys.executable, "-m", "kgent_tools", *map(str, args)]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True) as process:
        os.close(slave)
        output = b""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                data = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            output += data
        assert process.wait(10) in (0, 1), output
    os.close(master)
    return output.decode().split("\r\n")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_gets_colour_and_lines_of_its_width(run: Path, columns: int) -> None:
    for command in (["log", run], ["stats", run], ["runs", run.parent], ["tools"]):
        lines = in_terminal(columns, *command)
        plain = [ANSI.sub("", line) for line in lines]
        assert max(map(cell_len, plain)) <= columns
        assert any(line != text for line, text in zip(lines, plain, strict=True))
        assert all(c.isprintable() for line in plain for c in line)
    shown = "\n".join(ANSI.sub("", line) for line in in_terminal(columns, "log", run))
    assert ("…" in shown) == (columns == 80)
    assert "evil" in shown


def test_what_a_pipe_gets_is_plain_and_whole(run: Path) -> None:
    output = ran("log", run).output
    assert "…" not in output
    assert all(c.isprintable() or c in "\t\n" for c in output)


def test_call_tries_a_tool_governed_and_on_record(run: Path, tmp_path: Path) -> None:
    base = ["--workspace", tmp_path / "ws", "--runs", tmp_path / "tried"]
    done = ran("call", "read_file", "--args", '{"path": "notes.md"}', *base)
    assert done.stdout == "     1\tone\n     2\ttwo\n"
    said = re.search("run: (.+)", done.stderr)
    assert said is not None
    record = json.loads((Path(said[1]) / LOGS[0]).read_bytes())
    assert (record["tool"], record["status"]) == ("read_file", "completed")
    failed = json.loads(ran("call", "read_file", "--args", '{"path": "../x"}', "--json", *base, status=1).stdout)
    assert (failed["ok"], failed["error"]["code"]) == (False, "outside_sandbox")
    assert ran("call", "read_file", "--args", "-", *base, input='{"path": "notes.md"}').stdout.endswith("two\n")
    for tool, args, code in (("nope", "{}", "unknown_tool"), ("read_file", "{", "invalid_args")):
        assert code in ran("call", tool, "--args", args, *base, status=1).output
    hostile = ran("call", "list_files", *base).stdout
    assert "\u202e" not in hostile
    assert "evil" in hostile
    (tmp_path / "bad.toml").write_text("[nope]\n", encoding="utf-8")
    assert "nope" in ran("call", "list_files", *base, "--config", tmp_path / "bad.toml", status=2).output
    assert len(list((tmp_path / "tried").iterdir())) == 6


def test_tools_and_policy_are_explained(tmp_path: Path) -> None:
    config = tmp_path / "kgent.toml"
    config.write_text(
        '[permissions]\nfilesystem_delete = "ask"\n[[permissions.rules]]\naction = "grep_files"\nresource = "*"\neffect = "deny"\n',
        encoding="utf-8",
    )
    base = ["--workspace", tmp_path, "--config", config]
    offered = [json.loads(line) for line in ran("tools", "--json", *base).output.splitlines()]
    names = {tool["name"] for tool in offered}
    assert "read_file" in names
    assert "grep_files" not in names
    assert all(tool["input_schema"]["type"] == "object" for tool in offered)
    assert '"path"' in ran("tools", "read_file", *base).output
    assert "not offered: grep_files" in ran("tools", "grep_files", *base, status=2).output
    assert "config: deny grep_files *" in ran("policy", "explain", *base).output
    assert ran("policy", "check", "read_file", "a.md", *base).output.startswith("allow: ")
    assert ran("policy", "check", "grep_files", "a.md", *base, status=1).output.startswith("deny: by the rule 'config:")
    answer: dict[str, Any] = json.loads(
        ran("policy", "check", "filesystem_delete", "a.md", "--json", *base, status=1).output
    )
    assert (answer["allowed"], answer["effect"]) == (False, "ask")
    assert list(tmp_path.iterdir()) == [config]
