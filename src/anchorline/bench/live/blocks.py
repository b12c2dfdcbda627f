"""Traces of lengths and block hashes, as Mooncake published and vLLM's and other load generators read.

A line: {"timestamp": milliseconds, "input_length": tokens, "output_length": tokens, "hash_ids": [block, …]}. A hash
stands for a block of tokens and all before it, so equal hashes at the start of two lines are a shared prefix. The
text is not in the trace; each block becomes words of its own, as many as a server needs for that many tokens.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from anchorline.bench.trace import CHAT_PATH, LATEST_SECONDS, Trace, TraceRequest
from anchorline.errors import ConfigError

BLOCK_TOKENS = 512
NOT_RECORDED = float("inf")
COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend"
)
WORDS = tuple(COMMON.split())
"""Most vocabularies have each of them as one token; how many tokens they really are is measured."""


class BlockLine(msgspec.Struct, frozen=True, kw_only=True):
    """One call. Fields of other tools are left alone."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTrace:
    name: str
    lines: tuple[BlockLine, ...]


def is_block_trace(path: Path) -> bool:
    """Whether the first line that is not empty has block hashes; False for a file that cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            entry = json.loads(next((line for line in file if line.strip()), "null"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(entry, Mapping) and "hash_ids" in entry


def read_block_trace(path: Path, *, block_tokens: int) -> BlockTrace:
    """Raises ConfigError naming the file and the line that is none, or whose blocks are of another size."""
    lines = []
    try:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if text.strip():
                lines.append(_line(text, f"{path}, line {number},", block_tokens=block_tokens))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error
    return BlockTrace(name=path.name.removesuffix(".jsonl"), lines=tuple(lines))


def written_out(trace: BlockTrace, *, block_tokens: int, words_per_token: float) -> Trace:
    """The calls of ``trace`` as chat completions of one message each; when they ended was not recorded."""
    block_words = round(block_tokens * words_per_token)
    return Trace(
        name=trace.name,
        requests=tuple(
            TraceRequest(
                path=CHAT_PATH,
                body=_body(line, block_words=block_words, words=round(line.input_length * words_per_token)),
                arrival_seconds=line.timestamp / 1000,
                end_seconds=NOT_RECORDED,
            )
            for line in trace.lines
        ),
    )


def _line(text: str, where: str, *, block_tokens: int) -> BlockLine:
    try:
        line = msgspec.json.decode(text, type=BlockLine)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is no line of a block trace: {error}") from error
    if line.input_length < 1 or line.output_length < 0:
        raise ConfigError(f"{where} has lengths of {line.input_length} and {line.output_length} tokens")
    if not abs(line.timestamp) <= LATEST_SECONDS * 1000:
        raise ConfigError(f"{where} has a timestamp of more than {LATEST_SECONDS * 1000:.0f} milliseconds")
    if len(line.hash_ids) != -(-line.input_length // block_tokens):
        raise ConfigError(
            f"{where} has {len(line.hash_ids)} hash_ids for {line.input_length} tokens: "
            f"its blocks are not of {block_tokens} (--block-tokens)"
        )
    return line


def _body(line: BlockLine, *, block_words: int, words: int) -> dict[str, Any]:
    """Of ``words`` words, those of each block in turn; the last block is cut where the prompt ends."""
    written = [word for block in line.hash_ids for word in words_of(block, count=block_words)]
    text = " ".join(written[: max(1, words)])
    return {"messages": [{"role": "user", "content": text}], "max_tokens": max(1, line.output_length)}


def words_of(block: int | str, *, count: int) -> list[str]:
    """The words that a block always has, or the first of them."""
    return random.Random(f"block {block}").choices(WORDS, k=count)
