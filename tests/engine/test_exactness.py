"""The engine over real models: with ``--exact`` the answer is the same, bit for bit, however the prefix came."""

from __future__ import annotations

import pytest

from anchorline.cache.prompt import Prompt
from anchorline.llama.model import Model
from tests.engine.exact import TOP, ask, conversation, engine_on


@pytest.mark.parametrize(
    ("model_name", "kv"),
    [
        ("test_llama_model", "f16"),
        ("test_llama_model", "q8_0"),
        ("tiny_smollm2_model", "f16"),
        pytest.param("tiny_smollm2_model", "q8_0", marks=pytest.mark.slow),
    ],
)
def test_off_cold_and_restored_answers_are_bit_identical(
    request: pytest.FixtureRequest, model_name: str, kv: str
) -> None:
    model: Model = request.getfixturevalue(model_name)
    first = conversation(1, model.info.vocab_size, 120, 30, 700, 20, 15)
    second = conversation(2, model.info.vocab_size, 60, 200)
    order = [*first[:3], *second, *first[2:], first[4], second[1]]
    with engine_on(model, cache=False, kv=kv) as off, engine_on(model, cache=True, kv=kv) as on:
        restored = 0
        for index, prompt in enumerate(order):
            expected, cold = ask(off, prompt, str(index))
            answer, report = ask(on, prompt, str(index))
            assert answer == expected, f"prompt {index} was restored to {report.restored_tokens}"
            assert cold.restored_tokens == 0
            restored += report.restored_tokens
        assert restored > sum(len(prompt) for prompt in order) // 2


def test_answers_stay_identical_while_segments_are_evicted(test_llama_model: Model) -> None:
    """A budget of about two conversations, five of them in turn."""
    conversations = [conversation(seed, test_llama_model.info.vocab_size, 600, 40, 40) for seed in range(5)]
    rounds = [conversations[n % 5][n // 5] for n in range(15)]
    with (
        engine_on(test_llama_model, cache=False) as off,
        engine_on(test_llama_model, cache=True, mib=1) as on,
    ):
        for index, prompt in enumerate(rounds):
            expected, _ = ask(off, prompt, str(index))
            answer, _ = ask(on, prompt, str(index))
            assert answer == expected
        assert on.stats().cache.evictions > 0


def test_default_mode_resumes_anywhere_and_differs_from_cold_by_batch_effects_alone(tiny_smollm2_model: Model) -> None:
    """Histories that part in the middle of a message: restored and trimmed to the last common token."""
    base = conversation(3, tiny_smollm2_model.info.vocab_size, 500)[0]
    parted = base.tokens.copy()
    parted[555:] = parted[554]
    prompt = Prompt(tokens=parted)
    other = conversation(4, tiny_smollm2_model.info.vocab_size, 700)[0]
    with engine_on(tiny_smollm2_model, cache=True, exact=False) as engine:
        ask(engine, base, "base")
        ask(engine, other, "other")
        answer, report = ask(engine, prompt, "parted")
        assert report.restored_tokens == 555
    with engine_on(tiny_smollm2_model, cache=False, exact=False) as cold:
        expected, _ = ask(cold, prompt, "parted")
    assert answer[1][:TOP] == pytest.approx(expected[1][:TOP], abs=1.0)
