"""JSON bytes to a typed body; every failure becomes a RequestError that names the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from anchorline.errors import RequestError

T = TypeVar("T")

_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`(?: - at `\$(?P<path>[^`]*)`)?$")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`(?: - at `\$(?P<path>[^`]*)`)?$")
_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")

_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}


def decode_body(raw: bytes, kind: type[T]) -> T:
    """Decode a request body. Raises RequestError with the position (malformed) or the field (wrong type)."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply", code="invalid_json") from error
    except msgspec.DecodeError as error:
        raise RequestError(_malformed(raw, str(error)), code="invalid_json") from error


def json_type(value: object) -> str:
    """The JSON name of a decoded value's type, for messages: ``a string``."""
    if value is None:
        return "null"
    for python, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str"), (dict, "object")):
        if isinstance(value, python):
            return _NAMES[name]
    return _NAMES["array"]


def _malformed(raw: bytes, reason: str) -> str:
    if "(byte " in reason:
        where = ""
    elif "UTF-8" in reason:
        where = f" (byte {_first_bad_byte(raw)})"
    else:
        where = f" (byte {len(raw)})"
    return f"the body is not valid JSON: {reason.removeprefix('JSON is malformed: ')}{where}"


def _first_bad_byte(raw: bytes) -> int:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(raw)


def _wrong_type(message: str) -> RequestError:
    if match := _EXPECTED.match(message):
        field = _field(match["path"])
        wanted = _alternatives(match["wanted"])
        return RequestError(
            f"{field or 'the body'} must be {wanted}, not {_NAMES.get(match['got'], match['got'])}",
            field=field,
            code="invalid_type",
        )
    if match := _MISSING.match(message):
        parent = _field(match["path"])
        field = f"{parent}.{match['name']}" if parent else match["name"]
        return RequestError(f"{field} is required", field=field, code="missing_required_parameter")
    found = _PATH.search(message)
    field = _field(found["path"]) if found else None
    text = _PATH.sub("", message)
    return RequestError(f"{field or 'the body'}: {text[:1].lower()}{text[1:]}", field=field)


def _field(path: str | None) -> str | None:
    """``.messages[2].role`` as ``messages[2].role``; a map's value (``[...]``) names the map."""
    if not path:
        return None
    return path.split("[...]", 1)[0].removeprefix(".") or None


def _alternatives(wanted: str) -> str:
    """``int | float | null`` as words; null is left out, since it always means the default."""
    kinds = [kind for kind in wanted.split(" | ") if kind != "null"]
    if "float" in kinds and "int" in kinds:
        kinds.remove("int")
    return " or ".join(_NAMES.get(kind, kind) for kind in kinds)
