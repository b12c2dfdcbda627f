"""``POST /tokenize`` and ``/detokenize``, in llama-server's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from anchorline.api.completions import check_token_ids
from anchorline.api.decode import decode_body, json_type
from anchorline.errors import RequestError
from anchorline.llama.interface import Tokenizer


class TokenizeBody(msgspec.Struct, kw_only=True):
    """``content`` is text, or a list of texts and token ids."""

    content: str | list[Any]
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[Any]


def parse_tokenize(raw: bytes, *, vocab_size: int) -> TokenizeBody:
    """Decode and check a ``/tokenize`` body."""
    body = decode_body(raw, TokenizeBody)
    if isinstance(body.content, list):
        for index, part in enumerate(body.content):
            where = f"content[{index}]"
            if isinstance(part, int) and not isinstance(part, bool):
                _check_vocabulary(part, where=where, vocab_size=vocab_size)
            elif not isinstance(part, str):
                raise RequestError(
                    f"{where} must be a string or a token id, not {json_type(part)}", field=where, code="invalid_type"
                )
    return body


def parse_detokenize(raw: bytes, *, vocab_size: int) -> tuple[int, ...]:
    """Decode and check a ``/detokenize`` body; the ids lie in the vocabulary."""
    ids = check_token_ids(decode_body(raw, DetokenizeBody).tokens, where="tokens")
    for index, token in enumerate(ids):
        _check_vocabulary(token, where=f"tokens[{index}]", vocab_size=vocab_size)
    return ids


def tokenize_reply(tokens: Sequence[int], *, tokenizer: Tokenizer, with_pieces: bool) -> dict[str, Any]:
    """Ids, or ids with their text; bytes that are no text of their own are written as numbers."""
    if not with_pieces:
        return {"tokens": list(tokens)}
    return {"tokens": [{"id": token, "piece": _piece(tokenizer.special_piece(token))} for token in tokens]}


def detokenize_reply(tokens: Sequence[int], *, tokenizer: Tokenizer) -> dict[str, Any]:
    text = b"".join(tokenizer.special_piece(token) for token in tokens)
    return {"content": text.decode("utf-8", errors="replace")}


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _check_vocabulary(token: int, *, where: str, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        raise RequestError(f"{where} must be a token id between 0 and {vocab_size - 1}", field=where)
