"""What real stateful models keep and resume, counted in tokens and bytes."""

from __future__ import annotations

import numpy as np
import pytest

from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.config import ModelConfig
from anchorline.engine.request import MissReason
from anchorline.llama.model import load_model
from anchorline.llama.runtime import LlamaRuntime
from tests.engine.exact import ask, at_rest, conversation, engine_on
from tests.support.runtimes import make_runtime

HEAD = 300
GENERATION_TOKENS = 12

kinds = pytest.mark.parametrize("arch", ["qwen35", "gemma3", "mamba2"])


def with_generation_prompt(prompt: Prompt, *, turn_start: int | None = None) -> Prompt:
    """The prompt with its last message end as the place before a generation prompt of twelve tokens."""
    end = len(prompt)
    cuts = (*prompt.cuts[:-1], Cut(end, CutKind.GENERATION))
    tokens = np.concatenate((prompt.tokens, np.arange(20, 20 + GENERATION_TOKENS, dtype=np.int32)))
    return Prompt(
        tokens=tokens, cuts=cuts, tool_fingerprint="t", pin_head=True, message_starts=(HEAD,), turn_start=turn_start
    )


@kinds
def test_a_conversation_another_and_back_restores_whole(arch: str) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}"))
    try:
        turns = [with_generation_prompt(p) for p in conversation(1, 500, 60, 40, 50, 30)]
        with engine_on(model, cache=True, exact=False) as engine:
            for index, prompt in enumerate(turns[:3]):
                ask(engine, prompt, f"a{index}")
            ask(engine, with_generation_prompt(conversation(2, 500, 80)[0]), "b")
            _, report = ask(engine, turns[3], "back")
            assert report.restored_tokens == HEAD + 150
            assert report.miss is None
            _, again = ask(engine, turns[3], "again")
            assert again.prefilled_tokens == GENERATION_TOKENS
    finally:
        model.close()


@kinds
def test_an_edited_round_resumes_at_the_round_before(arch: str) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}"))
    try:
        rounds = conversation(1, 500, *[20] * 16)
        with engine_on(model, cache=True, exact=False) as engine:
            for index, prompt in enumerate(rounds):
                ask(engine, with_generation_prompt(prompt, turn_start=HEAD), str(index))
            edited = rounds[10].tokens.copy()
            edited[HEAD + 10 * 20 :] = 7
            prompt = Prompt(tokens=edited, cuts=rounds[10].cuts, message_starts=(HEAD,), turn_start=HEAD)
            _, report = ask(engine, prompt, "edited")
            assert report.restored_tokens == HEAD + 10 * 20
    finally:
        model.close()


@kinds
def test_without_a_state_at_a_cut_the_miss_names_it(arch: str) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}"))
    try:
        long = conversation(1, 500, *[30] * 8)
        with engine_on(model, cache=True, exact=False) as engine:
            ask(engine, long[-1], "long")
            _, report = ask(engine, long[3], "part")
            assert report.restored_tokens == HEAD
            assert (report.miss, report.missing_cut) == (MissReason.NO_STATE, "message 2")
    finally:
        model.close()


@kinds
def test_two_branches_in_turn_prefill_their_generation_prompts(arch: str) -> None:
    """They share four fifths of their messages; A, B, A, B."""
    model = load_model(ModelConfig(model=f"test:{arch}"))
    try:
        shared = conversation(1, 500, *[30] * 8)[-1]
        branches = []
        for name in (2, 3):
            own = np.full(60, name + 20, dtype=np.int32)
            tokens = np.concatenate((shared.tokens, own))
            cuts = (*shared.cuts, Cut(len(tokens), CutKind.MESSAGE, 8))
            branches.append(with_generation_prompt(Prompt(tokens=tokens, cuts=cuts), turn_start=len(shared)))
        with engine_on(model, cache=True, exact=False) as engine:
            for index, branch in enumerate((*branches, *branches)):
                _, report = ask(engine, branch, str(index))
                if index > 1:
                    assert report.prefilled_tokens == GENERATION_TOKENS
    finally:
        model.close()


def test_forty_turns_keep_their_rows_and_four_states() -> None:
    model = load_model(ModelConfig(model="test:qwen35"))
    try:
        runtime: LlamaRuntime = make_runtime(model)
        row_bytes, state_bytes = runtime.limits.bytes_per_token, runtime.capabilities.state_bytes
        runtime.close()
        turns = conversation(1, 500, *[40] * 79)
        with engine_on(model, cache=True, exact=False) as engine:
            ask(engine, conversation(2, 500, 5)[0], "another, over the same head")
            before = at_rest(engine).host_used_bytes
            for index, prompt in enumerate(turns[::2]):
                ask(engine, with_generation_prompt(prompt, turn_start=len(prompt) - 40), str(index))
            kept = at_rest(engine).host_used_bytes - before
        unique = len(turns[-1]) - HEAD
        assert kept <= 1.1 * (unique * row_bytes + 4 * state_bytes)
    finally:
        model.close()
