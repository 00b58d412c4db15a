"""`kgent-tools memory`: people review what a run wants remembered."""

from __future__ import annotations

import json
import queue
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kgent_tools import ErrorInfo, KgentError, MemoryWriteResult, ToolsConfig
from kgent_tools._client_calls import ClientCalls, client_from
from kgent_tools._core import MemoryReview
from kgent_tools._runs import escaped
from kgent_tools.cli.terminal import RUN

__all__ = ["memory"]

CANDIDATE = click.argument("candidates", metavar="ID@HASH...", nargs=-1, required=True)
RETRY = click.option(
    "--retry", is_flag=True, help="Also one whose state is unknown: look first whether the client has it."
)


@click.group()
def memory() -> None:
    """Reviews what a run wants remembered. RUN is the run's folder, such as runs/20261130-120000-0a1b2c3d."""


@memory.command("list")
@RUN
@click.option("--all", "decided", is_flag=True, help="Also those that were decided on.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each line.")
def list_candidates(run: Path, decided: bool, as_json: bool) -> None:
    """Shows a run's candidates with the ID@HASH that accept and reject take."""
    with _told():
        candidates, bad = _review(run).list()
    for candidate in candidates:
        if not decided and candidate["status"] in ("accepted", "rejected"):
            continue
        if as_json:
            click.echo(json.dumps(candidate))
            continue
        tags = "".join(f" #{tag}" for tag in candidate["tags"])
        click.echo(escaped(f"{candidate['id']}@{candidate['hash']}  {candidate['status']}"))
        click.echo(escaped(f"  {candidate['time']}  scope {candidate['scope']}{tags}"))
        for line in candidate["content"].split("\n"):
            click.echo(f"  | {escaped(line)}")
    for number, why in bad:
        click.echo(f"line {number} was passed over: {why}", err=True)


@memory.command()
@RUN
@CANDIDATE
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The kgent.toml with memory.client."
)
@click.option("--client", "named", help="package.module:factory, instead of the configuration's.")
@RETRY
def accept(run: Path, candidates: tuple[str, ...], config: Path | None, named: str | None, retry: bool) -> None:
    """Hands candidates to the memory client."""
    with _told():
        settings: dict[str, Any] = (ToolsConfig.from_file(config) if config else ToolsConfig()).to_dict()["memory"]
        named = named or settings.get("client")
        if named is None:
            raise click.ClickException("which client? Give --client, or --config with memory.client")
        client = ClientCalls(client_from(named))
        review = _review(run)
    failed = False
    for id, hash in map(_parts, candidates):
        try:
            failed |= not _hand_over(review, client, named, id, hash, retry, settings["timeout_s"])
        except KgentError as error:
            click.echo(f"{escaped(id)}: {escaped(str(error))}", err=True)
            failed = True
    if failed:
        raise SystemExit(1)


@memory.command()
@RUN
@CANDIDATE
@RETRY
def reject(run: Path, candidates: tuple[str, ...], retry: bool) -> None:
    """Notes that candidates will not be remembered."""
    with _told():
        review = _review(run)
        for id, hash in map(_parts, candidates):
            review.reject(id, hash, retry)
            click.echo(f"{id}: rejected")


def _hand_over(
    review: MemoryReview, client: ClientCalls, named: str, id: str, hash: str, retry: bool, timeout_s: float
) -> bool:
    """What may have been stored without an answer stays `unknown`: nobody can tell."""
    candidate = review.begin(id, hash, named, retry)
    answers: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
    arguments = (candidate["content"], candidate["scope"], candidate["tags"])
    cancel = client.begin("write_memory", arguments, lambda answer, error: answers.put((answer, error)))
    try:
        answer, error = answers.get(timeout=timeout_s)
    except queue.Empty:
        cancel()
        answer, error = None, TimeoutError(f"no answer within {timeout_s} s")
    if not isinstance(answer, MemoryWriteResult):
        why = f"{type(error).__name__}: {error}" if error else f"the client answered with a {type(answer).__name__}"
        click.echo(f"{id}: unknown: {escaped(why[:500])}", err=True)
        return False
    if isinstance(answer.error, ErrorInfo):
        review.finish(id, hash, "failed", named)
        click.echo(f"{id}: failed: {escaped(answer.error.message[:500])}", err=True)
        return False
    review.finish(id, hash, "accepted", named, answer.id)
    click.echo(f"{id}: accepted{f' as {escaped(answer.id)}' if answer.id else ''}")
    return True


def _review(run: Path) -> MemoryReview:
    run = run.absolute()
    return MemoryReview(run.parent, run.name)


def _parts(candidate: str) -> tuple[str, str]:
    id, at, hash = candidate.partition("@")
    if not (id and at and hash):
        raise click.UsageError(f"{escaped(candidate)!r} is no ID@HASH: copy it from `memory list`")
    return id, hash


@contextmanager
def _told() -> Generator[None]:
    """The host's own failures as the command's: a message and status 1."""
    try:
        yield
    except KgentError as error:
        raise click.ClickException(escaped(str(error))) from error
