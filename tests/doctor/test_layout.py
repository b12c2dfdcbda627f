"""Where templates write the tools."""

from __future__ import annotations

import pytest

from anchorline.doctor.layout import ToolOrder, tool_order
from tests.prompt.support import toy_builder

SYSTEM_FIRST = """{{ messages[0].content if messages[0].role == 'system' else '' }}
{%- if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}
{%- for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}"""
BEFORE_LAST = """{%- for m in messages %}
{%- if tools and loop.last %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}"""

SYSTEM_WITH_LAST = """{%- for m in messages %}{% if m.role != 'system' %}
{%- if tools and loop.last %}[TOOLS]{{ tools | tojson }}[/TOOLS]{{ messages[0].content }}{% endif %}
{{- '<|im_start|>' + m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}"""


@pytest.mark.parametrize(
    ("source", "order"),
    [
        (None, ToolOrder.FIRST),
        (SYSTEM_FIRST, ToolOrder.BEHIND_SYSTEM),
        (BEFORE_LAST, ToolOrder.BEFORE_LAST_QUESTION),
        (SYSTEM_WITH_LAST, ToolOrder.BEFORE_LAST_QUESTION),
    ],
)
def test_the_order_is_read_off_a_render(source: str | None, order: ToolOrder) -> None:
    assert tool_order(toy_builder(source).render) is order
