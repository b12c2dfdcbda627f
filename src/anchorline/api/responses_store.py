"""Responses that clients may come back to: in memory, bounded in number and bytes, each key's own.

A response keeps only the input that was new with it, and the response before it is kept for as long as one
that goes on from it::

    resp_1  [input][output]
    resp_2      └── [input][output]          the context of resp_3:
    resp_3              └── [input][output]  all inputs and outputs up to its own input

Deleting or evicting ``resp_1`` makes it unknown at once; its bytes go, and stop counting, with ``resp_3``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from anchorline.errors import NotFound, RequestError

NODE_BYTES = 1024
"""What a response is taken to cost besides its text."""


class _Output(msgspec.Struct):
    output: list[dict[str, Any]]


@dataclass(slots=True, kw_only=True, eq=False)
class StoredResponse:
    """One response with its own input, both as JSON, and the ids of all their items."""

    id: str
    response: bytes
    items: bytes
    previous: StoredResponse | None
    item_ids: tuple[str, ...]
    followers: int = 0
    """Responses that go on from this one and are held."""
    known: bool = False
    held: bool = False
    """Counted in the store's bytes: known, or needed by one that is held."""

    @property
    def size_bytes(self) -> int:
        return NODE_BYTES + len(self.response) + len(self.items) + 2 * sum(map(len, self.item_ids))

    def own_items(self) -> list[dict[str, Any]]:
        """The input that was new with this response."""
        return msgspec.json.decode(self.items, type=list[dict[str, Any]])

    def output(self) -> list[dict[str, Any]]:
        return msgspec.json.decode(self.response, type=_Output).output

    def context(self) -> list[dict[str, Any]]:
        """All input of this response, the remembered first."""
        chain = list(_chain(self))
        items: list[dict[str, Any]] = []
        for node in reversed(chain[1:]):
            items += node.own_items() + node.output()
        return items + self.own_items()


class ResponseStore:
    """Thread-safe. The least recently used go first; a budget of nothing keeps nothing."""

    def __init__(self, *, entries: int, size_bytes: int) -> None:
        self._entries_limit = entries
        self._bytes_limit = size_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._items: dict[tuple[str, str], StoredResponse] = {}
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def __len__(self) -> int:
        return len(self._known)

    def put(self, tenant: str, node: StoredResponse) -> None:
        """Keep a response; others may have to go for it. One that is too large with all before it is not kept."""
        if sum(each.size_bytes for each in _chain(node)) > self._bytes_limit:
            return
        with self._lock:
            node.known = True
            self._hold(node)
            self._known[tenant, node.id] = node
            for item_id in node.item_ids:
                self._items[tenant, item_id] = node
            while self._known and (len(self._known) > self._entries_limit or self._held_bytes > self._bytes_limit):
                self._forget(next(iter(self._known)))

    def get(self, tenant: str, id: str) -> StoredResponse:
        """Raises NotFound."""
        with self._lock:
            node = self._known.get((tenant, id))
            if node is None:
                raise NotFound(f"Response with id '{id[:200]}' not found.", field="id")
            self._known.move_to_end((tenant, id))
            return node

    def previous(self, tenant: str, id: str) -> StoredResponse:
        """The response that a request goes on from. Raises RequestError as OpenAI does."""
        try:
            return self.get(tenant, id)
        except NotFound:
            raise RequestError(
                f"Previous response with id '{id[:200]}' not found.",
                field="previous_response_id",
                code="previous_response_not_found",
            ) from None

    def item(self, tenant: str, id: str, *, where: str) -> dict[str, Any]:
        """An item that a kept response has in its own input or output. Raises NotFound."""
        with self._lock:
            node = self._items.get((tenant, id))
            if node is not None:
                self._known.move_to_end((tenant, node.id))
        if node is None:
            raise NotFound(
                f"Item with id '{id[:200]}' not found. Items are not persisted when `store` is set to false.",
                field=where,
            )
        return next(item for item in node.output() + node.own_items() if item.get("id") == id)

    def delete(self, tenant: str, id: str) -> None:
        """Raises NotFound."""
        self.get(tenant, id)
        with self._lock:
            if (tenant, id) in self._known:
                self._forget((tenant, id))

    def _hold(self, node: StoredResponse) -> None:
        """Count a response, and those before it that had been let go meanwhile."""
        for each in _chain(node):
            if each.held:
                return
            each.held = True
            self._held_bytes += each.size_bytes
            if each.previous is not None:
                each.previous.followers += 1

    def _forget(self, key: tuple[str, str]) -> None:
        node = self._known.pop(key)
        node.known = False
        for item_id in node.item_ids:
            if self._items.get((key[0], item_id)) is node:
                del self._items[key[0], item_id]
        for each in _chain(node):
            if each.known or each.followers:
                return
            each.held = False
            self._held_bytes -= each.size_bytes
            if each.previous is not None:
                each.previous.followers -= 1


def _chain(node: StoredResponse) -> Iterator[StoredResponse]:
    """From a response back to the first of its conversation."""
    current: StoredResponse | None = node
    while current is not None:
        yield current
        current = current.previous
