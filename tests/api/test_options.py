"""What checked fields become."""

from __future__ import annotations

import math
from typing import Any, get_type_hints

import pytest

from anchorline.api.chat import parse_apply_template
from anchorline.api.options import clamp_max_tokens
from anchorline.api.ranges import RANGES
from anchorline.errors import PromptTooLong
from anchorline.llama.interface import SamplingParams
from tests.api.support import CONTEXT, LIMITS, MESSAGES, chat, completion


def test_nothing_given_takes_the_defaults() -> None:
    options = chat().options
    assert options.sampling == SamplingParams()
    assert options.max_tokens is None
    assert (options.choices, options.stop, options.logprobs) == (1, (), None)
    assert options.use_cache
    assert (options.stream, options.include_usage, options.return_tokens) == (False, False, False)


def test_every_sampling_field_arrives() -> None:
    given = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.6,
        "min_p": 0.1,
        "typical_p": 0.9,
        "top_n_sigma": 2.0,
        "repeat_penalty": 1.1,
        "repeat_last_n": 32,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "dry_multiplier": 0.8,
        "dry_base": 1.5,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ["\n", "!"],
        "xtc_probability": 0.1,
        "xtc_threshold": 0.2,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
        "seed": 42,
        "ignore_eos": True,
    }
    expected = SamplingParams(**(given | {"dry_sequence_breakers": ("\n", "!")}))  # type: ignore[arg-type]
    assert chat(**given).options.sampling == expected
    assert completion(**given).options.sampling == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"n_predict": 4}, 4),
        ({"n_predict": 4, "max_tokens": 5}, 5),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 2**62}, 2**62),
    ],
)
def test_the_newest_name_of_max_tokens_wins(fields: dict[str, Any], expected: int | None) -> None:
    assert chat(**fields).options.max_tokens == expected


def test_max_tokens_is_clamped_never_refused() -> None:
    clamp = {"context_tokens": 100, "field": "messages"}
    assert clamp_max_tokens(None, prompt_tokens=40, **clamp) == 60  # type: ignore[arg-type]
    assert clamp_max_tokens(10**9, prompt_tokens=99, **clamp) == 1  # type: ignore[arg-type]
    assert clamp_max_tokens(7, prompt_tokens=40, **clamp) == 7  # type: ignore[arg-type]


def test_a_prompt_that_leaves_no_room_names_both_numbers() -> None:
    with pytest.raises(PromptTooLong, match=r"100 tokens long, but the context holds 100") as caught:
        clamp_max_tokens(5, prompt_tokens=100, context_tokens=100, field="prompt")
    assert caught.value.field == "prompt"


@pytest.mark.parametrize(
    ("given", "seed"), [(None, None), (-1, None), (42, 42), (2**32 - 1, 0), (2**63, 2**63 % (2**32 - 1))]
)
def test_a_seed_never_becomes_llama_cpps_random_one(given: int | None, seed: int | None) -> None:
    assert chat(seed=given).options.sampling.seed == seed


MOST = {
    "top_k": CONTEXT.tokenizer.vocab_size,
    "repeat_last_n": CONTEXT.context_tokens,
    "dry_allowed_length": CONTEXT.context_tokens,
    "dry_penalty_last_n": CONTEXT.context_tokens,
    "mirostat": 2,
    "seed": 2**32 - 2,
}
"""The largest value of every whole-number parameter that may leave here: llama.cpp sizes buffers by them."""


def test_every_whole_number_has_a_bound() -> None:
    whole = {name for name, kind in get_type_hints(SamplingParams).items() if kind in (int, int | None)}
    assert whole == MOST.keys()


@pytest.mark.parametrize("name", MOST)
def test_whole_numbers_are_cut_to_what_can_have_an_effect(name: str) -> None:
    for value in (RANGES[name].low, RANGES[name].high):
        found = getattr(chat(**{name: value}).options.sampling, name)
        assert 0 <= found <= MOST[name]
    assert getattr(chat(**{name: 1}).options.sampling, name) == 1


def test_minus_one_means_everything() -> None:
    assert chat(repeat_last_n=-1).options.sampling.repeat_last_n == 1000
    assert chat(dry_penalty_last_n=-1).options.sampling.dry_penalty_last_n == 1000
    assert chat(top_k=-1).options.sampling.top_k == 0


def test_a_breaker_given_twice_counts_once() -> None:
    assert chat(dry_sequence_breakers=["a", "b", "a", "a"]).options.sampling.dry_sequence_breakers == ("a", "b")


def test_logit_bias_in_both_forms() -> None:
    assert chat(logit_bias={"65": 5, "66": -100}).options.sampling.logit_bias == ((65, 5.0), (66, -100.0))
    assert chat(logit_bias=[[65, 1.5], ["B", 2]]).options.sampling.logit_bias == ((65, 1.5), (66, 2.0))
    assert chat(logit_bias=[["AB", False]]).options.sampling.logit_bias == ((65, -math.inf), (66, -math.inf))


def test_stop_takes_a_string_or_a_list() -> None:
    assert chat(stop="ab").options.stop == ("ab",)
    assert chat(stop=["ab", "c"]).options.stop == ("ab", "c")


def test_logprobs_of_both_endpoints() -> None:
    assert chat(logprobs=True).options.logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).options.logprobs == 3
    assert chat(logprobs=False).options.logprobs is None
    assert completion(logprobs=0).options.logprobs == 0
    assert completion().options.logprobs is None


@pytest.mark.parametrize(
    ("prompt", "text", "tokens"),
    [("a", "a", None), (["a"], "a", None), ([1, 2], None, (1, 2)), ([[1, 2]], None, (1, 2)), ("", "", None)],
)
def test_a_prompt_in_every_form(prompt: Any, text: str | None, tokens: tuple[int, ...] | None) -> None:
    call = completion(prompt=prompt)
    assert (call.text, call.tokens) == (text, tokens)


def test_what_a_template_gets() -> None:
    tools = [{"type": "function", "function": {"name": "look", "extra": 1}}]
    prompt = chat(tools=tools, chat_template_kwargs={"thinking": False}, add_generation_prompt=False).prompt
    assert prompt.messages == MESSAGES
    assert prompt.tools == tools
    assert prompt.template_kwargs == {"thinking": False}
    assert not prompt.add_generation_prompt
    assert chat(tools=[]).prompt.tools is None


def test_apply_template_takes_the_same_prompt() -> None:
    raw = b'{"messages": [{"role": "user", "content": "hi"}], "return_tokens": true}'
    prompt, return_tokens = parse_apply_template(raw, limits=LIMITS)
    assert prompt == chat().prompt
    assert return_tokens
