"""The arithmetic of ``anchorline fit``: what fits where, and what to change when it does not. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from anchorline.cache.pressure import reserve_bytes
from anchorline.cache.retention import NEWEST_STATES
from anchorline.cli.values import format_size
from anchorline.errors import ConfigError
from anchorline.llama.footprint import Footprint
from anchorline.machine import Memory

PROCESS_BYTES = 512 << 20
"""For Python and its libraries (about 100 MiB), memos of texts (at most 224 MiB) and the ids of what was evicted."""
LENGTHS = (4096, 16384, 65536, 131072)
STATES_PER_CONVERSATION = NEWEST_STATES + 2
"""The newest, the last before the newest user message, and the head's, which conversations may share."""
SMALLER_KV_TYPES = ("q8_0", "q4_0")
CONTEXT_STEP = 256
LEAST_CONTEXT = 1024

Measure = Callable[[int, str], Footprint]
"""Footprint for so many context tokens and a KV type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What there is: VRAM for the model, None to run it in RAM; and RAM."""

    vram_bytes: int | None
    ram_bytes: int

    @property
    def ram_to_use_bytes(self) -> int:
        """RAM without what the process itself and others need."""
        return max(0, self.ram_bytes - PROCESS_BYTES - reserve_bytes(Memory(self.ram_bytes, 0)))

    @property
    def live_bytes(self) -> int:
        """Room for weights, live KV and compute buffers."""
        return self.ram_to_use_bytes if self.vram_bytes is None else self.vram_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """How many conversations of ``tokens`` are kept."""

    tokens: int
    saved_bytes: int
    """Of each, when it shares nothing with another."""
    in_host: int
    resident: int
    """How many the live KV cache holds at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The whole account; ``changes`` is empty when everything fits."""

    model: str
    kv_type: str
    parallel: int
    footprint: Footprint
    room: Room
    cache_bytes: int
    """What is left for --cache-ram."""
    conversations: tuple[Conversations, ...]
    changes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return not self.changes

    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "kv_type": self.kv_type,
            "parallel": self.parallel,
            **asdict(self.footprint),
            "live_bytes": self.footprint.live_bytes,
            **asdict(self.room),
            "cache_bytes": self.cache_bytes,
            "conversations": [asdict(entry) for entry in self.conversations],
            "fits": self.fits,
            "changes": list(self.changes),
        }


def fit(model: str, *, context_tokens: int, kv_type: str, parallel: int, room: Room, measure: Measure) -> Fit:
    """What ``model`` takes of ``room``, and what is left for conversations."""
    footprint = measure(context_tokens, kv_type)
    cache_bytes = _cache_bytes(footprint, room)
    entries = tuple(_conversations(footprint, cache_bytes))
    changes = tuple(_changes(footprint, kv_type, room, measure))
    return Fit(
        model=model,
        kv_type=kv_type,
        parallel=parallel,
        footprint=footprint,
        room=room,
        cache_bytes=cache_bytes,
        conversations=entries,
        changes=changes,
    )


def saved_bytes(footprint: Footprint, tokens: int) -> int:
    """What the host tier takes for a conversation of ``tokens``."""
    return tokens * footprint.row_bytes + STATES_PER_CONVERSATION * footprint.state_bytes


def _cache_bytes(footprint: Footprint, room: Room) -> int:
    live_in_ram = footprint.live_bytes if room.vram_bytes is None else 0
    return max(0, room.ram_to_use_bytes - live_in_ram)


def _conversations(footprint: Footprint, cache_bytes: int) -> Iterator[Conversations]:
    lengths = {length for length in LENGTHS if length < footprint.context_tokens} | {footprint.context_tokens}
    for tokens in sorted(lengths):
        each = saved_bytes(footprint, tokens)
        yield Conversations(
            tokens=tokens,
            saved_bytes=each,
            in_host=cache_bytes // each,
            resident=footprint.context_tokens // tokens,
        )


def _changes(footprint: Footprint, kv_type: str, room: Room, measure: Measure) -> Iterator[str]:
    """What to do about what does not fit, the gentlest first."""
    over = footprint.live_bytes - room.live_bytes
    if over > 0:
        where = "RAM" if room.vram_bytes is None else "VRAM"
        yield (
            f"{where}: {format_size(footprint.live_bytes)} for weights, live KV and compute buffers "
            f"are {format_size(over)} more than there is room for"
        )
        yield from _smaller_live(footprint, kv_type, room, measure)
        return
    whole = saved_bytes(footprint, footprint.context_tokens)
    missing = whole - _cache_bytes(footprint, room)
    if missing > 0:
        yield (
            f"RAM: a conversation of {footprint.context_tokens} tokens takes {format_size(whole)} of --cache-ram; "
            f"give {format_size(missing)} more, or take a smaller --kv-type or --ctx"
        )


def _smaller_live(footprint: Footprint, kv_type: str, room: Room, measure: Measure) -> Iterator[str]:
    for smaller in SMALLER_KV_TYPES:
        try:
            changed = measure(footprint.context_tokens, smaller)
        except ConfigError:  # the model's heads cannot be packed like that
            continue
        if changed.live_bytes <= room.live_bytes:
            yield f"--kv-type {smaller} takes {format_size(changed.live_bytes)} and fits"
            break
    largest = _largest_context(footprint, kv_type, room, measure)
    if largest is not None:
        yield f"--ctx {largest} is the largest context that fits with --kv-type {kv_type}"
    layers = 0 if room.vram_bytes is None else _layers_that_fit(footprint, room)
    if layers > 0:
        yield f"--gpu-layers {layers} leaves {footprint.layers + 1 - layers} of {footprint.layers + 1} layers in RAM"
    if largest is None and layers <= 0:
        yield "the weights alone do not fit: take a smaller model, or one of a smaller quantisation"


def _largest_context(footprint: Footprint, kv_type: str, room: Room, measure: Measure) -> int | None:
    """The largest context that fits, to a few steps; None when not even a small one does.

    What a context takes grows in a straight line, but for steps and windows: the line through two
    measured points is followed, and what it says is measured too.
    """
    if footprint.context_tokens <= LEAST_CONTEXT:
        return None
    high = footprint
    low = measure(LEAST_CONTEXT, kv_type)
    if low.live_bytes > room.live_bytes:
        return None
    for _ in range(4):
        slope = (high.live_bytes - low.live_bytes) / max(1, high.context_tokens - low.context_tokens)
        more = int((room.live_bytes - low.live_bytes) / max(slope, 1e-9))
        tokens = (low.context_tokens + more) // CONTEXT_STEP * CONTEXT_STEP
        if not low.context_tokens < tokens < high.context_tokens:
            break
        found = measure(tokens, kv_type)
        if found.live_bytes <= room.live_bytes:
            low = found
        else:
            high = found
    return low.context_tokens


def _layers_that_fit(footprint: Footprint, room: Room) -> int:
    """Layers in VRAM, the output layer counted as one, with their share of the KV cache."""
    per_layer = footprint.weights_bytes / (footprint.layers + 1) + footprint.kv_bytes / max(footprint.layers, 1)
    return min(int((room.live_bytes - footprint.compute_bytes) // max(per_layer, 1)), footprint.layers)
