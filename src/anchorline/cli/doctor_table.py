"""What the doctor found, a row for each fault."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from anchorline.doctor.comparison import Kind
from anchorline.doctor.wording import TITLES


def fault_table(faults: Iterable[tuple[Kind, int, int]]) -> Table:
    """One numbered row for each (kind, requests that have it, tokens that it cost)."""
    table = Table()
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("what breaks a prefix", no_wrap=True)
    table.add_column("requests", justify="right", no_wrap=True)
    table.add_column("tokens lost", justify="right", no_wrap=True)
    for number, (kind, requests, lost_tokens) in enumerate(faults, 1):
        table.add_row(str(number), TITLES[kind], str(requests), f"{lost_tokens:,}")
    return table
