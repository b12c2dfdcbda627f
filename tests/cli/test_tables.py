"""Tables on a narrow terminal keep every cell."""

from __future__ import annotations

import pytest
from rich.table import Table

from anchorline.cli.tables import show_table


def test_no_cell_is_cut_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    table = Table()
    for heading in ("id", "name"):
        table.add_column(heading, no_wrap=True)
    table.add_row("anchor_966ac7d1355c", "a name of many words")

    show_table(table)

    assert "anchor_966ac7d1355c  a name of many words" in capsys.readouterr().out
