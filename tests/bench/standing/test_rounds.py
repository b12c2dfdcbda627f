"""Servers taking turns: all get the same prompts, in an order that rotates, and one that fails leaves the others."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from anchorline.bench.client import CallFailed
from anchorline.bench.oracle import as_tokens
from anchorline.bench.standing.measures import Sample, faults_of
from anchorline.bench.standing.rounds import Lineup, answer_all, rotated
from anchorline.bench.standing.servers import Entrant, Prompt, Reply
from anchorline.bench.standing.workloads import Call, Role, Step, Steps, one

WAIT_SECONDS = 30.0


def render(body: dict[str, object]) -> Prompt:
    """A prompt of one token for each letter, that may be resumed behind each."""
    text = str(body["text"])
    return Prompt(body=body, text=text, tokens=as_tokens([ord(c) for c in text]), cuts=tuple(range(1, len(text))))


def call(text: str, role: Role = Role.WARM, *, restart: bool = False) -> Step:
    return one(text, {"text": text}, role, restart=restart)


def together(*texts: str, after: dict[int, tuple[int, ...]] | None = None) -> Step:
    calls = [
        Call(name=t, body={"text": t}, role=Role.OTHER, after=(after or {}).get(n, ())) for n, t in enumerate(texts)
    ]
    return Step(calls=tuple(calls))


@dataclass
class Log:
    """What happened to all servers, in order."""

    lines: list[str] = field(default_factory=list)


class Scripted:
    """A server without a cache, or with one that claims to have restored ``restored`` tokens of each prompt."""

    def __init__(self, name: str, log: Log, *, fails_on: str = "", restored: int = 0) -> None:
        self._name, self._log, self._fails_on, self._restored = name, log, fails_on, restored
        log.lines.append(f"{name} starts")

    def ask(self, prompt: Prompt) -> Reply:
        self._log.lines.append(f"{self._name} {prompt.text}")
        if prompt.text == self._fails_on:
            raise CallFailed("out of order", status=500)
        prefilled = int(prompt.tokens.size) - self._restored
        return Reply(ttft_ms=1.0, prefilled_tokens=prefilled, tokens=np.zeros(0, np.int32))

    def settle(self) -> None:
        self._log.lines.append(f"{self._name} settles")

    def close(self) -> None:
        self._log.lines.append(f"{self._name} ends")


@pytest.fixture
def log() -> Log:
    return Log()


def entrant(name: str, log: Log, **more: object) -> Entrant:
    return Entrant(name=name, start=lambda: Scripted(name, log, **more))  # type: ignore[arg-type]


def run(entrants: list[Entrant], *rounds: Steps, needed: tuple[str, ...] = ()) -> tuple[list[Sample], dict[str, str]]:
    with Lineup(entrants, needed=needed, render=render) as lineup:
        samples = [sample for step in lineup.run("work", rounds) for sample in step]
        return samples, lineup.failures


def asked(log: Log) -> list[str]:
    return [line for line in log.lines if not line.endswith(("starts", "settles", "ends"))]


def test_each_step_is_done_by_all_before_the_next_and_another_one_begins_each_time(log: Log) -> None:
    steps = (call("x"), call("y"))
    run([entrant("a", log), entrant("b", log)], steps, steps)
    assert asked(log) == ["a x", "b x", "b y", "a y", "b x", "a x", "a y", "b y"]


def test_a_server_has_settled_before_the_next_is_asked(log: Log) -> None:
    run([entrant("a", log), entrant("b", log)], (call("x"),))
    assert log.lines == ["a starts", "a x", "a settles", "b starts", "b x", "b settles", "a ends", "b ends"]


def test_samples_tell_round_place_and_what_a_perfect_cache_would_have_prefilled(log: Log) -> None:
    samples, _ = run([entrant("a", log)], (call("one"), together("ones", "two"), call("onest")))
    found = [(s.round, s.place, s.call, s.prompt_tokens, s.oracle_tokens, s.cut_oracle_tokens) for s in samples]
    assert found == [
        (0, 0, "one", 3, 3, 3),
        (0, 1, "ones", 4, 1, 2),
        (0, 2, "two", 3, 3, 3),
        (0, 3, "onest", 5, 1, 2),
    ]


def test_each_server_is_held_against_what_it_was_sent_itself(log: Log) -> None:
    samples, _ = run([entrant("a", log), entrant("b", log)], (call("x"),))
    assert [sample.oracle_tokens for sample in samples] == [1, 1]


def test_a_server_that_restores_what_it_never_saw_is_found_out(log: Log) -> None:
    samples, _ = run([entrant("liar", log, restored=2)], (call("abc"), call("xyz", Role.CONTROL)))
    assert len(faults_of(samples)) == 2


def test_a_warm_up_is_not_measured_and_starts_every_server(log: Log) -> None:
    with Lineup([entrant("a", log), entrant("b", log)], needed=(), render=render) as lineup:
        lineup.warm_up({"text": "hello"})
        (samples,) = list(lineup.run("work", [(call("hello!"),)]))
    assert [(sample.server, sample.oracle_tokens) for sample in samples] == [("a", 1), ("b", 1)]
    assert [line for line in log.lines if line.endswith("starts")] == ["a starts", "b starts"]


def test_a_workload_may_run_without_some_servers(log: Log) -> None:
    with Lineup([entrant("a", log), entrant("slow", log)], needed=(), render=render) as lineup:
        list(lineup.run("work", [(call("x"),)], without=("slow",)))
        list(lineup.run("more", [(call("y"),)]))
    assert asked(log) == ["a x", "a y", "slow y"]


def test_a_restart_ends_each_server_and_starts_it_again(log: Log) -> None:
    samples, _ = run([entrant("a", log)], (call("x"), call("xy", restart=True)))
    assert log.lines == ["a starts", "a x", "a settles", "a ends", "a starts", "a xy", "a settles", "a ends"]
    assert samples[1].oracle_tokens == 1, "a perfect cache outlives its server"


def test_a_peer_that_fails_takes_part_no_more(log: Log) -> None:
    entrants = [entrant("a", log), entrant("weak", log, fails_on="y")]
    samples, failures = run(entrants, (call("x"), call("y"), call("z")), needed=("a",))
    assert [f"{s.server} {s.call}" for s in samples] == ["a x", "weak x", "a y", "a z"]
    assert failures == {"weak": "out of order"}
    assert log.lines.count("weak ends") == 1


def test_a_needed_server_that_fails_ends_the_run(log: Log) -> None:
    with pytest.raises(CallFailed, match="out of order"):
        run([entrant("a", log, fails_on="y"), entrant("b", log)], (call("x"), call("y")), needed=("a",))
    assert {"a ends", "b ends"} <= set(log.lines)


def test_calls_of_a_step_overlap_but_for_those_that_come_after_another() -> None:
    """The first and the last wait for each other; the one between them is sent when the first has an answer."""
    both = threading.Barrier(2)
    answered: list[int] = []

    def ask(place: int) -> int:
        if place == 1:
            assert answered
        else:
            both.wait(WAIT_SECONDS)
        answered.append(place)
        return place

    assert answer_all(together("a", "behind a", "b", after={1: (0,)}).calls, ask) == [0, 1, 2]


def test_a_failure_among_calls_reaches_those_behind_it() -> None:
    sent: list[int] = []

    def ask(place: int) -> int:
        sent.append(place)
        raise CallFailed("no", status=500)

    with pytest.raises(CallFailed):
        answer_all(together("a", "b", after={1: (0,)}).calls, ask)
    assert sent == [0]


@pytest.mark.parametrize(("by", "order"), [(0, "abc"), (1, "bca"), (5, "cab")])
def test_rotation(by: int, order: str) -> None:
    assert rotated("abc", by) == list(order)
