"""What the engine asks of a runtime, in types that know nothing about llama.cpp.

Two implementations exist: ``llama.runtime.LlamaRuntime`` and the fake of the tests, whose cells
hold a running hash of the prefix so that a wrong restore shows in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.int32]
"""Token ids, shape (n,), int32, C-contiguous; treated as read-only once shared."""


class MemoryKind(StrEnum):
    """How a model's memory behaves; decides where a sequence may be trimmed and resumed."""

    PLAIN = "plain"
    WINDOWED = "windowed"
    HYBRID = "hybrid"
    HYBRID_WINDOWED = "hybrid+windowed"
    RECURRENT = "recurrent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What may be done with sequences of the loaded model. Read and probed once, in ``llama.capabilities``.

    A *stateful* model (``has_state``) resumes only where a state was captured: its sequences are
    never trimmed, are forked only at their tip, and are restored as rows plus one state.
    """

    kind: MemoryKind
    has_rows: bool
    """Tokens leave rows of their own; False for purely recurrent models."""
    has_state: bool
    """Resuming needs a state besides the rows; False for plain attention."""
    state_bytes: int
    """Exported size of a state, at most (a window may not be full yet); 0 without states."""

    @property
    def can_trim(self) -> bool:
        """Whether the tail of a live sequence may be dropped and any position resumed."""
        return not self.has_state


class DecodeStatus(StrEnum):
    """What became of one ``decode`` call."""

    OK = "ok"
    NO_CELLS = "no_cells"
    """The pool has no room for the batch; nothing changed. Free cells and try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLimits:
    """Sizes that are fixed once the context exists."""

    context_tokens: int
    """Cells in the pool, shared by all sequences (n_ctx under unified KV)."""
    batch_tokens: int
    """Most tokens in one ``decode`` (n_batch)."""
    ubatch_tokens: int
    sequences: int
    """Sequence ids usable by the engine: 0 … sequences-1. The scratch id lies outside."""
    vocab_size: int
    bytes_per_token: float
    """Exported bytes of one cell, rows of all layers (for estimates; exports give the true size)."""
    fork_bytes: int = 0
    """Host RAM that a fork copies a window through, at most; 0 where forks share all cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen; names, defaults and order of the chain as in llama-server.

    Values are validated by ``api``; a runtime may assume them to be in range.
    ``temperature`` 0 means greedy. ``seed`` None means a fresh random seed per request.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    """Adds a bias of -inf to every end-of-generation token."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One candidate with its natural-log probability under the unmodified model distribution."""

    token: int
    logprob: float


class TokenMask(Protocol):
    """What may come next in one choice whose text is constrained. Keeps state; for the engine thread alone."""

    def allowed(self) -> TokenArray:
        """Ascending ids, at least one, of which the next token has to be one; never changed afterwards.

        End-of-generation ids are among them once the text may end, and alone when nothing else can follow.
        Raises ConstraintFailure.
        """
        ...

    def accept(self, token: int) -> None:
        """Go on behind ``token``. Raises ConstraintFailure when it was not allowed."""
        ...


class TokenConstraint(Protocol):
    """A constraint ready for use, shared by all choices and calls that ask for it. Thread-safe."""

    def start(self) -> TokenMask:
        """A mask of its own for one choice, at the beginning of its reply."""
        ...


class Sampler(Protocol):
    """One sequence's sampler chain with its own random state and penalty history."""

    def sample(self, output_index: int) -> int:
        """Choose from the logits at ``output_index`` of the last ``decode``, which it leaves as they are.

        Accepts the token. Raises ConstraintFailure when a mask cannot tell what may come.
        """
        ...

    def accept(self, token: int) -> None:
        """Take note of a token that was chosen elsewhere, as if it had been sampled.

        Raises ConstraintFailure when a mask does not allow it.
        """
        ...

    def close(self) -> None:
        """Free the chain. Idempotent."""
        ...


class Batch(Protocol):
    """The one batch a runtime decodes, filled through numpy views; reused for every step."""

    def clear(self) -> None: ...

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        ...

    @property
    def size(self) -> int:
        """Tokens added since ``clear``."""
        ...

    def add(self, tokens: TokenArray, *, start: int, sequence: int, output: bool) -> int:
        """Append ``tokens`` at positions start, start+1, … of ``sequence``.

        With ``output`` the last of them yields logits. Returns the batch index of the last
        token, which is what ``Sampler.sample`` and ``Runtime.logprobs`` take.
        """
        ...


