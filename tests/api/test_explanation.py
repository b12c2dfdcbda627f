"""Explanations: where, how many tokens, why, and what would have avoided it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.api.explanation import Explanation, Spelling, explain
from anchorline.api.explanation_wire import explanation_headers, plan_object
from anchorline.api.explanation_words import (
    ALWAYS,
    CHANGED,
    NEW,
    NO_CACHE,
    REMEDY_TOKENS,
    Reason,
    place_text,
    reasons,
    restored_text,
    summary,
)
from anchorline.cache.difference import Difference
from anchorline.cache.prompt import Cut, CutKind, Part, Prompt
from anchorline.doctor.comparison import Kind
from anchorline.engine.request import CallReport, MissReason, PlanKind
from tests.api.test_replies import REPORT
from tests.server.standin import CONTROL, ByteTokenizer

TOKENS = 1000
ROLES = ("system", "user", "assistant", "tool", "user")
PROMPT = Prompt(
    tokens=np.full(TOKENS, 97, dtype=np.int32),
    cuts=(Cut(300, CutKind.HEAD, 0), Cut(990, CutKind.GENERATION, 4)),
    tool_fingerprint="tools",
    pin_head=True,
    message_starts=(0, 300, 400, 600, 800),
    message_roles=ROLES,
)


def report(*, restored: int = 0, seen: int = 0, lost: int | None = None, miss: MissReason | None = None) -> CallReport:
    """Of a call that restored its first tokens from the host, where its prompt differs if it lost any."""
    return replace(
        REPORT,
        plan=PlanKind.RESTORE,
        prompt_tokens=TOKENS,
        resident_tokens=0,
        host_tokens=restored,
        disk_tokens=0,
        segments=((0, restored),),
        prefilled_tokens=TOKENS - restored,
        seen_tokens=seen,
        difference=None if lost is None else Difference(position=seen, lost_tokens=lost, instead=(97, 98)),
        miss=miss,
        missing_cut="message 3" if miss is MissReason.NO_STATE else None,
    )


def explained(told: CallReport, prompt: Prompt = PROMPT, *, cache: bool = True) -> Explanation:
    return explain(told, prompt, Spelling(ByteTokenizer()), cache=cache)


def reason(explanation: Explanation, code: str) -> Reason:
    (found,) = (each for each in reasons(explanation) if each.code == code)
    return found


counts = st.lists(st.integers(0, TOKENS), min_size=2, max_size=2).map(sorted)


@given(counts, st.integers(0, TOKENS), st.sampled_from([None, *MissReason]), st.booleans())
def test_the_reasons_add_up_to_what_is_prefilled(
    restored_seen: list[int], lost: int, miss: MissReason | None, cache: bool
) -> None:
    restored, seen = restored_seen
    explanation = explained(report(restored=restored, seen=seen, lost=min(lost, TOKENS - seen), miss=miss), cache=cache)
    assert sum(each.tokens for each in reasons(explanation)) == explanation.prefilled_tokens == TOKENS - restored
    assert all(each.tokens > 0 for each in reasons(explanation))


@pytest.mark.parametrize(
    ("token", "place"),
    [
        (10, "message 0 (head), byte 11"),
        (300, "message 1 (user), byte 1"),
        (599, "message 2 (assistant), byte 200"),
        (990, "the generation prompt, byte 1"),
    ],
)
def test_a_difference_is_named_by_message_role_and_byte(token: int, place: str) -> None:
    """To the byte inside the token that differs: both begin with the same one here."""
    difference = explained(report(seen=token, lost=0)).first_difference
    assert difference is not None
    assert place_text(difference) == place


def test_where_ends_of_messages_are_not_known_all_that_it_may_be_are_named() -> None:
    prompt = replace(PROMPT, message_starts=(0, 300, 300, 300, 800))
    difference = explained(report(seen=500, lost=None), prompt).first_difference
    assert difference is not None
    assert place_text(difference) == "messages 1 to 3, byte 200"
    assert not difference.changed


def test_a_prompt_without_messages_is_one_text() -> None:
    difference = explained(report(seen=500), Prompt(tokens=PROMPT.tokens)).first_difference
    assert difference is not None
    assert place_text(difference) == "the prompt, byte 500"


def test_control_tokens_count_with_their_text() -> None:
    tokens = np.array([CONTROL["<|im_start|>"], 97, 98, *[97] * 997], dtype=np.int32)
    difference = explained(report(seen=2), replace(PROMPT, tokens=tokens)).first_difference
    assert difference is not None
    assert difference.byte == len("<|im_start|>a")


def test_a_bos_that_no_text_writes_does_not_count() -> None:
    difference = explained(report(seen=10), replace(PROMPT, unwritten_tokens=1)).first_difference
    assert difference is not None
    assert difference.byte == 9


@pytest.mark.parametrize("seen", [0, TOKENS])
def test_what_is_all_new_or_all_known_has_no_difference(seen: int) -> None:
    assert explained(report(seen=seen)).first_difference is None


@pytest.mark.parametrize("miss", MissReason)
def test_every_miss_has_a_sentence_and_all_but_a_good_choice_a_remedy(miss: MissReason) -> None:
    found = reason(explained(report(restored=300, seen=500, miss=miss)), miss)
    assert found.tokens == 200
    assert found.text.startswith("200 are prefilled again though seen before: ")
    assert (found.remedy is None) == (miss is MissReason.CHEAPER)


def test_a_missing_state_names_its_cut() -> None:
    found = reason(explained(report(restored=300, seen=700, miss=MissReason.NO_STATE)), "no_state")
    assert "none was at message 3." in found.text
    assert "--checkpoint-every" in (found.remedy or "")


@pytest.mark.parametrize("token", [10, 300, 400, 600])
def test_a_difference_that_costs_much_has_a_remedy_and_findings_that_the_doctor_knows(token: int) -> None:
    found = reason(explained(report(seen=token, lost=TOKENS - token)), "changed")
    assert found.remedy is not None
    assert found.findings
    assert set(found.findings) <= set(Kind)


def test_only_a_head_with_tools_may_have_its_tools_changed() -> None:
    told = report(seen=10, lost=900)
    assert "tools-reordered" in reason(explained(told), "changed").findings
    assert "tools-reordered" not in reason(explained(told, replace(PROMPT, tool_fingerprint=None)), "changed").findings


def test_a_difference_that_costs_little_asks_for_nothing() -> None:
    assert reason(explained(report(seen=400, lost=REMEDY_TOKENS - 1)), "changed").remedy is None


def test_new_text_behind_an_earlier_prompt_could_not_be_avoided() -> None:
    assert reason(explained(report(restored=800, seen=800)), "new").remedy is None


@pytest.mark.parametrize("told", [report(), report(seen=100, lost=0)])
def test_a_head_that_comes_first_could_have_been_warm(told: CallReport) -> None:
    assert "--warm" in (reason(explained(told), "new").remedy or "")
    assert reason(explained(told, replace(PROMPT, pin_head=False)), "new").remedy is None


def test_a_server_without_a_cache_gives_that_as_its_only_reason() -> None:
    (found,) = reasons(explained(report(), cache=False))
    assert (found.code, found.tokens) == ("no_cache", TOKENS)
    assert "--no-cache" in (found.remedy or "")


def test_sources_are_named_with_what_each_gave() -> None:
    told = replace(report(restored=600, seen=600), resident_tokens=200, host_tokens=400, sequence=3)
    assert restored_text(explained(told)) == (
        "600 of 1,000 tokens are restored: 200 from live sequence 3 and 400 from host RAM (1 segment)."
    )
    assert restored_text(explained(replace(told, disk_tokens=150))) == (
        "600 of 1,000 tokens are restored: "
        "200 from live sequence 3 and 250 from host RAM and 150 from disk (1 segment)."
    )
    disk = replace(report(restored=600, seen=600), disk_tokens=600)
    assert restored_text(explained(disk)) == "600 of 1,000 tokens are restored: 600 from disk (1 segment)."
    unread = replace(disk, segments=())
    assert restored_text(explained(unread)) == "600 of 1,000 tokens are restored: 600 from disk."
    assert plan_object(explained(disk), pending_saves=0)["disk_tokens"] == 600
    assert restored_text(explained(report())) == "None of 1,000 tokens is restored."


def test_every_reason_and_every_member_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()
    sent = plan_object(explained(report(seen=10, lost=900)), pending_saves=0)
    for name in (*MissReason, ALWAYS, CHANGED, NEW, NO_CACHE, *sent, *sent["first_difference"], *Part):
        assert f"`{name}`" in page or f'"{name}"' in page, name
    told = report(seen=10, lost=900, miss=MissReason.NO_STATE)
    for name in {name for each in (told, report(seen=10)) for name in explanation_headers("x", explained(each))}:
        assert f"`{name}`" in page or f"`{name.removeprefix('x-anchorline')}`" in page, name


@pytest.mark.parametrize(("lost", "verb"), [(0, "differs"), (None, "adds")])
def test_headers_tell_a_change_from_what_is_only_added(lost: int | None, verb: str) -> None:
    headers = explanation_headers("x", explained(report(seen=400, lost=lost)))
    (found,) = {name.removeprefix("x-anchorline-") for name in headers} & {"differs", "adds"}
    assert found == verb


def test_a_plan_says_what_was_expected_of_it() -> None:
    told = replace(report(), expected_seconds=0.25, rejected_plans=((PlanKind.FORK, "0 tokens restored"),))
    plan = plan_object(explained(told), pending_saves=0)
    assert plan["expected_ms"] == 250.0
    assert plan["rejected_plans"] == [{"plan": "fork", "why": "0 tokens restored"}]


@pytest.mark.parametrize("told", [report(), *(report(restored=1, seen=9, lost=900, miss=miss) for miss in MissReason)])
def test_headers_can_be_sent(told: CallReport) -> None:
    explanation = explained(told)
    for name, value in explanation_headers("chatcmpl-1", explanation).items():
        assert name.startswith("x-anchorline-")
        assert value.isascii()
        assert value.isprintable()
    assert summary(explanation).isprintable()
