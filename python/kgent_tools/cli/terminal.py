"""How the command speaks: escaped, with colour and width in a terminal, plain elsewhere, and never with a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kgent_tools import KgentError
from kgent_tools._runs import escaped

__all__ = ["RUN", "Table", "no_answer", "note", "progress", "size", "took"]

RUN = click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
COLOURS = {
    "completed": "green",
    "closed": "green",
    "allow": "green",
    "blocked": "yellow",
    "ask": "yellow",
    "open": "cyan",
    "deny": "red",
    "failed": "red",
    "timeout": "red",
    "interrupted": "red",
    "cancelled": "magenta",
    "damaged": "red",
    "unreadable": "red",
}
LONG_BYTES = 4 << 20


class Table:
    """Rows in columns, each printed as it comes: cut to the terminal's width, or with tabs and uncut where there is none.

    A column is its heading and its cells; columns of 0 share what is left, but for `widest`, and numbers are set right.
    """

    def __init__(
        self,
        columns: Sequence[tuple[str, int]],
        *,
        right: Iterable[str] = (),
        colour: str = "status",
        widest: int | None = None,
    ) -> None:
        console = Console()
        self._terminal = console.is_terminal
        self._colour = console.color_system is not None
        shared = console.width + 1 - sum(cells + 1 for _, cells in columns)
        room = max(8, shared // max(1, sum(not cells for _, cells in columns)))
        self._columns = [(name, cells or min(room, widest or room)) for name, cells in columns]
        self._right, self._coloured = set(right), colour
        self._row([name for name, _ in columns], heading=True)

    def row(self, *cells: str) -> None:
        """Prints a row."""
        self._row(cells)

    def _row(self, cells: Sequence[str], heading: bool = False) -> None:
        cells = [escaped(cell) for cell in cells]
        if not self._terminal:
            click.echo("\t".join(cells))
            return
        shown: list[str] = []
        for (name, width), cell in zip(self._columns, cells, strict=True):
            text = cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…"
            room = " " * (width - cell_len(text))
            if name in self._right:
                text = room + text
            elif len(shown) < len(cells) - 1:
                text += room
            if heading:
                text = click.style(text, bold=True)
            elif name == self._coloured and cell in COLOURS:
                text = click.style(text, fg=COLOURS[cell])
            shown.append(text)
        click.echo(" ".join(shown), color=self._colour)


def took(us: float) -> str:
    """A duration for people."""
    if us < 1000:
        return f"{us:.0f} μs"
    if us < 1_000_000:
        return f"{us / 1000:.1f} ms"
    return f"{us / 1_000_000:.1f} s" if us < 600_000_000 else f"{us / 60_000_000:.1f} min"


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def note(text: str) -> None:
    """Something beside the answer, on standard error."""
    click.echo(escaped(text), err=True)


@contextmanager
def progress(what: str, total: int) -> Generator[Callable[[int], None]]:
    """A bar on standard error, where that is a terminal and the work is long; called with what is done so far."""
    if total < LONG_BYTES or not sys.stderr.isatty():
        yield _nothing
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


class _NoAnswer(click.ClickException):
    exit_code = 2


@contextmanager
def no_answer() -> Generator[None]:
    """What keeps the command from an answer: a message, and status 2."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads has enough, which click knows
    except (KgentError, OSError) as error:
        raise _NoAnswer(escaped(str(error))) from error


def _nothing(_: int) -> None:
    pass
