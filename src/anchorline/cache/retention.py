"""Which states of a conversation are worth their bytes: those of its head and its newest cuts.

Rows and one later state restore a prefix, so an old state only serves an edit in mid-history. Of
the states on a path stay

* the head's and those inside of it (a head that changes near its end resumes there), pinned ones, and
  those where another history branches off,
* all behind the start of the newest user message, so that each of its tool rounds can be edited, and the newest
  before it: where the call before ended, and others that go on beside this one begin,
* the newest few whatever they belong to.

The state at the end of a reply that came back re-rendered serves nobody once the conversation has
gone on beside it.
"""

from __future__ import annotations

from anchorline.cache.prompt import Prompt
from anchorline.cache.segment import Absence, Segment
from anchorline.cache.stored import StoredIndex
from anchorline.cache.tree import SegmentTree

NEWEST_STATES = 3
"""States kept on a path behind the head."""


def thin_states(tree: SegmentTree, index: StoredIndex, path: list[Segment], prompt: Prompt) -> None:
    """Free the states on ``path``, the segments of one history, that are not worth keeping; in either tier."""
    for node in path:
        _drop_abandoned_reply(tree, index, node, prompt.tenant, on_path=path)
    head = prompt.head_position or 0
    stateful = [node for node in path if node.has_reachable_state and node.end > head]
    turn_start = prompt.turn_start if prompt.turn_start is not None else len(prompt)
    earlier = [node for node in stateful if node.end < turn_start]
    kept = {*stateful[-NEWEST_STATES:], *earlier[-1:]}
    for node in earlier:
        branches = sum(child.rows is not None for child in node.offspring())
        if node not in kept and node.pins == 0 and branches < 2:
            index.discard_state(node)
            if node.state is not None:
                tree.drop_state(node)


def _drop_abandoned_reply(
    tree: SegmentTree, index: StoredIndex, node: Segment, tenant: str, *, on_path: list[Segment]
) -> None:
    """Drop the childless ends of the tenant's replies that part from the path behind ``node``."""
    for child in list(node.offspring()):
        if child.owner != tenant:
            continue
        ends_a_reply = child.state is not None and child.state.ends_reply and not child.children
        if ends_a_reply and child.is_droppable and child not in on_path:
            index.discard_state(child)
            index.discard_rows(child, may_go={child}.__contains__)
            tree.drop(child, Absence.EVICTED)
