"""Every rule on request fields: the field it names and what it says is allowed."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from anchorline.api.ranges import RANGES
from anchorline.errors import RequestError
from anchorline.limits import Limits
from tests.api.support import CONTEXT, MESSAGES, chat, completion

WHOLE = [name for name, allowed in RANGES.items() if allowed.whole]
TOOL = {"type": "function", "function": {"name": "look"}}


def refused(parse: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    return caught.value


@pytest.mark.parametrize("parse", [chat, completion])
@pytest.mark.parametrize("name", RANGES)
def test_numbers_stay_in_their_range(name: str, parse: Any) -> None:
    allowed = RANGES[name]
    for value in (allowed.low, allowed.high):
        parse(**{name: value})
    step = 1 if allowed.whole else 0.001
    for value in (allowed.low - step, allowed.high + max(step, allowed.high)):
        error = refused(parse, **{name: value})
        assert error.field == name
        assert str(allowed) in str(error)


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", ["1", True, [1], {"a": 1}])
def test_numbers_are_numbers(name: str, value: object) -> None:
    error = refused(chat, **{name: value})
    assert error.field == name
    assert error.code == "invalid_type"
    assert str(RANGES[name]) in str(error)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_may_be_written_as_floats_but_not_broken(name: str) -> None:
    chat(**{name: 1.0})
    assert refused(chat, **{name: 1.5}).field == name


@pytest.mark.parametrize("name", RANGES)
def test_null_is_the_default(name: str) -> None:
    assert chat(**{name: None}).options == chat().options


@pytest.mark.parametrize("name", ["temperature", "top_p", "max_tokens", "seed"])
@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_no_field_is_ever_infinite(name: str, literal: str) -> None:
    value = math.nan if literal == "NaN" else float(literal)
    assert refused(chat, **{name: value}).code == "invalid_json"  # json.dumps writes what JSON does not have


CASES: list[tuple[Any, dict[str, Any], str | None, str]] = [
    (chat, {"messages": []}, "messages", "at least one"),
    (chat, {"messages": MESSAGES * 4}, "messages", "--max-messages"),
    (chat, {"messages": "hi"}, "messages", "an array"),
    (chat, {"messages": [*MESSAGES, "hi"]}, "messages[1]", "an object"),
    (chat, {"tools": [TOOL] * 3}, "tools", "--max-tools"),
    (chat, {"tools": [TOOL, 3]}, "tools[1]", "an object"),
    (chat, {"tools": [{"type": "web_search"}]}, "tools[0].type", '"function"'),
    (chat, {"tools": [{"type": "function"}]}, "tools[0].function", "an object"),
    (chat, {"tools": [{"function": {"name": 3}}]}, "tools[0].function.name", "a string"),
    (chat, {"tools": [{"function": {"name": ""}}]}, "tools[0].function.name", "not empty"),
    (chat, {"tool_choice": "always"}, "tool_choice", "none, auto, required"),
    (chat, {"tool_choice": 3}, "tool_choice", "a string"),
    (chat, {"tool_choice": {"type": "function"}}, "tool_choice.function.name", "a string"),
    (
        chat,
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice.function.name",
        "among",
    ),
    (chat, {"functions": [{"name": "look"}]}, "functions", "tools"),
    (chat, {"logprobs": 1}, "logprobs", "a boolean"),
    (chat, {"top_logprobs": 1}, "top_logprobs", "logprobs to be true"),
    (chat, {"logprobs": True, "top_logprobs": 6}, "top_logprobs", "between 0 and 5 (--max-logprobs)"),
    (chat, {"logprobs": True, "top_logprobs": -1}, "top_logprobs", "between 0 and 5 (--max-logprobs)"),
    (chat, {"chat_template_kwargs": 3}, "chat_template_kwargs", "an object"),
    (chat, {"n": 0}, "n", "between 1 and 3 (--max-choices)"),
    (chat, {"n": 4}, "n", "between 1 and 3 (--max-choices)"),
    (chat, {"n": "2"}, "n", "an integer"),
    (chat, {"max_tokens": 0}, "max_tokens", "at least 1"),
    (chat, {"max_completion_tokens": 0, "max_tokens": 3}, "max_completion_tokens", "at least 1"),
    (chat, {"stop": ["a", "b", "c"]}, "stop", "--max-stop-strings"),
    (chat, {"stop": ["a", ""]}, "stop[1]", "empty"),
    (chat, {"stop": "abcde"}, "stop[0]", "--max-stop-bytes"),
    (chat, {"stop": "äää"}, "stop[0]", "6 bytes"),
    (chat, {"stop": 3}, "stop", "a string or an array"),
    (chat, {"stop": [3]}, "stop[0]", "a string"),
    (chat, {"stream": "yes"}, "stream", "a boolean"),
    (chat, {"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "a boolean"),
    (chat, {"cache_prompt": 1}, "cache_prompt", "a boolean"),
    (chat, {"return_tokens": "x"}, "return_tokens", "a boolean"),
    (chat, {"ignore_eos": 0}, "ignore_eos", "a boolean"),
    (chat, {"model": 3}, "model", "a string"),
    (chat, {"dry_sequence_breakers": []}, "dry_sequence_breakers", "at least one"),
    (chat, {"dry_sequence_breakers": ["a", "b", "c", "d"]}, "dry_sequence_breakers", "--max-dry-breakers"),
    (chat, {"dry_sequence_breakers": ["a", "äää"]}, "dry_sequence_breakers[1]", "--max-dry-breaker-bytes"),
    (chat, {"dry_sequence_breakers": [""]}, "dry_sequence_breakers[0]", "empty"),
    (chat, {"logit_bias": [["a", 1], ["bc", 1]]}, "logit_bias", "3 tokens; at most 2 are allowed (--max-logit-bias)"),
    (chat, {"logit_bias": [["abcde", 1]]}, "logit_bias[0]", "--max-stop-bytes"),
    (chat, {"logit_bias": {"1": 1, "2": 1, "3": 1}}, "logit_bias", "--max-logit-bias"),
    (chat, {"logit_bias": {"259": 1}}, "logit_bias.259", "between 0 and 258"),
    (chat, {"logit_bias": {"-1": 1}}, "logit_bias.-1", "between 0 and 258"),
    (chat, {"logit_bias": {"x": 1}}, "logit_bias.x", "between 0 and 258"),
    (chat, {"logit_bias": {"1": 101}}, "logit_bias.1", "between -100 and 100"),
    (chat, {"logit_bias": {"1": "x"}}, "logit_bias.1", "a number"),
    (chat, {"logit_bias": {"1": False}}, "logit_bias.1", "a number"),
    (chat, {"logit_bias": [[1]]}, "logit_bias[0]", "a pair"),
    (chat, {"logit_bias": [[1.5, 1]]}, "logit_bias[0]", "between 0 and 258"),
    (chat, {"logit_bias": [[1, True]]}, "logit_bias[0]", "a number"),
    (chat, {"logit_bias": 5}, "logit_bias", "an object or an array"),
    (completion, {"prompt": None}, "prompt", "a string"),
    (completion, {"prompt": 3}, "prompt", "a string or an array"),
    (completion, {"prompt": []}, "prompt", "empty"),
    (completion, {"prompt": [[]]}, "prompt[0]", "empty"),
    (completion, {"prompt": ["a", "b"]}, "prompt", "one per request"),
    (completion, {"prompt": [1, "a"]}, "prompt[1]", "a token id"),
    (completion, {"prompt": [[1, True]]}, "prompt[0][1]", "a token id"),
    (completion, {"prompt": [{"a": 1}]}, "prompt[0]", "a token id"),
    (completion, {"echo": True}, "echo", "not supported"),
    (completion, {"suffix": "x"}, "suffix", "not supported"),
    (completion, {"best_of": 2}, "best_of", "equal n"),
    (completion, {"best_of": "x"}, "best_of", "an integer"),
    (completion, {"logprobs": 6}, "logprobs", "between 0 and 5"),
    (completion, {"logprobs": True}, "logprobs", "an integer"),
]


@pytest.mark.parametrize(("parse", "fields", "field", "says"), CASES)
def test_a_rule_names_its_field_and_what_is_allowed(
    parse: Any, fields: dict[str, Any], field: str | None, says: str
) -> None:
    error = refused(parse, **fields)
    assert error.field == field
    assert says in str(error)


def test_n_names_the_flag_that_limits_it() -> None:
    few_streams = type(CONTEXT)(tokenizer=CONTEXT.tokenizer, limits=Limits(), context_tokens=1000, parallel=2)
    error = refused(functools.partial(chat, few_streams), n=3)
    assert "between 1 and 2 (--parallel)" in str(error)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "reasoning_effort": "medium", "parallel_tool_calls": True, "service_tier": "auto"},
        {"metadata": {"a": 1}, "user": "me", "prompt_cache_key": "k", "client_metadata": [1]},
        {"response_format": {"type": "text"}, "functions": [], "tools": [], "stop": [], "logit_bias": {}},
        {"tool_choice": "required", "tools": [TOOL], "modalities": ["text"], "safety_identifier": 3},
        {"tool_choice": {"type": "function", "function": {"name": "look"}}, "tools": [TOOL]},
        {"stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"grammar": "", "n_keep": 3, "id_slot": -1, "samplers": ["top_k"]},
    ],
)
def test_what_agents_send_is_accepted(fields: dict[str, Any]) -> None:
    chat(**fields)
