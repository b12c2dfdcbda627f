"""Sampler chains, built in llama-server's order, and log-probabilities."""

from __future__ import annotations

import ctypes
import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorline.errors import BackendFailure, ConstraintFailure
from anchorline.llama.dry import DrySamplers
from anchorline.llama.interface import SamplingParams, TokenArray, TokenLogprob, TokenMask
from anchorline.llama.library import api

_MIN_KEEP = 0
_MIROSTAT_CANDIDATES = 100
_ARGMAX_ROUNDS = 64
_MAX_SEED = 0xFFFFFFFF
_NO_TOKENS: TokenArray = np.empty(0, np.int32)


class LlamaSampler:
    """Implements ``interface.Sampler`` over a llama_sampler chain, which it owns."""

    __slots__ = ("_chain", "_context", "_sample")

    def __init__(self, chain: Any, context: Any) -> None:
        self._chain = chain
        self._context = context
        self._sample = api.llama_sampler_sample

    def sample(self, output_index: int) -> int:
        assert self._chain is not None, "the sampler is closed"
        token: int = self._sample(self._chain, self._context, output_index)
        return token

    def accept(self, token: int) -> None:
        assert self._chain is not None, "the sampler is closed"
        api.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        if self._chain is not None:
            api.llama_sampler_free(self._chain)
            self._chain = None

    def __del__(self) -> None:
        self.close()


class Candidates:
    """A llama_token_data_array of its own, reused for every choice among few or many tokens."""

    _ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._entries = np.zeros(vocab_size, self._ENTRY)
        self._data = self._entries.ctypes.data_as(ctypes.POINTER(api.llama_token_data))
        self._array = api.llama_token_data_array(data=self._data, size=0, selected=-1, sorted=False)

    def choose(self, chain: Any, logits: npt.NDArray[np.float32], allowed: TokenArray) -> int:
        """What ``chain`` picks among ``allowed``. Neither reads nor changes the logits of other tokens."""
        array, entries = self._array, self._entries[: allowed.size]
        entries["id"] = allowed
        entries["logit"] = logits.take(allowed)
        # Samplers shorten the array from both ends, so all of it is set again.
        array.data, array.size, array.selected, array.sorted = self._data, allowed.size, -1, False
        api.llama_sampler_apply(chain, ctypes.byref(array))
        if not 0 <= array.selected < array.size:
            raise ConstraintFailure("the sampler chose none of the tokens that may come next")
        token: int = array.data[array.selected].id
        return token


class MaskedSampler(LlamaSampler):
    """A chain that gets to choose only among the tokens that a mask allows.

    Afterwards the context's logits are as they were: further choices and log-probabilities are read from them.
    """

    __slots__ = ("_allowed", "_candidates", "_denied", "_few", "_mask")

    def __init__(
        self, chain: Any, context: Any, *, mask: TokenMask, candidates: Candidates, takes_infinity: bool
    ) -> None:
        """``takes_infinity`` says that no part of ``chain`` goes wrong over logits of -inf."""
        super().__init__(chain, context)
        self._mask = mask
        self._candidates = candidates
        self._few = candidates.vocab_size // 4 if takes_infinity else candidates.vocab_size
        self._allowed: TokenArray = _NO_TOKENS
        self._denied: TokenArray = _NO_TOKENS
        """The tokens not in ``_allowed``."""

    def sample(self, output_index: int) -> int:
        assert self._chain is not None, "the sampler is closed"
        allowed = self._mask.allowed()
        if allowed.size > self._few:
            token = self._sample_most(output_index, allowed)
            self._mask.accept(token)
            return token
        if allowed.size == 1:
            token = int(allowed[0])
        else:
            logits = read_logits(self._context, output_index, self._candidates.vocab_size)
            token = self._candidates.choose(self._chain, logits, allowed)
        self.accept(token)
        return token

    def accept(self, token: int) -> None:
        self._mask.accept(token)
        super().accept(token)

    def _sample_most(self, output_index: int, allowed: TokenArray) -> int:
        """As ``Candidates.choose``, quicker where few are denied: their logits are -inf for as long as it takes."""
        if allowed is not self._allowed:
            others = np.ones(self._candidates.vocab_size, np.bool_)
            others[allowed] = False
            self._allowed, self._denied = allowed, np.flatnonzero(others).astype(np.int32)
        logits = read_logits(self._context, output_index, self._candidates.vocab_size)
        kept = logits.take(self._denied)
        logits[self._denied] = -np.inf
        try:
            return super().sample(output_index)
        finally:
            logits[self._denied] = kept


