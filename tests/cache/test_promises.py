"""Whatever is saved, matched, pinned, evicted, merged or cleared: what was promised stays, within the budgets."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anchorline.cache.pinning import AnchorOrder
from anchorline.cache.pins import Pin, PinKind
from anchorline.cache.policy import EVICTION
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.prompt import DEFAULT_TENANT, Cut, CutKind, PinWish, Prompt
from anchorline.cache.rows import State
from anchorline.cache.segment import Segment
from anchorline.cache.storage import Allocate
from anchorline.errors import Conflict
from anchorline.llama.interface import MemoryKind
from tests.cache.test_prefix_cache import BYTES_PER_TOKEN, export, make_cache
from tests.support.fake_runtime import STATE_BYTES, tokens_of


def export_state(allocate: Allocate) -> memoryview | None:
    return allocate(STATE_BYTES)


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Up to four runs of one id: histories agree often, part anywhere and go on from each other."""
    runs = draw(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(2, 20)), min_size=1, max_size=4))
    ids = [id for id, length in runs for _ in range(length)]
    positions = st.integers(1, len(ids) - 1)
    head, *wished = sorted(draw(st.sets(positions, min_size=1, max_size=3)))
    named = draw(st.sampled_from([None, "talk", "other talk"]))
    return Prompt(
        tokens=tokens_of(ids),
        cuts=(Cut(head, CutKind.HEAD), *(Cut(end, CutKind.MESSAGE, index) for index, end in enumerate(wished))),
        pin_head=draw(st.booleans()),
        conversation=named,
        pin_wishes=tuple(PinWish(position=end, ttl_seconds=draw(st.sampled_from([5, 50]))) for end in wished),
    )


some_prompts = st.lists(prompts(), min_size=1, max_size=4)


