"""What a perfect prefix cache would still have to prefill.

A trie holds the ids of every prompt sent and of every prompt with its reply; a prompt costs
max(1, tokens - longest prefix in the trie).
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
_BLOCK = 4096
"""Tokens compared at once: large enough to be quick, small enough to stop soon after a difference."""


def as_tokens(ids: Sequence[int] | Tokens) -> Tokens:
    return np.ascontiguousarray(ids, dtype=np.int32)


def common_prefix(left: Tokens, right: Tokens) -> int:
    """How many tokens ``left`` and ``right`` share from their start."""
    shared = min(left.size, right.size)
    for start in range(0, shared, _BLOCK):
        end = min(start + _BLOCK, shared)
        differs = left[start:end] != right[start:end]
        if differs.any():
            return start + int(differs.argmax())
    return int(shared)


class _Node:
    """``edge`` leads here from the parent; a child is found by the first token of its edge."""

    __slots__ = ("children", "edge")

    def __init__(self, edge: Tokens) -> None:
        self.edge = edge
        self.children: dict[int, _Node] = {}


class PrefixTrie:
    """A radix trie over token ids; edges are views into the arrays that were added."""

    def __init__(self) -> None:
        self._root = _Node(as_tokens(()))

    def longest_prefix(self, tokens: Tokens) -> int:
        """How many leading tokens of ``tokens`` some added sequence starts with."""
        return self._walk(tokens)[0]

    def add(self, tokens: Tokens) -> None:
        """Add a sequence; the array must not change afterwards."""
        matched, node, inside = self._walk(tokens)
        if inside < node.edge.size:
            # node:  |--- edge ---|  becomes  |- upper -|- lower -|
            lower = _Node(node.edge[inside:])
            lower.children = node.children
            node.edge = node.edge[:inside]
            node.children = {int(lower.edge[0]): lower}
        if matched < tokens.size:
            node.children[int(tokens[matched])] = _Node(tokens[matched:])

    def _walk(self, tokens: Tokens) -> tuple[int, _Node, int]:
        """(matched tokens, the node whose edge the match ends on, position in that edge)."""
        node, matched = self._root, 0
        while matched < tokens.size:
            child = node.children.get(int(tokens[matched]))
            if child is None:
                break
            inside = common_prefix(child.edge, tokens[matched:])
            matched += inside
            node = child
            if inside < child.edge.size:
                return matched, child, inside
        return matched, node, int(node.edge.size)


class Oracle:
    """Keeps the trie of one replay and the sum of its costs; any token may be resumed at."""

    def __init__(self) -> None:
        self._trie = PrefixTrie()
        self.total_tokens = 0

    def cost(self, prompt: Tokens, cuts: Sequence[int] = ()) -> int:
        """Tokens of ``prompt`` that nothing earlier contained, at least 1; adds the prompt and its cost."""
        cost = max(1, int(prompt.size) - self._trie.longest_prefix(prompt))
        self._trie.add(prompt)
        self.total_tokens += cost
        return cost

    def reply(self, prompt: Tokens, reply: Tokens) -> None:
        """Note that ``prompt`` was continued with ``reply``."""
        self._trie.add(np.concatenate((prompt, reply)))


class CutOracle:
    """The oracle of a model that resumes only at cuts: where earlier prompts ended a message or their head."""

    def __init__(self) -> None:
        self._earlier: list[tuple[Tokens, Tokens]] = []
        self.total_tokens = 0

    def cost(self, prompt: Tokens, cuts: Sequence[int]) -> int:
        """Tokens of ``prompt`` behind the last cut of an earlier prompt that agrees with it so far, at least 1."""
        resume = max((self._resume(prompt, *earlier) for earlier in self._earlier), default=0)
        self._earlier.append((prompt, as_tokens(cuts)))
        cost = max(1, int(prompt.size) - resume)
        self.total_tokens += cost
        return cost

    @staticmethod
    def _resume(prompt: Tokens, earlier: Tokens, cuts: Tokens) -> int:
        agreed = min(common_prefix(prompt, earlier), int(prompt.size) - 1)
        usable = cuts[cuts <= agreed]
        return int(usable.max()) if usable.size else 0

    def reply(self, prompt: Tokens, reply: Tokens) -> None:
        """Replies end no message that comes back as it was."""


class SharedOracle:
    """The oracle of calls that several threads make; with ``at_cuts`` one that resumes only at cuts.

    It learns a prompt when it is sent and the reply when it has ended. Of calls that overlap it gives what a cache
    would prefill that shares even what is only just being computed: a lower bound.
    """

    def __init__(self, *, at_cuts: bool) -> None:
        self._oracle = CutOracle() if at_cuts else Oracle()
        self._lock = Lock()

    def cost(self, prompt: Tokens, cuts: Sequence[int]) -> int:
        """As of ``Oracle``; call it before ``prompt`` is sent."""
        with self._lock:
            return self._oracle.cost(prompt, cuts)

    def reply(self, prompt: Tokens, reply: Tokens) -> None:
        """As of ``Oracle``; call it when the reply has ended."""
        with self._lock:
            self._oracle.reply(prompt, reply)
