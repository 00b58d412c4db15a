"""The `kgent-tools` command (extra: `kgent_tools[cli]`).

Exit status: 0; 1 where the answer is no, such as a call that failed, an action that is not allowed, a log that is
damaged; 2 where there is no answer, such as a run that is not there, or an option that does not exist.
"""

from __future__ import annotations

import click

from kgent_tools import __version__
from kgent_tools.cli import memory, records, tools

__all__ = ["cli"]


@click.group()
@click.version_option(__version__)
def cli() -> None:
    """Shows what governed agent tools did, tries them, and looks after their runs."""


for command in (*records.COMMANDS, *tools.COMMANDS, memory.memory):
    cli.add_command(command)
