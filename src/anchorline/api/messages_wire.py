"""Messages' replies as they go over the wire: the message, its blocks, and the events of a stream.

``type`` is each struct's tag, and an event's tag is also its name in the stream.
"""

from __future__ import annotations

import msgspec

_NO_INPUT = msgspec.Raw(b"{}")


class CacheCreation(msgspec.Struct, kw_only=True, frozen=True):
    """Prefilled tokens by how long they were asked to be kept."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens. The prompt's are the sum of the first three."""

    input_tokens: int
    """Prefilled, behind the last ``cache_control`` (all that was prefilled, when there is none)."""
    cache_creation_input_tokens: int = 0
    """Prefilled, before the last ``cache_control``."""
    cache_creation: CacheCreation = CacheCreation()
    """The same, divided."""
    cache_read_input_tokens: int = 0
    """Restored."""
    output_tokens: int = 0


class TextBlock(msgspec.Struct, kw_only=True, tag="text", tag_field="type"):
    text: str = ""


class ThinkingBlock(msgspec.Struct, kw_only=True, tag="thinking", tag_field="type"):
    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag="tool_use", tag_field="type"):
    id: str
    name: str
    input: msgspec.Raw = _NO_INPUT


Block = TextBlock | ThinkingBlock | ToolUseBlock


class Message(msgspec.Struct, kw_only=True, tag="message", tag_field="type"):
    id: str
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage


class TextPart(msgspec.Struct, frozen=True, tag="text_delta", tag_field="type"):
    text: str


class ThinkingPart(msgspec.Struct, frozen=True, tag="thinking_delta", tag_field="type"):
    thinking: str


class SignaturePart(msgspec.Struct, frozen=True, tag="signature_delta", tag_field="type"):
    signature: str


class InputPart(msgspec.Struct, frozen=True, tag="input_json_delta", tag_field="type"):
    partial_json: str


Part = TextPart | ThinkingPart | SignaturePart | InputPart


class MessageStart(msgspec.Struct, frozen=True, tag="message_start", tag_field="type"):
    message: Message


class BlockStart(msgspec.Struct, frozen=True, tag="content_block_start", tag_field="type"):
    index: int
    content_block: Block


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta", tag_field="type"):
    index: int
    delta: Part


class BlockStop(msgspec.Struct, frozen=True, tag="content_block_stop", tag_field="type"):
    index: int


class Stop(msgspec.Struct, kw_only=True, frozen=True):
    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag="message_delta", tag_field="type"):
    delta: Stop
    usage: Usage


class MessageStop(msgspec.Struct, frozen=True, tag="message_stop", tag_field="type"):
    pass


class Ping(msgspec.Struct, frozen=True, tag="ping", tag_field="type"):
    pass


BlockEvent = BlockStart | BlockDelta | BlockStop
"""What happens to the content."""

MessageEvent = MessageStart | BlockEvent | MessageDelta | MessageStop | Ping
