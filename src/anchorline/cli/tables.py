"""Tables for people: on a terminal as wide as it is, elsewhere wide enough for every column."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 140


def show_table(table: Table) -> None:
    """Print ``table`` to stdout without frames, so that it fits and can be copied."""
    table.box = None
    table.pad_edge = False
    table.padding = (0, 2, 0, 0)
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
