"""What a person sees when the server is up."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from rich.table import Table

from anchorline.cli.tables import plain_console

log = logging.getLogger("anchorline.cli")


def announce(facts: Mapping[str, str]) -> None:
    """Show the facts as a table on a terminal, else log them as one line; then say where ``url`` is."""
    if sys.stderr.isatty():
        _show_table(facts)
    else:
        log.info("%s", " ".join(f'{name.replace(" ", "_")}="{value}"' for name, value in facts.items()))
    # The line that scripts wait for, whatever the log level.
    print(f"listening on {facts['url']}", file=sys.stderr, flush=True)


def _show_table(facts: Mapping[str, str]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    plain_console(stderr=True).print(table)
