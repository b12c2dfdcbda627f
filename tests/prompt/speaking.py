"""A builder that knows generated turns again, and a model of some family that says what the test wants."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from anchorline.engine.request import FinishReason, SampledToken
from anchorline.output.events import ReasoningDelta, ReplyEvent, TextDelta, ToolCallDelta, ToolCallStarted
from anchorline.output.format import CallMode, ReplyContext
from anchorline.output.formats import FORMATS
from anchorline.output.reply import Reply
from anchorline.prompt.builder import BuiltPrompt, PromptBuilder
from anchorline.prompt.rewrites import NO_REWRITES, Rewrites
from anchorline.prompt.template import ChatTemplate
from anchorline.prompt.turns import GeneratedTurn, TurnMemo, TurnRecorder
from tests.prompt.support import NOON, selected
from tests.prompt.vocabulary import ToyTokenizer
from tests.support.families import Call, Family

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "line": {"type": "integer"}, "exact": {"type": "boolean"}},
            },
        },
    }
    for name in ("read_file", "list_files")
]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}

Message = dict[str, Any]


class Speaker:
    """A family's template over a toy vocabulary with its control tokens, with a memo and without."""

    def __init__(self, family: Family, *, source: str | None = None, rewrites: Rewrites = NO_REWRITES) -> None:
        self.family = family
        self.format = FORMATS[family.name]
        self.tokenizer = ToyTokenizer(family.control, bos=family.bos, eos=family.end)
        self.memo = TurnMemo(limit_entries=100, limit_bytes=1 << 20)
        template = ChatTemplate(family.template if source is None else source, name=family.name)
        chosen = selected(template, self.tokenizer)
        self.builder, self.plain = (
            PromptBuilder(
                self.tokenizer,
                chosen,
                clock=lambda: NOON,
                reply_format=self.format,
                turns=turns,
                rewrites=rewrites,
            )
            for turns in (self.memo, None)
        )
        self.tenant = ""
        self.turn: GeneratedTurn | None = None
        """The last turn that was heard."""
        self._ids = itertools.count()

    def chat(self, messages: Sequence[Message]) -> BuiltPrompt:
        return self.builder.chat(messages, tools=TOOLS, tenant=self.tenant)

    def without_memo(self, messages: Sequence[Message]) -> BuiltPrompt:
        return self.plain.chat(messages, tools=TOOLS)

    def answer(
        self, messages: Sequence[Message], *, reasoning: str = "", content: str = "", calls: Sequence[Call] = ()
    ) -> tuple[list[int], Message]:
        """All ids, prompt and reply, of a call with ``messages``, and the message that a client makes of the reply."""
        prompt = self.chat(messages)
        reply = self.spell(self.family.says(reasoning, content, list(calls)))
        message = self.hear(reply, prompt)
        assert len(message.get("tool_calls", ())) == len(calls), message
        assert message["content"].strip() == content.strip()
        return ids_of(prompt) + reply, message

    def spell(self, text: str) -> list[int]:
        """One id a control token, and one a byte, which is not how the vocabulary would spell it."""
        ids, position = list[int](), 0
        for match in self.builder.tokenizer.control.pattern.finditer(text):
            ids += text[position : match.start()].encode()
            ids.append(self.tokenizer.control_tokens[match.group()])
            position = match.end()
        return ids + list(text[position:].encode())

    def hear(self, ids: Sequence[int], prompt: BuiltPrompt) -> Message:
        """The message that a client makes of the reply to a prompt; the memo gets it as from the server."""
        context = ReplyContext(
            prompt_end=prompt.text[-200:],
            tools=SCHEMAS,
            calls=CallMode.AUTO,
            new_call_id=lambda: f"id{next(self._ids)}",
        )
        parser = self.format.parser(context)
        recorder = TurnRecorder(self.memo, self.tokenizer, tenant=self.tenant, asked=prompt.asked)
        message: Message = {"role": "assistant", "content": ""}

        def emit(given: ReplyEvent) -> None:
            for event in parser.feed(given):
                recorder.take(event)
                add_to(message, event)

        reply = Reply(self.tokenizer, choices=1, stop=(), emit=emit, spelled=self.format.spelled)
        for token in ids:
            reply.on_token(0, SampledToken(token))
        reply.on_finish(0, FinishReason.STOP)
        self.turn = recorder.turn
        return message


def add_to(message: Message, event: ReplyEvent) -> None:
    """What a client does with an event of a reply."""
    match event:
        case TextDelta():
            message["content"] += event.text
        case ReasoningDelta():
            message["reasoning_content"] = message.get("reasoning_content", "") + event.text
        case ToolCallStarted():
            function = {"name": event.name, "arguments": ""}
            message.setdefault("tool_calls", []).append({"id": event.id, "type": "function", "function": function})
        case ToolCallDelta():
            message["tool_calls"][-1]["function"]["arguments"] += event.arguments
        case _:
            pass


def rewritten(message: Message) -> Message:
    """``message`` as a careless client sends it back: keys sorted, other spacing, no reasoning, null for no text."""
    calls = [
        {**call, "function": {**call["function"], "arguments": respelled(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": message["content"] or None, "tool_calls": calls}


def respelled(arguments: str) -> str:
    return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"))


def results_of(message: Message, *texts: str) -> list[Message]:
    """A result for each call of a message, in order."""
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": text}
        for call, text in zip(message["tool_calls"], texts, strict=True)
    ]


def ids_of(built: BuiltPrompt) -> list[int]:
    return [int(token) for token in built.prompt.tokens]
