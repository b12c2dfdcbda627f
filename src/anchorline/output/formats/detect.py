"""Which format a model writes, told by its chat template and vocabulary."""

from __future__ import annotations

from collections.abc import Collection

from anchorline.output.format import ReplyFormat
from anchorline.output.formats.hermes import HERMES
from anchorline.output.formats.qwen import QWEN

_IN_TEMPLATE: tuple[tuple[ReplyFormat, tuple[str, ...]], ...] = (
    (QWEN, ("<function=", "<parameter=")),
    (HERMES, ("<tool_call>",)),
)
_IN_VOCABULARY: tuple[tuple[ReplyFormat, str], ...] = ()


def detect_format(template_source: str, control_texts: Collection[str]) -> ReplyFormat:
    """The format whose marks the template writes; else one whose marks are control tokens.

    The vocabulary counts only where the template knows of tools at all: otherwise tools are
    rendered by the built-in template, which asks for Hermes' format, as does an unknown template.
    """
    for found, marks in _IN_TEMPLATE:
        if all(mark in template_source for mark in marks):
            return found
    if "tools" in template_source:
        for found, mark in _IN_VOCABULARY:
            if mark in control_texts:
                return found
    return HERMES
