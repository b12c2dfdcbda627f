"""What sealing gains and costs, and when it stops by itself."""

from __future__ import annotations

import pytest

from anchorline.engine.sealing import EVIDENCE, PROBE_SECONDS, WATCHED, Balance, SealLedger, may_seal
from tests.support.fake_runtime import tokens_of

TOKEN_SECONDS = 0.01
IDS = list(range(200))


def seal(ledger: SealLedger, ids: list[int], start: int, end: int | None = None) -> None:
    ledger.sealed(tokens_of(ids), start, len(ids) if end is None else end, seconds_per_token=TOKEN_SECONDS)


def call(ledger: SealLedger, ids: list[int], restored: int) -> None:
    ledger.started(tokens_of(ids), restored, seconds_per_token=TOKEN_SECONDS)


@pytest.mark.parametrize(
    ("asked", "restored", "used"),
    [
        (IDS, 150, 50),  # all of it
        (IDS, 120, 20),  # evicted in part, or a state before its end
        ([*IDS[:130], 7, 7, 7], 130, 30),  # it was guessed right up to there
        ([*IDS[:130], 7, 7, 7], 100, 0),
        ([7, *IDS], 0, 0),
    ],
)
def test_of_a_seal_is_used_what_a_later_call_restores_of_it(asked: list[int], restored: int, used: int) -> None:
    ledger = SealLedger()
    seal(ledger, IDS[:150], 100)
    call(ledger, asked, restored)
    call(ledger, asked, restored)
    assert (ledger.counters.prefilled_tokens, ledger.counters.used_tokens) == (50, used)


def test_the_two_parts_of_a_seal_that_was_interrupted_count_as_one_whole() -> None:
    ledger = SealLedger()
    seal(ledger, IDS[:150], 100, 120)
    seal(ledger, IDS[:150], 120)
    call(ledger, IDS, 150)
    counters = ledger.counters
    assert (counters.prefilled_tokens, counters.used_tokens) == (50, 50)
    assert (counters.completed, counters.gave_way) == (1, 1)


def test_seals_that_nobody_uses_stop_it_and_used_ones_bring_it_back(caplog: pytest.LogCaptureFixture) -> None:
    ledger = SealLedger()
    caplog.set_level("INFO", "anchorline.engine")
    for number in range(WATCHED + EVIDENCE - 1):
        seal(ledger, [number, *IDS], 1)
        assert ledger.counters.pays
    seal(ledger, [199, *IDS], 1)
    assert not ledger.counters.pays
    for _ in range(EVIDENCE):
        seal(ledger, IDS, 1)
        call(ledger, [*IDS, 1], len(IDS))
    assert ledger.counters.pays
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "turn sealing does not pay and is off, but for a probe now and then",
        "turn sealing pays again",
    ]


def test_delays_are_weighed_against_what_is_saved() -> None:
    balance = Balance()
    for _ in range(EVIDENCE):
        balance = balance.settled(prefilled_seconds=1.0, used_seconds=1.0)
    assert balance.pays
    assert balance.delayed(balance.gained_seconds / 2).pays
    assert not balance.delayed(balance.gained_seconds).pays


def test_a_few_seals_say_nothing() -> None:
    balance = Balance().delayed(10.0)
    for _ in range(EVIDENCE - 1):
        balance = balance.settled(prefilled_seconds=1.0, used_seconds=0.0)
    assert balance.pays
    assert not balance.settled(prefilled_seconds=1.0, used_seconds=0.0).pays


def test_old_outcomes_are_forgotten() -> None:
    bad = Balance().delayed(10.0)
    for _ in range(50):
        bad = bad.settled(prefilled_seconds=1.0, used_seconds=1.0)
    assert bad.pays


@pytest.mark.parametrize(
    ("pays", "seconds", "allowed"), [(True, 0.0, True), (False, 0.0, False), (False, PROBE_SECONDS, True)]
)
def test_while_it_does_not_pay_it_is_probed_now_and_then(pays: bool, seconds: float, allowed: bool) -> None:
    assert may_seal(pays=pays, since_last_seconds=seconds) is allowed
