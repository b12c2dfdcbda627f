"""Parts that several prompt tests use."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from anchorline.llama.interface import ModelInfo, Tokenizer
from anchorline.output.formats import FORMATS
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.probe import probe
from anchorline.prompt.rewrites import NO_REWRITES, Rewrites
from anchorline.prompt.select import SelectedTemplate, select_template, template_tokens
from anchorline.prompt.template import ChatTemplate, Clock
from anchorline.prompt.turn_marks import CHATML
from anchorline.prompt.turns import TurnMemo
from tests.prompt.vocabulary import ToyTokenizer

CHATML_CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>")
NOON = datetime(2024, 5, 17, 12)

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
    for name in ("read_file", "write_file")
]


class CountingTemplate(ChatTemplate):
    """Counts its renders."""

    renders = 0

    def render(self, *args: Any, **kwargs: Any) -> str:
        self.renders += 1
        return super().render(*args, **kwargs)


def selected(template: ChatTemplate, tokenizer: Tokenizer, *, own_tools: bool = True) -> SelectedTemplate:
    """``template`` for everything, or with the built-in one for tools."""
    tokens = template_tokens(tokenizer)
    tool_template = template if own_tools else CHATML.template()
    return SelectedTemplate(
        template=template,
        name=template.name,
        origin="test",
        reason="test",
        capabilities=probe(template, tokens),
        tool_template=tool_template,
        tool_capabilities=probe(tool_template, tokens),
    )


def toy_builder(
    source: str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    template: ChatTemplate | None = None,
    clock: Clock = lambda: NOON,
    all_cuts: bool = False,
    turns: TurnMemo | None = None,
    rewrites: Rewrites = NO_REWRITES,
) -> PromptBuilder:
    """A builder over the toy tokenizer; the built-in one for ChatML when none is given."""
    tokenizer = tokenizer or ToyTokenizer(CHATML_CONTROL)
    if template is None:
        template = CHATML.template() if source is None else ChatTemplate(source)
    return PromptBuilder(
        tokenizer,
        selected(template, tokenizer),
        clock=clock,
        all_cuts=all_cuts,
        turns=turns,
        rewrites=rewrites,
        reply_format=FORMATS["hermes"],
    )


def real_builder(tokenizer: Tokenizer, info: ModelInfo, choice: str | None = None) -> PromptBuilder:
    return PromptBuilder(tokenizer, select_template(choice, info, tokenizer), clock=lambda: NOON)


def model_info(*, chat_template: str | None = None, named: Mapping[str, str] | None = None) -> ModelInfo:
    return ModelInfo(
        name="toy",
        description="",
        architecture="toy",
        parameters=0,
        size_bytes=0,
        train_context_tokens=1,
        vocab_size=1,
        embedding_length=1,
        chat_template=chat_template,
        named_templates=named or {},
        metadata={},
        build="",
    )


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, *calls: tuple[str, str]) -> dict[str, Any]:
    """An assistant message; calls are (name, arguments as JSON)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": f"call{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(calls)
        ]
    return message


def result(text: str, call: int = 0) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": f"call{call}"}