class Promises(RuleBasedStateMachine):
    """A cache, what it was asked to keep, and saves that are under way."""

    cache: PrefixCache

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.explicit: list[Pin] = []
        """Those that nobody has taken back."""
        self.saving: list[Iterator[int]] = []
        self.held: set[Segment] = set()
        """Segments with rows that a save held when it was last looked."""

    @initialize(
        budget=st.sampled_from([40, 100, 400]),
        policy=st.sampled_from(sorted(EVICTION)),
        share=st.sampled_from([2, 1]),
        max_pins=st.sampled_from([2, 100]),
        kind=st.sampled_from([MemoryKind.PLAIN, MemoryKind.HYBRID]),
        exact=st.booleans(),
    )
    def start(self, budget: int, policy: str, share: int, max_pins: int, kind: MemoryKind, exact: bool) -> None:
        self.cache = make_cache(
            budget,
            pin_tokens=budget // share,
            max_pins=max_pins,
            kind=kind,
            exact=exact,
            clock=lambda: self.seconds,
            keep_value=EVICTION[policy],
        )

    def begin(self, prompt: Prompt) -> Iterator[int]:
        """A save of ``prompt``; a state of a stateful model was captured wherever its prefill paused."""
        call_class = self.cache.note_call(prompt)
        states: dict[int, State] = {}
        if self.cache.tree.stateful:
            wanted = {cut.position for cut in prompt.cuts} | {wish.position for wish in prompt.pin_wishes}
            for end in sorted({*wanted, len(prompt)}):
                state = self.cache.capture(
                    prompt, prompt.tokens[:end], export_state, call_class=call_class, ends_reply=False
                )
                if state is not None:
                    states[end] = state
        return self.cache.save(prompt, prompt.tokens, export, states, call_class=call_class)

    def save(self, prompt: Prompt) -> None:
        for _ in self.begin(prompt):
            pass

    @rule(several=some_prompts)
    def save_some(self, several: list[Prompt]) -> None:
        for prompt in several:
            self.save(prompt)

    @rule(prompt=prompts())
    def begin_a_save(self, prompt: Prompt) -> None:
        saving = self.begin(prompt)
        if next(saving, None) is not None:
            self.saving.append(saving)

    @precondition(lambda self: self.saving)
    @rule()
    def go_on_with_a_save(self) -> None:
        if next(self.saving[0], None) is None:
            del self.saving[0]

    @rule(prompt=prompts())
    def restore(self, prompt: Prompt) -> None:
        self.cache.note_call(prompt)

    @rule(several=some_prompts, ttl=st.sampled_from([None, 50]))
    def pin_some(self, several: list[Prompt], ttl: float | None) -> None:
        for prompt in several:
            self.pin(prompt, ttl)

    def pin(self, prompt: Prompt, ttl: float | None) -> None:
        order = AnchorOrder(prompt=prompt, position=prompt.cuts[-1].position, name=None, ttl_seconds=ttl)
        try:
            made = self.cache.pinning.pin_anchor(order)
            if made is None:
                self.save(prompt.up_to(order.position))
                made = self.cache.pinning.pin_anchor(order)
        except Conflict:
            return
        if made is not None:
            pin = self.cache.pins.find(DEFAULT_TENANT, made.id)
            assert pin is not None
            self.explicit.append(pin)

    @precondition(lambda self: self.explicit)
    @rule()
    def unpin(self) -> None:
        pin = self.explicit.pop(0)
        self.explicit = [other for other in self.explicit if other is not pin]
        if self.cache.pins.find(DEFAULT_TENANT, pin.id) is pin:
            self.cache.pins.remove(pin)

    @rule(seconds=st.sampled_from([1, 20]))
    def wait(self, seconds: int) -> None:
        self.seconds += seconds
        self.cache.expire_pins()

    @rule(tokens=st.integers(1, 100))
    def run_short_of_memory(self, tokens: int) -> None:
        self.cache.give_back(tokens * BYTES_PER_TOKEN)

    @rule(tokens=st.sampled_from([0, 30, 1000]))
    def limit_memory(self, tokens: int) -> None:
        self.cache.arena.limit(self.cache.arena.used_bytes + tokens * BYTES_PER_TOKEN)

    @rule(prompt=prompts())
    def merge(self, prompt: Prompt) -> None:
        while self.cache.merge(prompt, prompt.tokens, export, limit=1):
            pass

    @rule()
    def clear(self) -> None:
        self.cache.clear(DEFAULT_TENANT)

    @precondition(lambda self: not self.saving and self.cache.tree.kept)
    @rule(pick=st.integers(0, 100))
    def lose_rows(self, pick: int) -> None:
        """A restore is refused: the one way in which a promise is broken, and that is counted."""
        kept = list(self.cache.tree.kept)
        self.cache.reject(kept[pick % len(kept)])
        self.explicit = [pin for pin in self.explicit if pin.segment.rows is not None]
        self.held.clear()

    # -- what holds at all times --------------------------------------------------------------

    @invariant()
    def explicit_pins_stay(self) -> None:
        for pin in self.explicit:
            if self.cache.pins.find(DEFAULT_TENANT, pin.id) is not pin:
                assert pin.expires_seconds <= self.seconds
        self.explicit = [pin for pin in self.explicit if self.cache.pins.find(DEFAULT_TENANT, pin.id) is pin]
        assert all(pin.kind is PinKind.EXPLICIT for pin in self.explicit)

    @invariant()
    def what_is_pinned_can_be_restored(self) -> None:
        for pin in self.cache.pins.of(DEFAULT_TENANT):
            assert pin.segment.rows is not None
            assert pin.segment.state is not None or not self.cache.tree.stateful

    @invariant()
    def pins_are_within_their_bounds(self) -> None:
        pins = self.cache.pins
        assert len(pins) <= pins.limit
        assert pins.pinned_bytes <= pins.limit_bytes
        assert sum(node.pins for node in self.cache.tree) == len(pins)

    @invariant()
    def leased_rows_stay(self) -> None:
        held = {node for node in self.cache.tree if node.leases}
        assert all(node.rows is not None for node in held & self.held)
        self.held = {node for node in held if node.rows is not None}
        assert self.saving or not held

    @invariant()
    def bytes_stay_within_the_budget_and_parents_outlive_children(self) -> None:
        assert self.cache.arena.used_bytes <= self.cache.arena.budget_bytes
        for node in self.cache.tree:
            assert node.parent is not None
            assert node.rows is None or node.parent is self.cache.tree.root or node.parent.rows is not None


Promises.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_promises_hold = Promises.TestCase
