"""Every reply format by name, and how to tell which one a model writes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from anchorline.output.format import ReplyFormat
from anchorline.output.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V3_1, DEEPSEEK_V3_2
from anchorline.output.formats.detect import detect_format
from anchorline.output.formats.gemma import FUNCTION_GEMMA, GEMMA, GEMMA4
from anchorline.output.formats.glm import GLM
from anchorline.output.formats.granite import GRANITE
from anchorline.output.formats.harmony import HARMONY
from anchorline.output.formats.hermes import HERMES
from anchorline.output.formats.kimi import KIMI
from anchorline.output.formats.kimi_k3 import KIMI_K3
from anchorline.output.formats.lfm2 import LFM2
from anchorline.output.formats.llama import LLAMA
from anchorline.output.formats.minimax import MINIMAX
from anchorline.output.formats.mistral import MISTRAL, MISTRAL_NAMED
from anchorline.output.formats.qwen import QWEN

__all__ = ["FORMATS", "detect_format"]

_ALL: tuple[ReplyFormat, ...] = (
    HERMES,
    QWEN,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    DEEPSEEK_V3,
    DEEPSEEK_V3_1,
    DEEPSEEK_V3_2,
    HARMONY,
    GEMMA,
    GEMMA4,
    FUNCTION_GEMMA,
    GLM,
    KIMI,
    KIMI_K3,
    LFM2,
    GRANITE,
    MINIMAX,
)

FORMATS: Mapping[str, ReplyFormat] = MappingProxyType({known.name: known for known in _ALL})
"""By the value of --tool-format."""
