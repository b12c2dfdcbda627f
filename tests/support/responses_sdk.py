"""The official client's types of the Responses protocol, taken strictly."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

EXTENSIONS = {"timings", "store", "status"}
"""Members that some of the client's types lack: ours, a response's ``store`` and a custom call's ``status``."""

T = TypeVar("T")

_RESPONSES = TypeAdapter(Response)
_LISTS = TypeAdapter(ResponseItemList)
_EVENTS: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def check_response(body: dict[str, Any]) -> Response:
    """``body`` with every member that its type asks for and none that it does not know."""
    return _known(_RESPONSES.validate_python(body))


def check_items(body: dict[str, Any]) -> ResponseItemList:
    return _known(_LISTS.validate_python(body))


def check_event(body: dict[str, Any]) -> ResponseStreamEvent:
    return _known(_EVENTS.validate_python(body))


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each checked against its type, its name and its number."""
    events: list[dict[str, Any]] = []
    for block in stream.decode().split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        check_event(event)
        events.append(event)
    return events


def _known(value: T) -> T:
    for member in _models(value):
        assert set(member.model_extra or {}) <= EXTENSIONS, member
    return value


def _models(value: Any) -> list[BaseModel]:
    if isinstance(value, BaseModel):
        return [value, *(m for name in type(value).model_fields for m in _models(getattr(value, name)))]
    if isinstance(value, list):
        return [m for member in value for m in _models(member)]
    return []
