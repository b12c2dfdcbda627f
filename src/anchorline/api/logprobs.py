"""Log-probabilities in OpenAI's two shapes: chat, and the older text-completion one."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

import msgspec

from anchorline.llama.interface import Tokenizer
from anchorline.output.events import TokenText

_LOWEST = -9999.0
"""What OpenAI writes for a token that cannot occur; JSON has no infinity."""


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    content: list[ChatTokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, kw_only=True):
    """Four lists of equal length, one entry per token; offsets count characters of the reply."""

    tokens: list[str] = msgspec.field(default_factory=list)
    token_logprobs: list[float] = msgspec.field(default_factory=list)
    top_logprobs: list[dict[str, float]] = msgspec.field(default_factory=list)
    text_offset: list[int] = msgspec.field(default_factory=list)


def chat_logprobs(tokens: Iterable[TokenText], *, tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs(
        content=[
            ChatTokenLogprob(
                token=_text(token.text_bytes),
                logprob=_finite(token.logprob),
                bytes=list(token.text_bytes),
                top_logprobs=[
                    _alternative(tokenizer.special_piece(other.token), other.logprob) for other in token.alternatives
                ],
            )
            for token in tokens
        ]
    )


def text_logprobs(tokens: Iterable[TokenText], *, tokenizer: Tokenizer, offset: int) -> TextLogprobs:
    """``offset`` is where the first token's text starts in the reply; the chosen token is always listed."""
    result = TextLogprobs()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        text = _text(token.text_bytes)
        top = {_text(tokenizer.special_piece(other.token)): _finite(other.logprob) for other in token.alternatives}
        top.setdefault(text, _finite(token.logprob))
        result.tokens.append(text)
        result.token_logprobs.append(_finite(token.logprob))
        result.top_logprobs.append(top)
        result.text_offset.append(offset)
        offset += len(decoder.decode(token.text_bytes))  # a character split over tokens counts once
    return result


def _alternative(piece: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(token=_text(piece), logprob=_finite(logprob), bytes=list(piece))


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", errors="replace")


def _finite(logprob: float | None) -> float:
    return _LOWEST if logprob is None else max(logprob, _LOWEST)
