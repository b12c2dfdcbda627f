"""The sampling fields of a request, as llama-server and OpenAI name them, to SamplingParams."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from anchorline.api.decode import json_type
from anchorline.api.ranges import Numeric, check_range, check_whole
from anchorline.errors import RequestError
from anchorline.limits import Limits
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
_LOOKING_BACK = ("repeat_last_n", "dry_penalty_last_n")


def sampling_params(
    body: SamplingFields, *, tokenizer: Tokenizer, limits: Limits, context_tokens: int
) -> SamplingParams:
    """Check every sampling field of ``body``. Raises RequestError naming the field and its range."""
    given: dict[str, Any] = {}
    for name in _PLAIN_NUMBERS:
        given[name] = check_range(name, getattr(body, name))
    given["mirostat"] = check_whole("mirostat", body.mirostat)
    # llama.cpp sizes buffers and loops by these, so none stays larger than it can have an effect.
    for name in _LOOKING_BACK:
        last = check_whole(name, getattr(body, name))
        if last is not None:  # -1 means the whole context
            given[name] = context_tokens if last == -1 else min(last, context_tokens)
    allowed_length = check_whole("dry_allowed_length", body.dry_allowed_length)
    given["dry_allowed_length"] = None if allowed_length is None else min(allowed_length, context_tokens)
    top_k = check_whole("top_k", body.top_k)
    given["top_k"] = None if top_k is None else min(max(top_k, 0), tokenizer.vocab_size)  # -1 and 0: all tokens
    given["seed"] = _seed(check_whole("seed", body.seed))
    given["dry_sequence_breakers"] = _breakers(body.dry_sequence_breakers, limits=limits)
    given["logit_bias"] = _logit_bias(body.logit_bias, tokenizer=tokenizer, limits=limits)
    given["ignore_eos"] = body.ignore_eos
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def check_strings(field: str, values: list[str], *, limits: Limits) -> tuple[str, ...]:
    """Bound the number and the length of stop strings, none of them empty."""
    return _bounded_strings(
        field,
        values,
        most=(limits.stop_strings, "--max-stop-strings"),
        longest_bytes=(limits.stop_bytes, "--max-stop-bytes"),
    )


def _bounded_strings(
    field: str, values: list[str], *, most: tuple[int, str], longest_bytes: tuple[int, str]
) -> tuple[str, ...]:
    """Bounds are given with the flags that set them."""
    limit, flag = most
    if len(values) > limit:
        raise RequestError(f"{field} has {len(values)} entries; at most {limit} are allowed ({flag})", field=field)
    for index, value in enumerate(values):
        check_string(f"{field}[{index}]", value, longest_bytes=longest_bytes)
    return tuple(values)


def check_string(where: str, value: str, *, longest_bytes: tuple[int, str]) -> None:
    """Refuse an empty string and one that is too long. Raises RequestError naming ``where`` and the flag."""
    limit, flag = longest_bytes
    if not value:
        raise RequestError(f"{where} must not be empty", field=where)
    size = len(value.encode())
    if size > limit:
        raise RequestError(f"{where} is {size} bytes long; at most {limit} are allowed ({flag})", field=where)


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
    return _bounded_strings(
        "dry_sequence_breakers",
        list(dict.fromkeys(values)),
        most=(limits.dry_breakers, "--max-dry-breakers"),
        longest_bytes=(limits.dry_breaker_bytes, "--max-dry-breaker-bytes"),
    )


def _logit_bias(
    given: dict[str, Any] | list[Any] | None, *, tokenizer: Tokenizer, limits: Limits
) -> tuple[tuple[int, float], ...] | None:
    """OpenAI's map of token id to bias, or llama-server's list of [id or text, bias or false]."""
    if not given:
        return None
    _check_bias_count(len(given), "entries", limits=limits)
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
            check_string(where, target, longest_bytes=(limits.stop_bytes, "--max-stop-bytes"))
            pairs.extend((int(token), value) for token in tokenizer.tokenize(target))
            _check_bias_count(len(pairs), "tokens", limits=limits)
        else:
            pairs.append((_token_id(target, where=where, vocab_size=tokenizer.vocab_size), value))
    return tuple(pairs)


def _check_bias_count(count: int, what: str, *, limits: Limits) -> None:
    if count > limits.logit_bias:
        raise RequestError(
            f"logit_bias has {count} {what}; at most {limits.logit_bias} are allowed (--max-logit-bias)",
            field="logit_bias",
        )


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
