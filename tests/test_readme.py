"""The README names what the code knows."""

from __future__ import annotations

from pathlib import Path

from anchorline.api.thinking import TEMPLATE_KWARGS
from anchorline.prompt.effort import EFFORTS

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_template_options_and_efforts_are_listed() -> None:
    for name in (*TEMPLATE_KWARGS, *EFFORTS):
        assert f"`{name}`" in README, name