class Runtime(Protocol):
    """One loaded model with one live KV pool. Owned by the engine thread; not thread-safe."""

    @property
    def limits(self) -> RuntimeLimits: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def keep_whole_sequences(self) -> None:
        """From now on export whole sequences as states, which any memory allows; changes ``capabilities``.

        For when the finer way of segments did not pass the self-test. The pool must be empty.
        """
        ...

    @property
    def batch(self) -> Batch: ...

    def is_end_of_generation(self, token: int) -> bool: ...

    def decode(self) -> DecodeStatus:
        """Run the batch. Raises BackendFailure when llama.cpp fails; its sequences are then lost."""
        ...

    def prepare_sampler(self, params: SamplingParams) -> None:
        """Do ahead what takes long in ``sampler``; the one method that any thread may call at any time."""
        ...

    def sampler(self, params: SamplingParams, history: TokenArray, mask: TokenMask | None = None) -> Sampler:
        """Build a chain; ``history`` (the prompt) feeds the penalties that look back.

        With ``mask`` the chain chooses among the tokens that the mask allows; the sampler then owns it.
        """
        ...

    def logprobs(self, output_index: int, token: int, top: int) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
        """The chosen token's log-probability and the ``top`` most likely, most likely first."""
        ...

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None:
        """Let ``target`` share the cells [start, end) of ``source``; copies no rows."""
        ...

    def remove(self, sequence: int, start: int, end: int | None = None) -> None:
        """Drop the cells [start, end) of ``sequence``; ``end`` None means to its tip."""
        ...

    def length(self, sequence: int) -> int:
        """Tokens held by ``sequence``: 0 when empty. Raises BackendFailure if positions have holes."""
        ...

    def export_rows(
        self, sequence: int, start: int, end: int, allocate: Callable[[int], memoryview | None]
    ) -> memoryview | None:
        """Export the rows of [start, end) as a thin segment.

        ``allocate(nbytes)`` gives a writable buffer of exactly that size, or None, which ends the
        export and is returned. The live sequence is unchanged. On a stateful model the state is left
        out; without rows (recurrent) nothing is allocated and an empty view returned. Raises BackendFailure.
        """
        ...

    def import_rows(self, sequence: int, rows: memoryview, start: int, end: int) -> bool:
        """Append a span of an exported segment to ``sequence``, whose tip must be ``start``.

        ``rows`` may hold more than [start, end); only that range is kept. False when llama.cpp
        refused the bytes or had no room: ``sequence`` then still ends at ``start``.

        On a stateful model the spans of a chain are imported one after another into an empty
        sequence and ``import_state`` completes them; until then the sequence must not be decoded,
        and after a False it must be emptied. Without rows (recurrent) this is a no-op.
        """
        ...

    def export_state(self, sequence: int, allocate: Callable[[int], memoryview | None]) -> memoryview | None:
        """Export the state at the tip of ``sequence``; stateful models only. As ``export_rows`` else."""
        ...

    def import_state(self, sequence: int, state: memoryview, position: int) -> bool:
        """Complete a chain of imported rows that ends at ``position`` with the state captured there.

        Checks that the sequence then holds exactly [0, position). False when it does not or the
        bytes were refused: the sequence must then be emptied.
        """
        ...

    def close(self) -> None:
        """Free context and model. Idempotent."""
        ...


class Tokenizer(Protocol):
    """Text ↔ token ids. Thread-safe: the vocabulary never changes."""

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Text → id of every control token (``<|im_start|>``, …); never produced from plain text."""
        ...

    @property
    def strips(self) -> Mapping[str, tuple[bool, bool]]:
        """Text of each token next to which white space is dropped → whether on its left, on its right."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos(self) -> int | None:
        """Beginning-of-sequence id, or None when the model has none."""
        ...

    @property
    def eos(self) -> int | None: ...

    @property
    def adds_bos(self) -> bool:
        """Whether a prompt starts with ``bos`` (tokenizer.ggml.add_bos_token)."""
        ...

    def tokenize(self, text: str) -> TokenArray:
        """Ids of plain text; control tokens in it stay text. No BOS or EOS is added."""
        ...

    def piece(self, token: int) -> bytes:
        """Bytes of one token as shown to a user; control tokens give b''."""
        ...

    def special_piece(self, token: int) -> bytes:
        """Bytes of one token, control tokens spelled out (for /detokenize and templates)."""
        ...

    def detokenize(self, tokens: Sequence[int] | TokenArray) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What is known of the loaded model; shown in /props, /v1/models and the start-up banner."""

    name: str
    """Name under which the model is served (file stem, ``smollm2``, ``test:llama``)."""
    description: str
    architecture: str
    parameters: int
    size_bytes: int
    train_context_tokens: int
    vocab_size: int
    embedding_length: int
    chat_template: str | None
    """Jinja source from the file's metadata, or None."""
    named_templates: Mapping[str, str]
    """Other templates in the file by name, such as ``tool_use``."""
    metadata: Mapping[str, str]
    build: str
    """llama.cpp build (llama_print_system_info and package version)."""
