"""How the doctor weighs texts: with a model's vocabulary, or by their bytes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime

from anchorline.config import ModelConfig
from anchorline.doctor.comparison import byte_length
from anchorline.doctor.cost import CountTokens
from anchorline.doctor.layout import ToolOrder, tool_order
from anchorline.errors import ModelError
from anchorline.llama.interface import Tokenizer
from anchorline.llama.model import DEFAULT_MODEL, default_model_path, load_model
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.memo import ByteMemo
from anchorline.prompt.select import select_template

TOKEN_BYTES = 4
"""Bytes taken for a token where no vocabulary is at hand."""
COUNTED_BYTES = 64 << 20
"""As many bytes of texts are remembered with what they were counted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How texts are weighed, and where the template writes the tools."""

    tokens: CountTokens
    order: ToolOrder
    words: str
    """The same for people."""


def counting_with(model: str | None, *, no_model: bool) -> Counting:
    """Raises ModelError or ConfigError when the model that was asked for cannot be loaded."""
    if no_model or (model is None and not _default_is_installed()):
        return Counting(
            tokens=lambda text: -(-byte_length(text) // TOKEN_BYTES),
            order=ToolOrder.FIRST,
            words=f"about {TOKEN_BYTES} bytes a token, tools in front",
        )
    name = model or DEFAULT_MODEL
    loaded = load_model(ModelConfig(model=name), weights=False)
    selected = select_template(None, loaded.info, loaded.tokenizer)
    order = tool_order(PromptBuilder(loaded.tokenizer, selected, clock=datetime.now).render)
    return Counting(
        tokens=_counted(loaded.tokenizer),
        order=order,
        words=f"counted with {name}, tools {order}, template {selected.words}",
    )


def _default_is_installed() -> bool:
    try:
        default_model_path()
    except ModelError:
        return False
    return True


def _counted(tokenizer: Tokenizer) -> CountTokens:
    known: ByteMemo[str, int] = ByteMemo(COUNTED_BYTES)

    def count(text: str) -> int:
        tokens = known.get(text)
        if tokens is None:
            tokens = int(tokenizer.tokenize(text).size)
            known.put(text, tokens, sys.getsizeof(text))
        return tokens

    return count
