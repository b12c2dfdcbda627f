"""What chat and text completions have in common besides the prompt."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from anchorline.api.ranges import Numeric, Range, check_whole
from anchorline.api.sampling import check_string, check_strings, sampling_params
from anchorline.api.structured import ConstraintFields
from anchorline.errors import PromptTooLong, RequestError
from anchorline.limits import Limits
from anchorline.llama.interface import SamplingParams, Tokenizer


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class CompletionFields(ConstraintFields, kw_only=True):
    """Fields of both completion endpoints. Unknown fields are ignored, as OpenAI clients expect."""

    model: str | None = None
    max_tokens: Numeric = None
    max_completion_tokens: Numeric = None
    n_predict: Numeric = None
    n: Numeric = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_prompt: bool | None = None
    cache_salt: str | None = None
    return_tokens: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """What a request is checked against."""

    tokenizer: Tokenizer
    limits: Limits
    context_tokens: int
    parallel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """How to continue a prompt, and how to write the reply."""

    sampling: SamplingParams
    max_tokens: int | None
    """None generates until the model stops or the context is full."""
    choices: int
    stop: tuple[str, ...]
    logprobs: int | None
    """Alternatives to report per token; None reports no log-probabilities."""
    use_cache: bool
    stream: bool
    include_usage: bool
    return_tokens: bool


def check_cache_salt(salt: str | None, *, limits: Limits) -> str | None:
    """vLLM's ``cache_salt``: only calls with the same one share what is cached. Raises RequestError."""
    if salt is not None:
        check_string("cache_salt", salt, longest_bytes=(limits.cache_salt_bytes, "--max-cache-salt-bytes"))
    return salt


def call_options(body: CompletionFields, *, context: ApiContext, logprobs: int | None) -> CallOptions:
    """Check the fields that both endpoints share. Raises RequestError naming the field."""
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    options = body.stream_options
    return CallOptions(
        sampling=sampling_params(
            body, tokenizer=context.tokenizer, limits=context.limits, context_tokens=context.context_tokens
        ),
        max_tokens=_max_tokens(body),
        choices=_choices(body.n, context=context),
        stop=check_strings("stop", stop, limits=context.limits),
        logprobs=logprobs,
        use_cache=body.cache_prompt is not False,
        stream=body.stream is True,
        include_usage=options is not None and options.include_usage is True,
        return_tokens=body.return_tokens is True,
    )


def clamp_max_tokens(max_tokens: int | None, *, prompt_tokens: int, context_tokens: int, field: str) -> int:
    """The tokens to generate at most, ≥ 1. Raises PromptTooLong when the context leaves none."""
    room = context_tokens - prompt_tokens
    if room < 1:
        raise PromptTooLong(prompt_tokens=prompt_tokens, context_tokens=context_tokens, field=field)
    return room if max_tokens is None else min(max_tokens, room)


def _max_tokens(body: CompletionFields) -> int | None:
    """OpenAI's newer name wins over the older, both over llama-server's; each is checked when given."""
    chosen: int | None = None
    for name in ("n_predict", "max_tokens", "max_completion_tokens"):
        value = check_whole(name, getattr(body, name))
        if value == 0:
            raise RequestError(f"{name} must be an integer of at least 1, or -1 for no limit, not 0", field=name)
        if value is not None:
            chosen = value
    return None if chosen == -1 else chosen


def _choices(n: Numeric, *, context: ApiContext) -> int:
    most = min(context.parallel, context.limits.choices)
    flag = "--parallel" if context.parallel <= context.limits.choices else "--max-choices"
    value = check_whole("n", n, allowed=Range(low=1, high=most, whole=True, flag=flag))
    return 1 if value is None else value
