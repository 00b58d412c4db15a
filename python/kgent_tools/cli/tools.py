"""`kgent-tools call`, `tools` and `policy`: the tools and the policy from a shell, governed like an agent's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click

from kgent_tools import EffectivePermissionPolicy, FileContent, RunContext, ToolRegistry, ToolsConfig
from kgent_tools._runs import escaped
from kgent_tools.cli.terminal import COLOURS, Table, no_answer, note

__all__ = ["COMMANDS"]

T = TypeVar("T")

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
CONFIG = click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The kgent.toml; defaults without."
)
WORKSPACE = click.option(
    "--workspace", type=FOLDER, default=".", show_default="this folder", help="The project that the tools work in."
)
JSON = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")


def _config(path: Path | None) -> ToolsConfig:
    return ToolsConfig.from_file(path) if path else ToolsConfig()


def _in_no_run(config: Path | None, workspace: Path, answer: Callable[[RunContext], T]) -> T:
    """What a run on that workspace would answer, without one that stays."""
    with no_answer(), TemporaryDirectory(prefix="kgent-tools-") as runs:
        with RunContext.create(runs, workspace=workspace, config=_config(config)) as context:
            return answer(context)


@click.command()
@click.argument("tool")
@click.option("--args", "arguments", metavar="JSON", default="{}", help="The arguments, a JSON object; - reads them.")
@WORKSPACE
@click.option("--runs", type=click.Path(file_okay=False, path_type=Path), default="runs", show_default=True)
@CONFIG
@JSON
def call(tool: str, arguments: str, workspace: Path, runs: Path, config: Path | None, as_json: bool) -> None:
    """Calls TOOL as an agent would, governed and on record in a new run; status 1 where the call fails."""
    if arguments == "-":
        arguments = sys.stdin.read()
    with no_answer(), RunContext.create(runs, workspace=workspace, config=_config(config)) as context:
        result = ToolRegistry(context).materialize().call(tool, arguments)
    if as_json:
        click.echo(json.dumps({**result.to_dict(), "run": str(context.run_dir)}))
    else:
        for part in result.content:
            if isinstance(part, FileContent):
                click.echo(f"[{escaped(part.media_type)}, {len(part.data)} bytes]")
            else:
                for line in part.text.removesuffix("\n").split("\n"):
                    click.echo("\t".join(escaped(piece) for piece in line.split("\t")))
        note(result.summary)
        note(f"run: {context.run_dir}")
    raise SystemExit(0 if result.ok else 1)


@click.command()
@click.argument("names", metavar="[TOOL]...", nargs=-1)
@WORKSPACE
@CONFIG
@JSON
def tools(names: tuple[str, ...], workspace: Path, config: Path | None, as_json: bool) -> None:
    """Lists the tools that the policy offers; with their names, or as JSON, with schemas."""

    def catalogue(context: RunContext) -> list[dict[str, Any]]:
        return [
            {
                "name": tool.name,
                "description": tool.description,
                "permission": tool.permission,
                "capabilities": tool.capabilities,
                "annotations": tool.annotations,
                "input_schema": tool.input_schema,
                "output_schema": tool.output_schema,
            }
            for tool in ToolRegistry(context).materialize().definitions
        ]

    offered = {tool["name"]: tool for tool in _in_no_run(config, workspace, catalogue)}
    if missing := [name for name in names if name not in offered]:
        raise click.UsageError(f"not offered: {escaped(', '.join(missing))}; there are {', '.join(offered)}")
    chosen = [offered[name] for name in names] or list(offered.values())
    if as_json:
        for tool in chosen:
            click.echo(json.dumps(tool))
    elif names:
        for tool in chosen:
            click.echo(f"{tool['name']}\n\n{tool['description'].rstrip()}\n")
            click.echo(json.dumps(tool["input_schema"], indent=2))
    else:
        table = Table([("tool", 14), ("asks for", 27), ("description", 0)])
        for tool in chosen:
            asks = ", ".join([str(tool["permission"]), *tool["capabilities"]])
            table.row(tool["name"], asks, tool["description"].split("\n")[0])


@click.group()
def policy() -> None:
    """Says what the policy allows, and why."""


@policy.command()
@WORKSPACE
@CONFIG
def explain(workspace: Path, config: Path | None) -> None:
    """Shows what holds everywhere, the rules, and those that can never match."""
    text = _in_no_run(config, workspace, lambda run: EffectivePermissionPolicy.merge(context=run).explain())
    click.echo("\n".join(map(escaped, text.rstrip("\n").split("\n"))))


@policy.command()
@click.argument("action")
@click.argument("resource")
@WORKSPACE
@CONFIG
@JSON
def check(action: str, resource: str, workspace: Path, config: Path | None, as_json: bool) -> None:
    """Asks whether ACTION, such as edit, is allowed on RESOURCE, such as src/a.py; status 1 where it is not."""
    answer = _in_no_run(
        config, workspace, lambda run: EffectivePermissionPolicy.merge(context=run).check(action, resource)
    )
    if as_json:
        keys = ("allowed", "effect", "layer", "rule", "reason")
        click.echo(json.dumps({key: getattr(answer, key) for key in keys}))
    else:
        said = f"by the rule {answer.rule!r}" if answer.rule else f"by the {answer.layer} layer"
        click.echo(f"{click.style(answer.effect, fg=COLOURS[answer.effect])}: {escaped(said)}")
        if answer.reason:
            click.echo(escaped(answer.reason))
    raise SystemExit(0 if answer.allowed else 1)


COMMANDS = (call, tools, policy)
