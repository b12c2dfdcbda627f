"""The sampling fields of a request, as llama-server and OpenAI name them, to SamplingParams."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from anchorline.api.decode import json_type
from anchorline.api.ranges import Numeric, check_range, check_whole
from anchorline.config import Limits
from anchorline.errors import RequestError
from anchorline.llama.interface import SamplingParams, Tokenizer

_RANDOM_SEED = 2**32 - 1
"""llama.cpp takes this seed to mean "random"; a client's seed never maps to it."""


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields shared by chat and text completions. None (or null) takes the default."""

    temperature: Numeric = None
    top_k: Numeric = None
    top_p: Numeric = None
    min_p: Numeric = None
    typical_p: Numeric = None
    top_n_sigma: Numeric = None
    repeat_penalty: Numeric = None
    repeat_last_n: Numeric = None
    presence_penalty: Numeric = None
    frequency_penalty: Numeric = None
    dry_multiplier: Numeric = None
    dry_base: Numeric = None
    dry_allowed_length: Numeric = None
    dry_penalty_last_n: Numeric = None
    dry_sequence_breakers: list[str] | None = None
    xtc_probability: Numeric = None
    xtc_threshold: Numeric = None
    mirostat: Numeric = None
    mirostat_tau: Numeric = None
    mirostat_eta: Numeric = None
    seed: Numeric = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    ignore_eos: bool | None = None


_PLAIN_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "xtc_probability",
    "xtc_threshold",
    "mirostat_tau",
    "mirostat_eta",
)
_PLAIN_INTEGERS = ("dry_allowed_length", "dry_penalty_last_n", "mirostat")


def sampling_params(
    body: SamplingFields, *, tokenizer: Tokenizer, limits: Limits, context_tokens: int
) -> SamplingParams:
    """Check every sampling field of ``body``. Raises RequestError naming the field and its range."""
    given: dict[str, Any] = {}
    for name in _PLAIN_NUMBERS:
        given[name] = check_range(name, getattr(body, name))
    for name in _PLAIN_INTEGERS:
        given[name] = check_whole(name, getattr(body, name))
    top_k = check_whole("top_k", body.top_k)
    given["top_k"] = 0 if top_k == -1 else top_k  # both mean "all tokens"
    last = check_whole("repeat_last_n", body.repeat_last_n)
    if last is not None:  # -1 means the whole context; llama.cpp allocates this many entries
        given["repeat_last_n"] = context_tokens if last == -1 else min(last, context_tokens)
    given["seed"] = _seed(check_whole("seed", body.seed))
    given["dry_sequence_breakers"] = _breakers(body.dry_sequence_breakers, limits=limits)
    given["logit_bias"] = _logit_bias(body.logit_bias, tokenizer=tokenizer, limits=limits)
    given["ignore_eos"] = body.ignore_eos
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def check_strings(field: str, values: list[str], *, limits: Limits) -> tuple[str, ...]:
    """Bound the number and the length of stop strings (and DRY breakers), none of them empty."""
    if len(values) > limits.stop_strings:
        raise RequestError(
            f"{field} has {len(values)} entries; at most {limits.stop_strings} are allowed (--max-stop-strings)",
            field=field,
        )
    for index, value in enumerate(values):
        where = f"{field}[{index}]"
        if not value:
            raise RequestError(f"{where} must not be empty", field=where)
        size = len(value.encode())
        if size > limits.stop_bytes:
            raise RequestError(
                f"{where} is {size} bytes long; at most {limits.stop_bytes} are allowed (--max-stop-bytes)", field=where
            )
    return tuple(values)


def _seed(seed: int | None) -> int | None:
    return None if seed is None or seed == -1 else seed % _RANDOM_SEED


def _breakers(values: list[str] | None, *, limits: Limits) -> tuple[str, ...] | None:
    if values is None:
        return None
    if not values:
        raise RequestError(
            "dry_sequence_breakers must hold at least one string; dry_multiplier 0 turns DRY off",
            field="dry_sequence_breakers",
        )
    return check_strings("dry_sequence_breakers", values, limits=limits)


def _logit_bias(
    given: dict[str, Any] | list[Any] | None, *, tokenizer: Tokenizer, limits: Limits
) -> tuple[tuple[int, float], ...] | None:
    """OpenAI's map of token id to bias, or llama-server's list of [id or text, bias or false]."""
    if not given:
        return None
    if len(given) > limits.logit_bias:
        raise RequestError(
            f"logit_bias has {len(given)} entries; at most {limits.logit_bias} are allowed (--max-logit-bias)",
            field="logit_bias",
        )
    pairs: list[tuple[int, float]] = []
    if isinstance(given, dict):
        for key, bias in given.items():
            where = f"logit_bias.{key[:40]}"
            pairs.append((_token_id(key, where=where, vocab_size=tokenizer.vocab_size), _bias(bias, where=where)))
        return tuple(pairs)
    for index, entry in enumerate(given):
        where = f"logit_bias[{index}]"
        if not isinstance(entry, list) or len(entry) != 2:
            raise RequestError(f"{where} must be a pair of token id or text, and bias or false", field=where)
        target, bias = entry
        value = -math.inf if bias is False else _bias(bias, where=where)
        if isinstance(target, str):
            pairs.extend((int(token), value) for token in tokenizer.tokenize(target[: limits.stop_bytes]))
        else:
            pairs.append((_token_id(target, where=where, vocab_size=tokenizer.vocab_size), value))
    return tuple(pairs)


def _token_id(value: object, *, where: str, vocab_size: int) -> int:
    token = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12 else value
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
        raise RequestError(f"{where}: the token must be an id between 0 and {vocab_size - 1}", field=where)
    return token


def _bias(value: object, *, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(
            f"{where} must be a number between -100 and 100, not {json_type(value)}", field=where, code="invalid_type"
        )
    if not -100 <= value <= 100:
        raise RequestError(f"{where} must be a number between -100 and 100", field=where)
    return float(value)