def build_chain(
    params: SamplingParams,
    history: TokenArray,
    *,
    vocab: Any,
    dry: DrySamplers,
    end_of_generation: Iterable[int],
    context_tokens: int,
) -> Any:
    """A chain for ``params`` whose penalties have seen ``history``; the caller owns it.

    logit_bias → penalties → DRY → top_n_sigma → top_k → typical → top_p → min_p → XTC →
    temperature → dist. Temperature 0 keeps only the first three and takes the likeliest token;
    mirostat takes the place of all but logit_bias and temperature, as in llama-server. Samplers
    without an effect are left out, and the history is fed in only when one of them looks back.
    """
    vocab_size = api.llama_vocab_n_tokens(vocab)
    params = bounded(params, context_tokens=context_tokens, vocab_size=vocab_size)
    seed = secrets.randbelow(_MAX_SEED) if params.seed is None else params.seed & _MAX_SEED
    chain_params = api.llama_sampler_chain_default_params()
    chain_params.no_perf = True
    chain = api.llama_sampler_chain_init(chain_params)
    for part in _bias(params, vocab, vocab_size, end_of_generation):
        api.llama_sampler_chain_add(chain, part)
    if params.mirostat == 0:
        looking_back, span = _looking_back(params, vocab_size, dry)
    else:
        looking_back, span = [], 0
    for part in looking_back:
        api.llama_sampler_chain_add(chain, part)
    for part in _choosing(params, vocab_size, seed):
        api.llama_sampler_chain_add(chain, part)
    accept = api.llama_sampler_accept
    for token in history[max(0, len(history) - span) :].tolist() if span else ():
        accept(chain, token)
    return chain


def prepare_chain(params: SamplingParams, *, dry: DrySamplers, vocab_size: int, context_tokens: int) -> None:
    """Do ahead what takes long in ``build_chain``. Thread-safe."""
    params = bounded(params, context_tokens=context_tokens, vocab_size=vocab_size)
    if _uses_dry(params):
        dry.prepare(params, span=params.dry_penalty_last_n)


def bounded(params: SamplingParams, *, context_tokens: int, vocab_size: int) -> SamplingParams:
    """``params`` with every count that sizes memory or a loop cut down to what can have an effect.

    llama.cpp allocates an entry for each token that penalties and DRY look back, whether or not
    there ever is such a token. -1 stands for the whole context.
    """

    def looking_back(tokens: int) -> int:
        return context_tokens if tokens < 0 else min(tokens, context_tokens)

    return replace(
        params,
        top_k=min(max(params.top_k, 0), vocab_size),
        repeat_last_n=looking_back(params.repeat_last_n),
        dry_penalty_last_n=looking_back(params.dry_penalty_last_n),
        dry_allowed_length=min(max(params.dry_allowed_length, 0), context_tokens),
    )


def log_probabilities(
    logits: npt.NDArray[np.float32], token: int, top: int
) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
    """Log-softmax of ``logits`` at ``token`` and at the ``top`` likeliest, most likely first."""
    peak = logits.max()
    normaliser = float(peak) + math.log(float(np.exp(logits - peak).sum(dtype=np.float64)))
    chosen = TokenLogprob(token, float(logits[token]) - normaliser)
    return chosen, tuple(TokenLogprob(best, float(logits[best]) - normaliser) for best in _largest(logits, top))


