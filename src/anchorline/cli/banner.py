"""What a person sees when the server is up."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

log = logging.getLogger("anchorline.cli")


def announce(facts: Mapping[str, str]) -> None:
    """Show the facts as a table on a terminal, else log them as one line."""
    if not sys.stderr.isatty():
        log.info("%s", " ".join(f'{name.replace(" ", "_")}="{value}"' for name, value in facts.items()))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    Console(stderr=True).print(table)


def announce_listening(url: str) -> None:
    """The line that scripts wait for; always printed, whatever the log level."""
    print(f"listening on {url}", file=sys.stderr, flush=True)
