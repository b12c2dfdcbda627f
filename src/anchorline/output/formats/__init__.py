"""Every reply format by name, and how to tell which one a model writes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from anchorline.output.format import ReplyFormat
from anchorline.output.formats.detect import detect_format
from anchorline.output.formats.hermes import HERMES
from anchorline.output.formats.qwen import QWEN

__all__ = ["FORMATS", "detect_format"]

_ALL: tuple[ReplyFormat, ...] = (HERMES, QWEN)

FORMATS: Mapping[str, ReplyFormat] = MappingProxyType({known.name: known for known in _ALL})
"""By the value of --tool-format."""
