"""The fingerprint names tools exactly as they were sent."""

from __future__ import annotations

import copy

from anchorline.prompt.fingerprint import FINGERPRINT_DIGITS, tool_fingerprint
from tests.prompt.support import TOOLS


def test_equal_tools_have_one_fingerprint() -> None:
    assert tool_fingerprint(TOOLS) == tool_fingerprint(copy.deepcopy(TOOLS))
    assert len(tool_fingerprint(TOOLS)) == FINGERPRINT_DIGITS
    assert int(tool_fingerprint(TOOLS), 16) >= 0


def test_every_difference_gives_another_one() -> None:
    extra = copy.deepcopy(TOOLS)
    extra[0]["function"]["strict"] = True
    key_order = [dict(reversed(tool.items())) for tool in TOOLS]
    variants = [TOOLS, TOOLS[::-1], TOOLS[:1], extra, key_order]
    assert len({tool_fingerprint(tools) for tools in variants}) == len(variants)


def test_it_does_not_depend_on_the_process() -> None:
    assert tool_fingerprint([{"a": "é", "b": [1, 2.5, None, True]}]) == "112d71c1bec91009"  # sha256 of the compact JSON
