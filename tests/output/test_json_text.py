"""JSON passed on as it comes: verbatim where valid, mended where it is clear, closed where it breaks off."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.output.formats.json_text import DEPTH_LIMIT, NUMBER_LIMIT, JsonReader, as_json, unquote
from anchorline.output.formats.source import Broken

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
layouts = st.fixed_dictionaries({"indent": st.sampled_from([None, 0, 2]), "ensure_ascii": st.booleans()})


@settings(max_examples=200, deadline=None)
@given(value=json_values, layout=layouts)
def test_valid_json_is_passed_on_verbatim(value: Any, layout: dict[str, Any]) -> None:
    text = json.dumps(value, **layout)
    assert as_json(text) == text


@settings(max_examples=200, deadline=None)
@given(value=json_values, layout=layouts, cut=st.integers(0, 200), pieces=st.integers(1, 7))
def test_whatever_breaks_off_can_be_closed(value: Any, layout: dict[str, Any], cut: int, pieces: int) -> None:
    text = json.dumps([value], **layout)
    cut = max(1, cut % (len(text) + 1))
    parts: list[str] = []
    reader = JsonReader(parts.append)
    for start in range(0, cut, pieces):
        reader.feed(text[start : min(start + pieces, cut)])
    passed = "".join(parts)
    assert text.startswith(passed)
    assert reader.done == (cut == len(text))
    if not reader.done:
        reader.close()
    closed = "".join(parts)
    assert closed.startswith(passed)
    json.loads(closed)


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="{}[]\",:\\ \nau1-.e\x01tr'é", max_size=30), size=st.integers(1, 5))
def test_garbage_never_makes_invalid_json(text: str, size: int) -> None:
    whole: list[str] = []
    split: list[str] = []
    for parts, step in ((whole, len(text) or 1), (split, size)):
        reader = JsonReader(parts.append)
        try:
            for start in range(0, len(text), step):
                if reader.done:
                    break
                reader.feed(text[start : start + step])
        except Broken:
            pass
        if not reader.done:
            reader.close()
        json.loads("".join(parts))
    assert whole == [] or "".join(whole) == "".join(split)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"a": "x\ny\t"}', {"a": "x\ny\t"}),
        (r'{"a": "\d+\'"}', {"a": r"\d+'"}),
        (r'{"a": "\u12"}', {"a": r"\u12"}),
        ('{"a": [1, 2,], }', {"a": [1, 2]}),
        ('{"a": True, "b": False, "c": None}', {"a": True, "b": False, "c": None}),
    ],
)
def test_what_models_get_wrong_is_mended(written: str, meant: object) -> None:
    mended = as_json(written)
    assert mended is not None
    assert json.loads(mended) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{1: 2}",
        '{"a" 1}',
        '{"a": }',
        "[1 2]",
        "[1}",
        "01",
        "1.",
        "+1",
        "nul",
        "NaN",
        "1 2",
        "'a'",
        "{,}",
        "[,]",
    ],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    assert as_json(text) is None


def test_limits() -> None:
    assert as_json("[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT)
    assert as_json("[" * (DEPTH_LIMIT + 1) + "]" * (DEPTH_LIMIT + 1)) is None
    assert as_json("1" * NUMBER_LIMIT)
    assert as_json("1" * (NUMBER_LIMIT + 1)) is None


def test_reading_stops_behind_the_value() -> None:
    reader = JsonReader(lambda _: None)
    assert reader.feed('xx{"a": 1}}', 2) == 10
    assert reader.done


def test_the_place_of_a_fault_is_known() -> None:
    parts: list[str] = []
    reader = JsonReader(parts.append)
    with pytest.raises(Broken, match="where a colon"):
        reader.feed('{"a"; 1}')
    assert (reader.position, parts) == (4, ['{"a"'])


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert unquote(r'"\ud83d\ude00 \ud83d"') == "😀 \ufffd"
