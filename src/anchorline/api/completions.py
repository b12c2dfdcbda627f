"""``POST /v1/completions``: the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anchorline.api.decode import decode_body, json_type
from anchorline.api.options import ApiContext, CallOptions, CompletionFields, call_options, check_cache_salt
from anchorline.api.ranges import Numeric, Range, check_whole
from anchorline.api.structured import answer_of
from anchorline.constraint.spec import ConstraintSpec
from anchorline.errors import RequestError


class CompletionBody(CompletionFields, kw_only=True):
    """The body as sent."""

    prompt: str | list[Any]
    echo: bool | None = None
    suffix: str | None = None
    best_of: Numeric = None
    logprobs: Numeric = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCall:
    """A checked text-completion request; exactly one of ``text`` and ``tokens`` is set."""

    text: str | None
    tokens: tuple[int, ...] | None
    options: CallOptions
    constraint: ConstraintSpec | None = None
    cache_salt: str | None = None


def parse_completion(raw: bytes, *, context: ApiContext) -> CompletionCall:
    """Decode and check a text-completion body. Raises RequestError naming the field.

    Without ``max_tokens`` the reply ends where the model ends it, as in llama-server.
    """
    body = decode_body(raw, CompletionBody)
    if body.echo:
        raise RequestError("echo is not supported", field="echo", code="unsupported_value")
    if body.suffix:
        raise RequestError("suffix is not supported", field="suffix", code="unsupported_value")
    most = context.limits.logprobs
    logprobs = check_whole(
        "logprobs", body.logprobs, allowed=Range(low=0, high=most, whole=True, flag="--max-logprobs")
    )
    options = call_options(body, context=context, logprobs=logprobs)
    best_of = check_whole("best_of", body.best_of, allowed=Range(low=1, high=2**31 - 1, whole=True))
    if best_of is not None and best_of != options.choices:
        raise RequestError(
            f"best_of must equal n ({options.choices}); choosing the best of more is not supported",
            field="best_of",
            code="unsupported_value",
        )
    text, tokens = _prompt(body.prompt)
    answer = answer_of(body)
    constraint = None if answer is None else ConstraintSpec(answer=answer)
    cache_salt = check_cache_salt(body.cache_salt, limits=context.limits)
    return CompletionCall(text=text, tokens=tokens, options=options, constraint=constraint, cache_salt=cache_salt)


def _prompt(prompt: str | list[Any]) -> tuple[str | None, tuple[int, ...] | None]:
    """One prompt as text or ids; a list of one prompt stands for that prompt."""
    where = "prompt"
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise RequestError(
                f"prompt holds {len(prompt)} prompts; send one per request", field="prompt", code="unsupported_value"
            )
        prompt, where = prompt[0], "prompt[0]"
    if isinstance(prompt, str):
        return prompt, None
    if not prompt:
        raise RequestError(f"{where} must not be empty", field=where)
    return None, check_token_ids(prompt, where=where)


def check_token_ids(values: list[Any], *, where: str) -> tuple[int, ...]:
    """``values`` as ids; whether they lie in the vocabulary is checked where they are used."""
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int):
            field = f"{where}[{index}]"
            raise RequestError(f"{field} must be a token id, not {json_type(value)}", field=field, code="invalid_type")
    return tuple(values)
