"""Any interleaving of requests, evictions, disk faults, losses and restarts gives exactly the fake's own answers."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from anchorline.cache.segment import Segment
from anchorline.engine.stream import Call
from anchorline.errors import Cancelled
from anchorline.llama.interface import MemoryKind
from tests.engine.harness import Harness, make_prompt
from tests.engine.test_properties import check_rest, histories, reseats
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, Faults, expected_reply
from tests.support.memory_store import DiskFaults, Files

BASE = [1, 2, 3, 1, 1, 2] * 10
"""Most prompts begin as this does, so that they meet on disk again."""

prompts = st.builds(
    lambda length, tail: [*BASE[:length], *tail],
    st.sampled_from([20, 40, 50, 60]),
    st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=12),
)
asks = st.tuples(st.just("ask"), st.one_of(prompts, histories), st.integers(1, 12))
actions = st.one_of(
    asks,
    asks,
    st.tuples(st.just("seal"), histories),
    st.tuples(st.just("steps"), st.integers(1, 6)),
    st.tuples(st.just("disk"), st.integers(1, 4)),
    st.tuples(st.just("hear"), st.integers(1, 4)),
    st.tuples(st.just("lose"), st.integers(0, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("clear")),
)
lives = st.tuples(
    st.sampled_from([True, True, False]),
    st.builds(lambda ask, others: [ask, *others], asks, st.lists(actions, max_size=7)),
    st.sampled_from([True, True, False]),
)
"""Of one process: whether it reads all of the index first, what it does, and whether it has the time to write it."""
rarely = st.sampled_from([0.0, 0.0, 0.0, 0.2])
chance = st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.4])


@st.composite
def shapes(draw: st.DrawFn) -> World:
    exact = draw(st.booleans())
    return World(
        kind=draw(st.sampled_from([MemoryKind.PLAIN, MemoryKind.HYBRID, MemoryKind.RECURRENT])),
        exact=exact,
        parallel=1 if exact else draw(st.integers(1, 3)),
        resident_idle=0 if exact else draw(st.integers(0, 2)),
        cache_bytes=draw(st.sampled_from([512, 1024, 4096, 1 << 16])),
        context_tokens=draw(st.sampled_from([80, 400])),
        faults=Faults(
            random=random.Random(draw(st.integers(0, 1000))),
            export=draw(rarely),
            import_=draw(chance),
            import_broken=draw(chance),
            state=draw(rarely),
        ),
        disk_faults=DiskFaults(
            random=random.Random(draw(st.integers(0, 1000))), write=draw(rarely), read=draw(rarely), full=draw(rarely)
        ),
    )


class World:
    """Processes one after another over the same files."""

    def __init__(
        self,
        *,
        kind: MemoryKind,
        exact: bool,
        parallel: int,
        resident_idle: int,
        cache_bytes: int,
        context_tokens: int,
        faults: Faults,
        disk_faults: DiskFaults,
    ) -> None:
        self.files = Files()
        self.asked: list[tuple[Call, Recorder, list[int], int]] = []
        self._kind, self._exact, self._context_tokens = kind, exact, context_tokens
        self._parallel, self._resident_idle, self._cache_bytes = parallel, resident_idle, cache_bytes
        self._faults, self._disk_faults = faults, disk_faults

    def start(self) -> None:
        """Begin anew: what the process before was asked and had in memory is gone."""
        self.asked.clear()
        self.runtime = FakeRuntime(
            context_tokens=self._context_tokens,
            sequences=self._parallel + self._resident_idle,
            faults=self._faults,
            kind=self._kind,
        )
        self.harness = Harness(
            self.runtime,
            cache_bytes=self._cache_bytes,
            parallel=self._parallel,
            resident_idle=self._resident_idle,
            exact=self._exact,
            files=self.files,
            disk_faults=self._disk_faults,
        )

    def do(self, action: tuple) -> None:  # type: ignore[type-arg]
        harness, store = self.harness, self.harness.store
        assert store is not None
        assert harness.cache is not None
        match action:
            case ("ask", ids, max_tokens):
                ends = (len(ids) * 3 // 4,) if len(ids) > 8 else ()
                prompt = make_prompt(ids, head=min(len(ids) // 2, 20) or None, ends=ends, pin=True)
                call, recorder = harness.open(prompt, max_tokens=max_tokens, seed=5)
                self.asked.append((call, recorder, ids, max_tokens))
            case ("seal", ids) if not self._exact:
                harness.seal(ids)
            case ("steps", count):
                for _ in range(count):
                    harness.loop.step()
            case ("disk", count):
                store.work(count)
            case ("hear", count):
                for _ in range(min(count, len(harness.told))):
                    harness.told.popleft()()
            case ("lose", which) if self.files.kept:
                store.lose([list(self.files.kept)[which % len(self.files.kept)]])
            case ("cancel", which) if self.asked:
                call, recorder, *_ = self.asked[which % len(self.asked)]
                if not recorder.has_ended:
                    harness.loop.cancel(call)
            case ("clear",):
                harness.cache.clear("")

    def rest(self) -> None:
        """Let everything come to its end, and check every answer since the last restart."""
        self.harness.run()
        for call, recorder, ids, max_tokens in self.asked:
            assert recorder.has_ended
            if recorder.error is not None:
                assert isinstance(recorder.error, Cancelled) or reseats(self.harness, self.runtime)
                continue
            expected = expected_reply(ids, min(max_tokens, call.max_tokens), salt=5, kind=self._kind)
            assert recorder.tokens.get(0, []) == expected
            assert recorder.report is not None
            assert recorder.report.disk_tokens <= recorder.report.host_tokens
        assert self.harness.cache is not None
        assert self.harness.cache.disk is not None
        event(f"{self._kind}, {self._exact=}: {'reads' if self.harness.cache.disk.loader.loads else 'does not read'}")
        check_rest(self.harness, self.runtime)
        check_stored(self.harness)


def check_stored(harness: Harness) -> None:
    """Nothing runs: each record that a node may be read from is on disk, and the store was told of all pins."""
    assert harness.cache is not None
    assert harness.store is not None
    for node in harness.cache.tree:
        for stored in (node.stored, node.stored_state):
            if stored is not None:
                assert stored.is_written
                assert stored.record.key in harness.store.files.kept
                assert harness.cache.stored.find(stored.record.key) is stored
        assert _covers(node)
    assert not harness.cache.stored.unwanted or harness.store.jobs


def _covers(node: Segment) -> bool:
    stored = node.stored
    return stored is None or (stored.record.start <= node.start and node.end <= stored.record.end)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes(), st.lists(lives, min_size=3, max_size=5))
def test_every_answer_is_the_fakes_own(world: World, script: list[tuple[bool, list[tuple], bool]]) -> None:  # type: ignore[type-arg]
    for indexed, life, rests in script:
        world.start()
        if indexed:
            world.rest()
        for action in life:
            world.do(action)
        if rests:
            world.rest()
    world.rest()


turns = st.lists(
    st.tuples(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=9), st.integers(0, 4), st.booleans()),
    min_size=1,
    max_size=6,
)
"""Of each: the user's ids, how many of the reply's ids come back as they were, and whether another session follows."""


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turns, st.sampled_from([MemoryKind.PLAIN, MemoryKind.HYBRID, MemoryKind.RECURRENT]), st.booleans())
def test_a_restart_costs_nothing(script: list[tuple[list[int], int, bool]], kind: MemoryKind, exact: bool) -> None:
    """The next turn restores as much as it would have without; each life is as long as a turn."""
    head = BASE[:20]
    files, ids = Files(), [*head]

    def start(files: Files) -> Harness:
        runtime = FakeRuntime(sequences=1, kind=kind)
        harness = Harness(runtime, parallel=1, resident_idle=0, exact=exact, files=files)
        harness.run()
        return harness

    harness = start(files)
    for user, kept, with_other in script:
        ids = [*ids, *user]
        prompt = make_prompt([*ids, 4], head=len(head), ends=(len(ids),), pin=True)
        restarted = start(Files(dict(files.kept)))
        stayed = harness.ask(prompt)
        assert stayed.report is not None
        assert restarted.report(prompt).restored_tokens == stayed.report.restored_tokens
        ids = [*ids, 4, *stayed.tokens.get(0, [])[:kept], 4]
        if with_other:
            harness.ask(make_prompt([*head, *[3] * 12], head=len(head), ends=(len(head) + 12,), pin=True))
