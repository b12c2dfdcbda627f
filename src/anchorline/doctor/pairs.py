"""Two requests beside each other, part by part."""

from __future__ import annotations

from anchorline.doctor.comparison import Comparison
from anchorline.doctor.history import walk
from anchorline.doctor.requests import AgentRequest
from anchorline.doctor.system import system_differences
from anchorline.doctor.tools import tool_breaks, tools_held

NOTHING_SHARED = Comparison(breaks=(), held=(), complete=False)


def compare(old: AgentRequest, new: AgentRequest) -> Comparison:
    """What keeps the prompt of ``old`` from being restored for ``new``.

    A new conversation with other tools is another kind of call: nothing of it is a fault.
    """
    head = min(len(old.system), len(new.system))
    history = walk(old.messages[head:], new.messages[head:], first=head)
    if not history.held and not history.breaks and sorted(old.tool_names) != sorted(new.tool_names):
        return NOTHING_SHARED
    system = system_differences(old.system, new.system)
    return Comparison(
        breaks=(*tool_breaks(old.tools, new.tools), *system.breaks, *history.breaks),
        held=(*tools_held(old.tools, new.tools), *system.held, *history.held),
        complete=history.complete,
    )
