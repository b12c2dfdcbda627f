"""Output fits the terminal: prose is wrapped, and tables keep every cell."""

from __future__ import annotations

import pytest
from rich.table import Table

from anchorline.cli.tables import TEXT_WIDTH, show_table, text_width


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


@pytest.mark.parametrize(("columns", "width"), [("80", 79), ("200", TEXT_WIDTH)])
def test_prose_is_as_wide_as_the_terminal_but_no_wider_than_can_be_read(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", columns)
    assert text_width() == width
