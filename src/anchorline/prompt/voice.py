"""A chat template with what it was found to need: the form in which it wants messages, and the ids of calls."""

from __future__ import annotations

import re

from anchorline.output.meaning import Said
from anchorline.prompt.guard import Guard
from anchorline.prompt.messages import Message, merge_system, split_parallel_calls
from anchorline.prompt.probe import REASONING, Capabilities
from anchorline.prompt.template import ChatTemplate
from anchorline.prompt.tokenise import PromptTokenizer

_KIMI_CALL = "<|tool_call_argument_begin|>"
"""What a template writes that begins a call with its id, ``functions.NAME:COUNT``."""

_KIMI_ID = re.compile(r"functions\.[^\s<:]+:\d{1,9}")
_PLAIN_ID = re.compile(r"[A-Za-z0-9]{9}")


class Voice:
    """A template with its guard and what it was found to need."""

    def __init__(
        self, name: str, template: ChatTemplate, capabilities: Capabilities, tokenizer: PromptTokenizer
    ) -> None:
        self.name = name
        self.template = template
        self.capabilities = capabilities
        self.shows_time = "strftime_now" in template.source
        self.guard = Guard(tokenizer.control, template, text_arguments=capabilities.text_arguments)

    def name_call(self, tool: str, count: int) -> str:
        """The id that a conversation's ``count``-th call has in a prompt.

        Nine letters and digits are what templates take that take not any; Kimi's model knows one form of its own.
        """
        return f"functions.{tool}:{count}" if _KIMI_CALL in self.template.source else f"{count:09d}"

    def own_ids(self, said: Said) -> list[str | None]:
        """The ids that a model wrote into the calls of a turn, where they are of the form above and tell them apart."""
        form = _KIMI_ID if _KIMI_CALL in self.template.source else _PLAIN_ID
        ids = [call.written_id for call in said.calls]
        told_apart = len(set(ids)) == len(ids)
        return [id if told_apart and id is not None and form.fullmatch(id) else None for id in ids]

    def shape(self, messages: list[Message]) -> list[Message]:
        """Guarded messages in the form this template wants."""
        if not self.capabilities.system:
            messages = merge_system(messages)
        if not self.capabilities.parallel_calls:
            messages = split_parallel_calls(messages)
        if self.capabilities.reasoning_key != REASONING or not self.capabilities.reasoning_beside_text:
            messages = [self._with_reasoning(message) for message in messages]
        if self.capabilities.null_call_content:
            messages = [
                {**message, "content": None} if "tool_calls" in message and not message["content"] else message
                for message in messages
            ]
        if self.capabilities.typed_content:
            messages = [
                {**message, "content": [{"type": "text", "text": message["content"]}]}
                if message["content"] is not None
                else message
                for message in messages
            ]
        return messages

    def _with_reasoning(self, message: Message) -> Message:
        """``message`` with its reasoning where the template looks for it, if it may stand beside the text."""
        if REASONING not in message:
            return message
        rest = {key: value for key, value in message.items() if key != REASONING}
        if rest["content"] and "tool_calls" in rest and not self.capabilities.reasoning_beside_text:
            return rest
        return {**rest, self.capabilities.reasoning_key: message[REASONING]}
