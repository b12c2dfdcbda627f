"""JSON bodies: positions of malformed ones, field names of wrong types."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from anchorline.api.decode import decode_body
from anchorline.errors import RequestError


class Inner(msgspec.Struct):
    flag: bool | None = None


class Body(msgspec.Struct):
    messages: list[dict[str, Any]]
    name: str | None = None
    stop: str | list[str] | None = None
    options: Inner | None = None
    bias: dict[str, float] | None = None


@pytest.mark.parametrize(
    ("raw", "field", "message"),
    [
        (b'{"messages": [3]}', "messages[0]", "messages[0] must be an object, not an integer"),
        (b'{"messages": [], "name": 1}', "name", "name must be a string, not an integer"),
        (b'{"messages": [], "stop": [1]}', "stop[0]", "stop[0] must be a string, not an integer"),
        (b'{"messages": [], "stop": true}', "stop", "stop must be a string or an array, not a boolean"),
        (b'{"messages": [], "options": {"flag": 1}}', "options.flag", "options.flag must be a boolean, not an integer"),
        (b'{"messages": [], "bias": {"1": "x"}}', "bias", "bias must be a number, not a string"),
        (b'{"messages": null}', "messages", "messages must be an array, not null"),
        (b"{}", "messages", "messages is required"),
        (b"[]", None, "the body must be an object, not an array"),
        (b'{"messages": [], "bias": {"1": 1e999}}', "bias", "bias: number out of range"),
    ],
)
def test_a_wrong_type_names_the_field(raw: bytes, field: str | None, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_body(raw, Body)
    assert caught.value.field == field
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("raw", "position"),
    [
        (b'{"messages": [}', 14),
        (b'{"messages": []} x', 18),
        (b'{"messages": NaN}', 13),
        (b'{"messages": Infinity}', 13),
        (b'{"messages": ', 13),
        (b"", 0),
        (b'{"messages": [{"a": "\xff"}]}', 21),
        (b"\xef\xbb\xbf{}", 0),
    ],
)
def test_malformed_json_says_where(raw: bytes, position: int) -> None:
    with pytest.raises(RequestError) as caught:
        decode_body(raw, Body)
    assert caught.value.code == "invalid_json"
    assert caught.value.field is None
    assert f"(byte {position})" in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages": [{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"messages": [], "bias": {"1": ' + b"9" * 10_000 + b"}}",
        b'{"messages": [{"\\ud800": 1}]}',
    ],
    ids=["deep", "digits", "surrogate"],
)
def test_hostile_json_is_a_request_error(raw: bytes) -> None:
    with pytest.raises(RequestError):
        decode_body(raw, Body)
