"""Output for people: as wide as the terminal, elsewhere wide enough for every column."""

from __future__ import annotations

import shutil
import sys
import textwrap

import click
from rich.console import Console
from rich.table import Table

from anchorline.terminal import printable

PLAIN_WIDTH = 140
WIDEST = 1000
TEXT_WIDTH = 110
"""Characters of a line of prose, where the terminal has that many."""


def plain_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints names and paths as they are, whatever brackets and colons are in them."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def show_table(table: Table) -> None:
    """Print ``table`` to stdout without frames, so that it fits and can be copied.

    A terminal that is too narrow wraps its lines: no cell is cut.
    """
    console = plain_console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    console.width = max(console.width, table_width(table))
    console.print(table)


def table_width(table: Table) -> int:
    """Columns that ``table`` takes when no cell is cut or folded; takes its frames away."""
    table.box = None
    table.pad_edge = False
    table.padding = (0, 2, 0, 0)
    return plain_console(width=WIDEST).measure(table).maximum


def text_width() -> int:
    """Characters in a line of prose on stdout, without the last column."""
    return min(TEXT_WIDTH, shutil.get_terminal_size().columns - 1) if sys.stdout.isatty() else TEXT_WIDTH


def show_paragraph(text: str, *, indent: str = "") -> None:
    """Print wrapped text; paths and names stay whole, and nothing in them acts on a terminal."""
    lines = textwrap.wrap(text, text_width() - len(indent), break_on_hyphens=False, break_long_words=False)
    click.echo(textwrap.indent("\n".join(map(printable, lines)), indent))
