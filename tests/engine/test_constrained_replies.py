"""Real models with next to random weights under real grammars."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.constraint.compiler import ConstraintCompiler
from anchorline.constraint.spec import Answer, ConstraintSpec, JsonSchema, Regex
from anchorline.constraint.vocabulary import Vocabulary
from anchorline.engine.engine import Engine
from anchorline.engine.request import FinishReason, GenerationRequest
from anchorline.errors import ConstraintFailure
from anchorline.limits import Limits
from anchorline.llama.interface import SamplingParams, TokenConstraint
from anchorline.llama.model import Model
from tests.engine.exact import engine_on
from tests.support.consumer import Recorder

TRIP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "maxLength": 30},
        "nights": {"type": "integer", "minimum": 1, "maximum": 365},
        "with": {"type": "array", "items": {"enum": ["Ann", "Bo", "Cy"]}, "maxItems": 3},
        "back": {"type": "boolean"},
    },
    "required": ["place", "nights", "with", "back"],
    "additionalProperties": False,
}


def constraint_for(model: Model, answer: Answer | None = None) -> TokenConstraint:
    vocabulary = Vocabulary(model.tokenizer, end_of_generation=model.tokenizer.end_of_generation)
    answer = answer or JsonSchema(schema=TRIP, field="schema", strict=True)
    made = ConstraintCompiler(vocabulary, Limits()).compile(ConstraintSpec(answer=answer))
    assert made is not None
    return made


@pytest.fixture(scope="module")
def trip(tiny_smollm2_model: Model) -> TokenConstraint:
    return constraint_for(tiny_smollm2_model)


@pytest.fixture(scope="module")
def engine(tiny_smollm2_model: Model) -> Iterator[Engine]:
    with engine_on(tiny_smollm2_model, cache=True, exact=False) as running:
        yield running


def ask(engine: Engine, prompt: Prompt, constraint: TokenConstraint | None, **options: Any) -> Recorder:
    fields: dict[str, Any] = {"sampling": SamplingParams(temperature=0.0), "max_tokens": 400} | options
    recorder = Recorder()
    request = GenerationRequest(
        id=f"{time.monotonic_ns()}", prompt=prompt, constraint=constraint, received_seconds=time.monotonic(), **fields
    )
    engine.submit(request, recorder)
    return recorder.wait()


def prompt_of(model: Model, text: str = "Plan a trip as JSON.") -> Prompt:
    ids = model.tokenizer.tokenize(text)
    return Prompt(tokens=ids, cuts=(Cut(len(ids) - 2, CutKind.MESSAGE, 0),))


def value_of(model: Model, tokens: list[int]) -> Any:
    return json.loads(model.tokenizer.detokenize(tokens))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0.0, 0.8, 2.0])
def test_replies_are_json_that_the_schema_accepts(
    engine: Engine, trip: TokenConstraint, tiny_smollm2_model: Model, seed: int, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=seed, ignore_eos=seed % 2 == 0)
    recorder = ask(engine, prompt_of(tiny_smollm2_model), trip, sampling=sampling)
    assert recorder.error is None
    assert recorder.finishes[0] is FinishReason.STOP
    jsonschema.validate(value_of(tiny_smollm2_model, recorder.tokens[0]), TRIP)


def test_choices_differ_and_are_all_valid(engine: Engine, trip: TokenConstraint, tiny_smollm2_model: Model) -> None:
    recorder = ask(
        engine, prompt_of(tiny_smollm2_model), trip, sampling=SamplingParams(temperature=1.5, seed=7), choices=2
    )
    values = [value_of(tiny_smollm2_model, recorder.tokens[choice]) for choice in range(2)]
    for value in values:
        jsonschema.validate(value, TRIP)
    assert values[0] != values[1]


def test_log_probabilities_are_those_without_the_constraint(
    engine: Engine, trip: TokenConstraint, tiny_smollm2_model: Model
) -> None:
    prompt = prompt_of(tiny_smollm2_model)
    free = ask(engine, prompt, None, logprobs=5, max_tokens=1)
    kept = ask(engine, prompt, trip, logprobs=5, max_tokens=1)
    assert kept.sampled[0].alternatives == free.sampled[0].alternatives
    assert kept.sampled[0].token != free.sampled[0].token
    assert kept.sampled[0].logprob is not None
    assert free.sampled[0].logprob is not None
    assert kept.sampled[0].logprob < free.sampled[0].logprob


def test_constrained_answers_are_bit_identical_cold_and_restored(
    trip: TokenConstraint, tiny_smollm2_model: Model
) -> None:
    prompt = prompt_of(tiny_smollm2_model, "You plan trips. " * 40 + "Plan one.")
    sampling = SamplingParams(temperature=1.0, seed=5)
    answers = []
    with engine_on(tiny_smollm2_model, cache=False) as off, engine_on(tiny_smollm2_model, cache=True) as on:
        for engine in (off, on, on):
            recorder = ask(engine, prompt, trip, sampling=sampling, logprobs=3)
            answers.append((recorder.tokens[0], [token.alternatives for token in recorder.sampled]))
        assert recorder.report is not None
        assert recorder.report.restored_tokens > 0
    assert answers[0] == answers[1] == answers[2]
    jsonschema.validate(value_of(tiny_smollm2_model, answers[0][0]), TRIP)


def test_a_vocabulary_that_cannot_spell_the_answer_ends_the_call_with_an_error(test_llama_model: Model) -> None:
    with engine_on(test_llama_model, cache=False) as engine:
        begun_at_best = constraint_for(test_llama_model, Regex(pattern=r"[ab][bc]\{", field="regex"))
        recorder = ask(engine, prompt_of(test_llama_model, "some words"), begun_at_best)
        assert isinstance(recorder.error, ConstraintFailure)
        after = ask(engine, prompt_of(test_llama_model, "some words"), None, max_tokens=2)
        assert after.error is None
