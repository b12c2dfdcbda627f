"""Where a prefill pauses: to capture a state, and in exact mode so that chunks end at fixed positions."""

from __future__ import annotations

from anchorline.cache.cuts import chunk_ends, state_ends
from anchorline.cache.prompt import Prompt
from anchorline.engine.stream import Stream
from anchorline.llama.interface import Capabilities, RuntimeLimits

CHECKPOINT_TOKENS_MIN = 512
CHECKPOINT_TOKENS_WITHOUT_ROWS = 2048
STATE_SHARE_OF_ROWS = 3
"""By default the states of a long prefill take at most a third of its rows' bytes."""


def default_checkpoint_tokens(capabilities: Capabilities, limits: RuntimeLimits) -> int:
    """Tokens between two checkpoints of a long prefill, from the state's size and the rows' per token."""
    if not capabilities.has_rows or limits.bytes_per_token <= 0:
        return CHECKPOINT_TOKENS_WITHOUT_ROWS
    affordable = int(STATE_SHARE_OF_ROWS * capabilities.state_bytes / limits.bytes_per_token)
    return max(affordable, CHECKPOINT_TOKENS_MIN)


def pauses(prompt: Prompt, start: int, *, exact_batch_tokens: int | None, checkpoint_tokens: int | None) -> list[int]:
    """Ascending positions behind ``start`` at which a prefill pauses.

    ``exact_batch_tokens`` is the batch size in exact mode, else None; ``checkpoint_tokens`` is None
    where no states are captured.
    """
    if exact_batch_tokens is not None:
        return [end for end in chunk_ends(prompt, exact_batch_tokens) if end > start]
    if checkpoint_tokens is not None:
        return state_ends(prompt, start, every=checkpoint_tokens)
    return []


def tokens_to_pause(stream: Stream) -> int:
    """Pending tokens of a running stream, up to its next pause."""
    assert stream.live is not None
    if not stream.stops:
        return stream.pending
    return min(stream.pending, stream.stops[0] - stream.live.length)
