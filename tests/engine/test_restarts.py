"""Real models after a restart: what was prefilled before comes back from disk, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from anchorline.engine.request import CallReport
from tests.engine.exact import ask, at_rest, conversation, engine_on
from tests.engine.test_exact_kinds import loaded, script
from tests.engine.test_real_states import GENERATION_TOKENS, with_generation_prompt

kinds = pytest.mark.parametrize("arch", ["llama", "qwen35", "gemma3", "mamba2"])


@kinds
def test_only_the_delta_of_the_next_turn_is_prefilled(arch: str, tmp_path: Path) -> None:
    turns = [with_generation_prompt(prompt) for prompt in conversation(1, 500, 60, 40, 50, 30, 20, 35)]
    with loaded(arch) as model:
        with engine_on(model, cache=True, exact=False, disk=tmp_path) as engine:
            for index, prompt in enumerate(turns[:5]):
                ask(engine, prompt, str(index))
            at_rest(engine)
        with engine_on(model, cache=True, exact=False, disk=tmp_path) as engine:
            _, report = ask(engine, turns[5], "after the restart")
    assert report.prefilled_tokens == 35 + GENERATION_TOKENS
    assert report.disk_tokens == report.restored_tokens
    assert report.miss is None


@kinds
def test_exact_answers_equal_those_without_a_cache(arch: str, tmp_path: Path) -> None:
    """A restart after every fourth call; the host tier is so small that segments go in between, too."""
    with loaded(arch) as model:
        prompts = script(model.info.vocab_size)[:12]
        with engine_on(model, cache=False) as off:
            expected = [ask(off, prompt, str(index))[0] for index, prompt in enumerate(prompts)]
        reports: list[CallReport] = []
        for start in range(0, len(prompts), 4):
            with engine_on(model, cache=True, mib=1, disk=tmp_path) as on:
                for index in range(start, min(start + 4, len(prompts))):
                    answer, report = ask(on, prompts[index], str(index))
                    assert answer == expected[index], f"prompt {index}: {report.restored_tokens} tokens restored"
                    reports.append(report)
                at_rest(on)
        assert all(report.disk_tokens for report in reports[4::4]), "each process begins with what the one before left"
