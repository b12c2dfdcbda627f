"""Which format a model writes, told by its chat template and vocabulary."""

from __future__ import annotations

from collections.abc import Collection

from anchorline.output.format import ReplyFormat
from anchorline.output.formats import (
    deepseek,
    glm,
    granite,
    harmony,
    hermes,
    kimi,
    kimi_k3,
    lfm2,
    llama,
    minimax,
    mistral,
    qwen,
)
from anchorline.output.formats.gemma import FUNCTION_GEMMA, GEMMA, GEMMA4

_IN_TEMPLATE: tuple[tuple[ReplyFormat, tuple[str, ...]], ...] = (
    (harmony.HARMONY, (harmony.CHANNEL, harmony.MESSAGE)),
    (deepseek.DEEPSEEK_V3_2, ("DSML",)),
    (deepseek.DEEPSEEK_V3, (deepseek.CALL, "```json")),
    (deepseek.DEEPSEEK_V3_1, (deepseek.CALL,)),
    (kimi.KIMI, (kimi.CALL,)),
    (kimi_k3.KIMI_K3, (kimi_k3.OPEN, kimi_k3.SEPARATOR)),
    (mistral.MISTRAL_NAMED, (mistral.OPEN, mistral.ARGUMENTS)),
    (mistral.MISTRAL, (mistral.OPEN,)),
    (minimax.MINIMAX, (minimax.OPEN,)),
    (glm.GLM, ("<arg_key>",)),
    (qwen.QWEN, ("<function=", "<parameter=")),
    (lfm2.LFM2, (lfm2.OPEN,)),
    (lfm2.LFM2, ("<|tool_list_start|>",)),
    (GEMMA4, ("<|tool_call>",)),
    (FUNCTION_GEMMA, ("<start_function_call>",)),
    (GEMMA, ("tool_code",)),
    (granite.GRANITE, (granite.OPEN,)),
    (hermes.HERMES, (hermes.OPEN,)),
    (llama.LLAMA, (llama.PYTHON_TAG,)),
    (llama.LLAMA, ("<|start_header_id|>", '"parameters": dictionary')),
)
"""A format, and the marks a template has that asks for it; those that say more come first."""

_IN_VOCABULARY: tuple[tuple[ReplyFormat, str], ...] = (
    (harmony.HARMONY, harmony.CHANNEL),
    (deepseek.DEEPSEEK_V3_1, deepseek.CALL),
    (kimi.KIMI, kimi.CALL),
    (mistral.MISTRAL_NAMED, mistral.ARGUMENTS),
    (mistral.MISTRAL, mistral.OPEN),
    (minimax.MINIMAX, minimax.OPEN),
    (glm.GLM, "<arg_key>"),
    (lfm2.LFM2, lfm2.OPEN),
    (GEMMA4, "<|tool_call>"),
    (FUNCTION_GEMMA, "<start_function_call>"),
    (granite.GRANITE, granite.OPEN),
    (llama.LLAMA, llama.PYTHON_TAG),
)


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
    return hermes.HERMES