def _largest(logits: npt.NDArray[np.float32], top: int) -> list[int]:
    """Indices of the ``top`` largest, largest first, equal ones by index."""
    if top > _ARGMAX_ROUNDS:
        ordered: list[int] = np.argsort(-logits, kind="stable")[:top].tolist()
        return ordered
    # At 50,000 entries one argmax takes 4 µs and one argpartition 870 µs (measured).
    rest = logits.copy()
    found = []
    for _ in range(min(top, logits.size)):
        best = int(rest.argmax())
        if rest[best] == -np.inf:
            break
        found.append(best)
        rest[best] = -np.inf
    return found


def _bias(params: SamplingParams, vocab: Any, vocab_size: int, end_of_generation: Iterable[int]) -> Sequence[Any]:
    biases = list(params.logit_bias)
    if params.ignore_eos:
        biases += [(token, -math.inf) for token in end_of_generation]
    count = ctypes.c_int32(0)
    suppressed = api.llama_vocab_get_suppress_tokens(vocab, ctypes.byref(count))
    biases += [(suppressed[index], -math.inf) for index in range(count.value)]
    if not biases:
        return []
    array = (api.llama_logit_bias * len(biases))(*biases)
    return [api.llama_sampler_init_logit_bias(vocab_size, len(biases), array)]


def _looking_back(params: SamplingParams, vocab_size: int, dry: DrySamplers) -> tuple[Sequence[Any], int]:
    """Penalties and DRY where they have an effect, and how many tokens back they look."""
    parts: list[Any] = []
    span = 0
    weights = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
    if params.repeat_last_n > 0 and weights != (1.0, 0.0, 0.0):
        span = params.repeat_last_n
        parts.append(api.llama_sampler_init_penalties(vocab_size, span, *weights))
    if _uses_dry(params):
        parts.append(dry.make(params, span=params.dry_penalty_last_n))
        span = max(span, params.dry_penalty_last_n)
    return parts, span


def _uses_dry(params: SamplingParams) -> bool:
    """Whether DRY has an effect."""
    effective = params.dry_penalty_last_n > 0 and params.dry_multiplier != 0.0 and params.dry_base >= 1.0
    return params.mirostat == 0 and effective


def _choosing(params: SamplingParams, vocab_size: int, seed: int) -> Sequence[Any]:
    """The samplers that narrow the candidates and the one that picks."""
    if params.temperature <= 0:
        return [api.llama_sampler_init_greedy()]
    temperature = api.llama_sampler_init_temp(params.temperature)
    match params.mirostat:
        case 1:
            tau, eta = params.mirostat_tau, params.mirostat_eta
            return [
                temperature,
                api.llama_sampler_init_mirostat(vocab_size, seed, tau, eta, _MIROSTAT_CANDIDATES),
            ]
        case 2:
            return [temperature, api.llama_sampler_init_mirostat_v2(seed, params.mirostat_tau, params.mirostat_eta)]
    parts: list[Any] = []
    if params.top_n_sigma > 0:
        parts.append(api.llama_sampler_init_top_n_sigma(params.top_n_sigma))
    if params.top_k > 0:
        parts.append(api.llama_sampler_init_top_k(params.top_k))
    if params.typical_p < 1:
        parts.append(api.llama_sampler_init_typical(params.typical_p, _MIN_KEEP))
    if params.top_p < 1:
        parts.append(api.llama_sampler_init_top_p(params.top_p, _MIN_KEEP))
    if params.min_p > 0:
        parts.append(api.llama_sampler_init_min_p(params.min_p, _MIN_KEEP))
    if params.xtc_probability > 0:
        parts.append(api.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, _MIN_KEEP, seed))
    return [*parts, temperature, api.llama_sampler_init_dist(seed)]


def read_logits(context: Any, output_index: int, vocab_size: int) -> npt.NDArray[np.float32]:
    """A view of the raw logits of one output, valid until the next decode."""
    pointer = api.llama_get_logits_ith(context, output_index)
    if not pointer:
        raise BackendFailure(f"llama.cpp has no logits at batch index {output_index}")
    # np.ctypeslib.as_array does the same in 60 µs (measured).
    memory: Any = (ctypes.c_float * vocab_size).from_address(ctypes.addressof(pointer.contents))
    return np.frombuffer(memory, np.float32)
