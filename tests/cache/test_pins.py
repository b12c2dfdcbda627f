"""Pins by themselves: what they hold, who gives way to whom, and when they end."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from anchorline.cache.pins import Pin, PinEnd, PinKind, PinOrder, PinRefusal, Pins
from anchorline.cache.prompt import Owners
from anchorline.cache.rows import Rows, State
from anchorline.cache.segment import Absence, Segment
from anchorline.cache.tree import SegmentTree
from tests.support.fake_runtime import tokens_of

HEAD, BREAKPOINT, CONVERSATION, EXPLICIT = PinKind
BYTES_PER_TOKEN = 10

OWNERS = Owners("us", common_tokens=0)


class Wood:
    """A tree of kept segments, and pins on them that may hold 100 tokens. What was asked for last is worth most."""

    def __init__(self, *, limit: int = 100) -> None:
        self.tree = SegmentTree()
        self.pins = Pins(limit_bytes=100 * BYTES_PER_TOKEN, limit=limit, worth=lambda segment: segment.last_used)
        self._asked = count(1)

    def segment(self, *ids: int, state_bytes: int = 0) -> Segment:
        """The segment at the end of a path whose nodes have ten of each id."""
        history = [id for id in ids for _ in range(10)]
        node = self.tree.root
        for end in range(10, len(history) + 1, 10):
            (node,) = self.tree.descend(tokens_of(history), end, OWNERS, from_node=node)
            if node.rows is None:
                self.tree.keep(node, Rows(memoryview(bytes(10 * BYTES_PER_TOKEN)), end - 10, end, lambda: None))
        node.last_used = next(self._asked)
        if state_bytes:
            self.tree.keep_state(node, State(memoryview(bytes(state_bytes)), lambda: None))
        return node

    def pin(
        self, id: str, kind: PinKind, segment: Segment, *, ttl: float | None = None, now: float = 0.0
    ) -> Pin | PinRefusal:
        return self.pins.pin(PinOrder(id=id, kind=kind, tenant="us", segment=segment, ttl_seconds=ttl), now)

    @property
    def ids(self) -> list[str]:
        """The pins that are there, the one used longest ago first."""
        return [pin.id for pin in self.pins.of("us")]


@pytest.fixture
def wood() -> Wood:
    return Wood()


def test_what_several_pins_hold_counts_once(wood: Wood) -> None:
    wood.pin("head", HEAD, wood.segment(1, 2))
    assert wood.pins.pinned_bytes == 20 * BYTES_PER_TOKEN
    wood.pin("branch", EXPLICIT, wood.segment(1, 2, 3))
    wood.pin("other branch", EXPLICIT, wood.segment(1, 2, 4))
    assert wood.pins.pinned_bytes == 40 * BYTES_PER_TOKEN


def test_a_path_is_walked_once_however_many_pins_are_on_it(wood: Wood, monkeypatch: pytest.MonkeyPatch) -> None:
    for length in range(1, 11):
        wood.pin(f"pin {length}", EXPLICIT, wood.segment(*range(1, length + 1)))
    walked: list[Segment] = []
    parent: Any = vars(Segment)["parent"]

    def noting(node: Segment) -> Any:
        walked.append(node)
        return parent.__get__(node)

    monkeypatch.setattr(Segment, "parent", property(noting))
    assert wood.pins.pinned_bytes == 100 * BYTES_PER_TOKEN
    assert len(walked) == len(set(walked))


def test_of_the_states_on_its_path_a_pin_holds_the_last(wood: Wood) -> None:
    wood.segment(1, state_bytes=7)
    wood.pin("leaf", EXPLICIT, wood.segment(1, 2, state_bytes=7))
    assert wood.pins.pinned_bytes == 20 * BYTES_PER_TOKEN + 7
    wood.pin("root", EXPLICIT, wood.segment(1))
    assert wood.pins.pinned_bytes == 20 * BYTES_PER_TOKEN + 14


def test_a_pinned_segment_is_held_until_its_last_pin_ends(wood: Wood) -> None:
    segment = wood.segment(1)
    wood.pin("one", EXPLICIT, segment)
    wood.pin("two", CONVERSATION, segment, ttl=60)
    assert not segment.is_droppable
    for pin in wood.pins.of("us"):
        wood.pins.remove(pin)
    assert segment.is_droppable
    assert wood.pins.ended == {PinEnd.REMOVED: 2}


def full_wood() -> Wood:
    """A pin of each kind, 20 tokens each, so that 20 are left; the explicit one was used longest ago."""
    wood = Wood()
    for number, kind in enumerate([EXPLICIT, BREAKPOINT, CONVERSATION, HEAD]):
        wood.pin(kind, kind, wood.segment(number, number))
    return wood


@pytest.mark.parametrize(
    ("newer", "going"),
    [
        (HEAD, [HEAD]),
        (BREAKPOINT, [HEAD, BREAKPOINT, CONVERSATION]),
        (CONVERSATION, [HEAD, BREAKPOINT, CONVERSATION]),
        (EXPLICIT, [HEAD, BREAKPOINT, CONVERSATION]),
    ],
)
def test_the_weakest_give_way_first_and_explicit_pins_never(newer: PinKind, going: list[PinKind]) -> None:
    for gone in range(len(going) + 1):
        wood = full_wood()
        assert isinstance(wood.pin("new", newer, wood.segment(*[9] * (2 + 2 * gone))), Pin)
        assert set(wood.ids) == {*PinKind, "new"} - set(going[:gone])
        assert wood.pins.ended == ({PinEnd.GAVE_WAY: gone} if gone else {})
    wood = full_wood()
    assert wood.pin("new", newer, wood.segment(*[9] * (3 + 2 * len(going)))) is PinRefusal.OVER_BUDGET
    assert wood.ids == [EXPLICIT, BREAKPOINT, CONVERSATION, HEAD], "nothing goes for what does not fit in the end"


def test_a_head_gives_way_to_one_that_is_worth_more(wood: Wood) -> None:
    frequent, seldom = wood.segment(1, 1, 1, 1), wood.segment(2, 2, 2, 2)
    for head in (seldom, frequent):
        wood.pin(f"head {head.tokens[0]}", HEAD, head)
    frequent.last_used = 100
    assert isinstance(wood.pin("better", HEAD, wood.segment(3, 3, 3, 3)), Pin)
    assert wood.ids == ["head 1", "better"], "though that was used later"
    worse = wood.segment(4, 4, 4, 4)
    worse.last_used = 0
    assert wood.pin("worse", HEAD, worse) is PinRefusal.OVER_BUDGET
    assert wood.ids == ["head 1", "better"]


def test_of_one_rank_the_one_used_longest_ago_gives_way(wood: Wood) -> None:
    for number in range(5):
        wood.pin(f"head {number}", HEAD, wood.segment(number, number))
    wood.pins.use_all([wood.segment(0, 0)], tenant="us", now=1.0)
    wood.pin("new", HEAD, wood.segment(9, 9))
    assert wood.ids == ["head 2", "head 3", "head 4", "head 0", "new"]


def test_nothing_gives_way_that_would_free_no_bytes(wood: Wood) -> None:
    wood.pin("inner", HEAD, wood.segment(1, 1))
    wood.pin("other", HEAD, wood.segment(2, 2, 2, 2))
    wood.pin("leaf", EXPLICIT, wood.segment(1, 1, 1))
    wood.pin("new", EXPLICIT, wood.segment(3, 3, 3, 3))
    assert wood.ids == ["inner", "leaf", "new"]


def test_their_number_is_limited_too() -> None:
    wood = Wood(limit=2)
    wood.pin("head", HEAD, wood.segment(1))
    wood.pin("first", EXPLICIT, wood.segment(2))
    wood.pin("second", EXPLICIT, wood.segment(3))
    assert wood.ids == ["first", "second"]
    assert wood.pin("third", EXPLICIT, wood.segment(4)) is PinRefusal.TOO_MANY
    assert isinstance(wood.pin("first", EXPLICIT, wood.segment(2)), Pin), "it is there already"


def test_a_pin_expires_so_long_after_its_last_use(wood: Wood) -> None:
    segment = wood.segment(1)
    wood.pin("wish", BREAKPOINT, segment, ttl=300, now=0)
    wood.pins.expire(299)
    wood.pins.use_all([segment], tenant="us", now=299)
    wood.pins.expire(598)
    assert wood.ids == ["wish"]
    wood.pins.expire(599)
    assert wood.ids == []
    assert wood.pins.ended == {PinEnd.EXPIRED: 1}
    assert segment.is_droppable


def test_only_its_own_tenant_uses_and_finds_a_pin(wood: Wood) -> None:
    segment = wood.segment(1)
    wood.pin("wish", BREAKPOINT, segment, ttl=300, now=0)
    wood.pins.use_all([segment], tenant="them", now=299)
    assert wood.pins.find("them", "wish") is None
    assert wood.pins.of("them") == []
    wood.pins.expire(300)
    assert wood.pins.find("us", "wish") is None


def test_a_head_that_a_call_wished_for_is_a_head_again_afterwards(wood: Wood) -> None:
    wood.pin("head", HEAD, wood.segment(1))
    wish = wood.pin("head", BREAKPOINT, wood.segment(1), ttl=300)
    assert isinstance(wish, Pin)
    assert [pin.kind for pin in wood.pins.of("us")] == [BREAKPOINT]
    wood.pins.expire(300)
    assert [(pin.kind, pin.ttl_seconds) for pin in wood.pins.of("us")] == [(HEAD, None)]


def test_orders_for_one_pin_never_make_it_weaker_nor_its_time_shorter(wood: Wood) -> None:
    segment = wood.segment(1)
    pin = wood.pin("it", BREAKPOINT, segment, ttl=3600)
    assert isinstance(pin, Pin)
    wood.pin("it", BREAKPOINT, segment, ttl=300)
    assert pin.ttl_seconds == 3600
    wood.pin("it", EXPLICIT, segment)
    wood.pin("it", BREAKPOINT, segment, ttl=300)
    wood.pin("it", HEAD, segment)
    assert [(pin.kind, pin.ttl_seconds) for pin in wood.pins.of("us")] == [(EXPLICIT, None)]
    assert segment.pins == 1


def test_a_pin_moves_to_another_segment(wood: Wood) -> None:
    before, after = wood.segment(1), wood.segment(1, *[1] * 9)
    wood.pin("talk", CONVERSATION, before, ttl=60)
    wood.pin("talk", CONVERSATION, after, ttl=60)
    assert (before.pins, after.pins) == (0, 1)
    assert isinstance(wood.pin("talk", CONVERSATION, wood.segment(2, *[2] * 9), ttl=60), Pin), "its own place is free"


def test_a_pin_without_its_rows_or_state_is_lost_and_counted(wood: Wood) -> None:
    rows, state = wood.segment(1), wood.segment(2, state_bytes=7)
    wood.pin("rows", EXPLICIT, rows)
    wood.pin("state", EXPLICIT, state)
    wood.pins.forget_lost(stateful=False)
    assert wood.ids == ["rows", "state"]
    wood.tree.drop_below(rows, Absence.RESTORE_FAILED)
    wood.pins.forget_lost(stateful=True)
    assert wood.ids == ["state"]
    wood.tree.drop_state(state)
    wood.pins.forget_lost(stateful=True)
    assert wood.ids == []
    assert wood.pins.ended == {PinEnd.LOST: 2}


def test_short_memory_takes_all_but_explicit_pins_the_weakest_first() -> None:
    wood = full_wood()
    left = []
    while wood.pins.release_weakest():
        left.append(wood.ids)
    assert left == [[EXPLICIT, BREAKPOINT, CONVERSATION], [EXPLICIT, CONVERSATION], [EXPLICIT]]


def test_a_changed_pin_is_explicit_and_takes_the_place_of_one_with_its_id(wood: Wood) -> None:
    segment = wood.segment(1)
    talk = wood.pin("talk", CONVERSATION, segment, ttl=60)
    assert isinstance(talk, Pin)
    changed = wood.pins.change(talk, id="content", name="mine", ttl_seconds=None, now=0)
    assert (changed.id, changed.kind, changed.name, changed.ttl_seconds) == ("content", EXPLICIT, "mine", None)
    again = wood.pin("talk", CONVERSATION, segment, ttl=60)
    assert isinstance(again, Pin)
    assert wood.pins.change(again, id="content", name="yours", ttl_seconds=9, now=0) is changed
    assert (wood.ids, changed.name, segment.pins) == (["content"], "yours", 1)
