"""The store of responses: chains, bounds, tenants."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.api.responses_store import NODE_BYTES, ResponseStore, StoredResponse
from anchorline.errors import NotFound, RequestError

ME, OTHER = "me", "other"


def items(*names: str) -> list[dict[str, Any]]:
    return [{"type": "message", "id": name} for name in names]


def node(id: str, *, previous: StoredResponse | None = None, padding: int = 0) -> StoredResponse:
    own, output = items(f"in-{id}"), items(f"out-{id}")
    return StoredResponse(
        id=id,
        response=json.dumps({"id": id, "output": output, "padding": " " * padding}).encode(),
        items=json.dumps(own).encode(),
        item_ids=(f"in-{id}", f"out-{id}"),
        previous=previous,
    )


def names(found: list[dict[str, Any]]) -> list[str]:
    return [item["id"] for item in found]


def big() -> ResponseStore:
    return ResponseStore(entries=100, size_bytes=1 << 20)


def test_a_context_is_all_that_came_before() -> None:
    store = big()
    a = node("a")
    store.put(ME, a)
    b = node("b", previous=a)
    store.put(ME, b)
    store.put(ME, node("c", previous=b))
    assert names(store.get(ME, "c").context()) == ["in-a", "out-a", "in-b", "out-b", "in-c"]
    store.delete(ME, "a")
    store.delete(ME, "b")
    assert names(store.get(ME, "c").context()) == ["in-a", "out-a", "in-b", "out-b", "in-c"]
    assert store.held_bytes > 3 * NODE_BYTES
    store.delete(ME, "c")
    assert (len(store), store.held_bytes) == (0, 0)


def test_what_is_deleted_is_unknown() -> None:
    store = big()
    store.put(ME, node("a"))
    store.delete(ME, "a")
    for look in (store.get, store.delete):
        with pytest.raises(NotFound):
            look(ME, "a")
    with pytest.raises(NotFound):
        store.item(ME, "out-a", where="input[0].id")
    with pytest.raises(RequestError) as caught:
        store.previous(ME, "a")
    assert (caught.value.field, caught.value.code) == ("previous_response_id", "previous_response_not_found")
    assert not isinstance(caught.value, NotFound)


def test_nobody_sees_what_is_another_ones() -> None:
    store = big()
    store.put(ME, node("a"))
    for look in (store.get, store.previous, store.delete):
        with pytest.raises(RequestError):
            look(OTHER, "a")
    with pytest.raises(NotFound):
        store.item(OTHER, "out-a", where="x")
    assert store.item(ME, "out-a", where="x") == {"type": "message", "id": "out-a"}
    assert store.get(ME, "a").id == "a"


def test_the_least_recently_used_goes_first() -> None:
    store = ResponseStore(entries=2, size_bytes=1 << 20)
    store.put(ME, node("a"))
    store.put(ME, node("b"))
    store.get(ME, "a")
    store.put(ME, node("c"))
    assert store.get(ME, "a").id == "a"
    with pytest.raises(NotFound):
        store.get(ME, "b")


def test_one_that_is_too_large_pushes_nobody_out() -> None:
    store = ResponseStore(entries=10, size_bytes=10_000)
    store.put(ME, node("a"))
    store.put(ME, node("b", padding=20_000))
    assert store.get(ME, "a").id == "a"
    with pytest.raises(NotFound):
        store.get(ME, "b")


def test_a_response_that_was_let_go_counts_again_with_its_follower() -> None:
    store = big()
    a = node("a")
    store.put(ME, a)
    before = store.held_bytes
    store.delete(ME, "a")
    b = node("b", previous=a)
    store.put(ME, b)
    assert store.held_bytes == before + b.size_bytes
    store.delete(ME, "b")
    assert store.held_bytes == 0


def test_a_budget_of_nothing_keeps_nothing() -> None:
    for store in (ResponseStore(entries=0, size_bytes=1 << 20), ResponseStore(entries=5, size_bytes=0)):
        store.put(ME, node("a"))
        assert (len(store), store.held_bytes) == (0, 0)


@given(
    st.integers(0, 6),
    st.integers(0, 12_000),
    st.lists(st.tuples(st.sampled_from("pfdg"), st.integers(0, 9), st.integers(0, 3000)), max_size=40),
)
def test_the_count_is_what_is_held_and_never_over_the_bounds(
    entries: int, size_bytes: int, steps: list[tuple[str, int, int]]
) -> None:
    """p: put, f: put one that goes on from another, d: delete, g: get."""
    store = ResponseStore(entries=entries, size_bytes=size_bytes)
    made: list[StoredResponse] = []
    for kind, pick, padding in steps:
        if kind in "pf" or not made:
            previous = made[pick % len(made)] if kind == "f" and made else None
            made.append(node(str(len(made)), previous=previous, padding=padding))
            store.put(ME, made[-1])
        else:
            named = made[pick % len(made)]
            if named.known:
                (store.delete if kind == "d" else store.get)(ME, named.id)
        held: dict[int, StoredResponse] = {}
        for each in made:
            current: StoredResponse | None = each if each.known else None
            while current is not None:
                held[id(current)] = current
                current = current.previous
        assert store.held_bytes == sum(each.size_bytes for each in held.values()) <= size_bytes
        assert len(store) == sum(each.known for each in made) <= entries
