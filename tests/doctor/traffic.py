"""A clean agent conversation, request by request, and one way of planting each fault in it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anchorline.bench.trace import CHAT_PATH, Trace, TraceRequest
from anchorline.doctor.comparison import TOOLS, Kind
from anchorline.doctor.diagnosis import Diagnosis, diagnose
from anchorline.doctor.layout import ToolOrder

Body = dict[str, Any]

SYSTEM = (
    "You are a careful agent.\n"
    "Read before you write, and run the tests afterwards.\n"
    "The project lies in /srv/project and is written in Python.\n"
)
QUESTIONS = ("Why does the parser fail?", "Mend it, please.", "Now write a test for it.")
THOUGHTS = "The file has to be read before anything else is done with it. "


def tool(name: str) -> Body:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}}
    function = {"name": name, "description": f"Does what {name} says.", "parameters": parameters}
    return {"type": "function", "function": function}


def conversation(*questions: str, system: str = SYSTEM) -> list[Body]:
    """The requests of one conversation: each question, then the result of the call that answers it.

    Messages are: system, then for each question user, assistant (calls), tool, assistant (answers).
    """
    tools = [tool(name) for name in ("read_file", "write_file", "run_tests")]
    messages: list[Body] = [{"role": "system", "content": system}]
    bodies: list[Body] = []
    for number, question in enumerate(questions):
        messages.append({"role": "user", "content": question})
        bodies.append({"model": "m", "tools": tools, "messages": list(messages)})
        arguments = json.dumps({"path": f"/srv/project/{number}.py", "lines": 40})
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        thoughts = f"{THOUGHTS}Round {'abc'[number % 3]}."
        messages.append(
            {"role": "assistant", "content": "Let me see.", "reasoning_content": thoughts, "tool_calls": [call]}
        )
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"def parse_{number}(): …\n" * 9})
        bodies.append({"model": "m", "tools": tools, "messages": list(messages)})
        messages.append({"role": "assistant", "content": f"Answer to: {question}"})
    return [copy.deepcopy(body) for body in bodies]


def clean() -> list[Body]:
    return conversation(*QUESTIONS)


def trace_of(bodies: Sequence[Body], *, path: str = CHAT_PATH, name: str = "synthetic") -> Trace:
    requests = [
        TraceRequest(path=path, body=body, arrival_seconds=float(place), end_seconds=place + 0.5)
        for place, body in enumerate(bodies)
    ]
    return Trace(name=name, requests=tuple(requests))


def diagnosis_of(bodies: Sequence[Body], *, path: str = CHAT_PATH, order: ToolOrder = ToolOrder.FIRST) -> Diagnosis:
    """Findings with a token for each character."""
    return diagnose(trace_of(bodies, path=path), count_tokens=len, order=order)


@dataclass(frozen=True, slots=True)
class Fault:
    """A way of spoiling clean requests in place, and where it has to be found first."""

    kind: Kind
    plant: Callable[[list[Body]], None]
    request: int
    """The first request that pays for it."""
    part: int
    byte: int = 0
    field: str = "content"

    def __str__(self) -> str:
        return self.plant.__name__


def add_line(content: str, line: str) -> str:
    """``content`` with ``line`` as its second."""
    first, rest = content.split("\n", 1)
    return f"{first}\n{line}\n{rest}"


RANDOM_IDS = ("c39f0a71d2", "07bb41e6f5", "9d2e8c330a", "41f7a0c65b", "e80d15b9a4", "5ac2f9771e")
SECOND_LINE = SYSTEM.index("\n") + 1


def clock_in_system(bodies: list[Body]) -> None:
    for place, body in enumerate(bodies):
        message = body["messages"][0]
        message["content"] = add_line(message["content"], f"It is 14:0{place}:11 now.")


def date_words_in_system(bodies: list[Body]) -> None:
    for place, body in enumerate(bodies):
        message = body["messages"][0]
        day = ("Mon Nov 30 2026", "Tue Dec 1 2026")[place >= 3]
        message["content"] = add_line(message["content"], f"Today: {day}.")


def counter_in_system(bodies: list[Body]) -> None:
    for place, body in enumerate(bodies):
        message = body["messages"][0]
        message["content"] = add_line(message["content"], f"{place + 1} requests so far.")


def id_in_system(bodies: list[Body]) -> None:
    for place, body in enumerate(bodies):
        message = body["messages"][0]
        message["content"] = add_line(message["content"], f"Request id: {RANDOM_IDS[place]}.")


def memory_in_system(bodies: list[Body]) -> None:
    for body in bodies[3:]:
        message = body["messages"][0]
        message["content"] = add_line(message["content"], "Remember: the parser is slow on purpose.")


def billing_header_in_chat(bodies: list[Body]) -> None:
    for place, body in enumerate(bodies):
        message = body["messages"][0]
        message["content"] = f"x-anthropic-billing-header: cch=ab{place}cd;\n" + message["content"]


def tools_reordered(bodies: list[Body]) -> None:
    for body in bodies[3:]:
        body["tools"] = body["tools"][::-1]


def tool_keys_reordered(bodies: list[Body]) -> None:
    for body in bodies[3:]:
        body["tools"][1] = dict(reversed(body["tools"][1].items()))


def tools_flap(bodies: list[Body]) -> None:
    for body in bodies[1::2]:
        del body["tools"][2]


def clock_in_a_tool(bodies: list[Body]) -> None:
    for place, body in enumerate(bodies):
        (function,) = (each["function"] for each in body["tools"] if each["function"]["name"] == "read_file")
        function["description"] = f"09:3{place} is the time."


def reminder_message_moves(bodies: list[Body]) -> None:
    for body in bodies:
        body["messages"].append({"role": "user", "content": "<reminder>Keep the answers short.</reminder>"})


def clock_in_a_moving_message(bodies: list[Body]) -> None:
    for place, body in enumerate(bodies):
        body["messages"].append({"role": "user", "content": f"<reminder>It is 14:0{place} already.</reminder>"})


def reminder_before_the_question(bodies: list[Body]) -> None:
    for body in bodies:
        questions = [place for place, message in enumerate(body["messages"]) if message["role"] == "user"]
        body["messages"].insert(questions[-1], {"role": "user", "content": "<reminder>Be brief, please.</reminder>"})


def reminder_text_moves(bodies: list[Body]) -> None:
    for body in bodies:
        last = [message for message in body["messages"] if message["role"] == "user"][-1]
        last["content"] += "\n<reminder>Keep the answers short.</reminder>"


def history_rewritten(bodies: list[Body]) -> None:
    for body in bodies[3:]:
        body["messages"][4]["content"] = "The first question was answered in a few words."


def message_inserted(bodies: list[Body]) -> None:
    for body in bodies[3:]:
        body["messages"].insert(2, {"role": "user", "content": "A note that was not there before."})


def note_in_front(bodies: list[Body]) -> None:
    for body in bodies[1:]:
        body["messages"].insert(1, {"role": "user", "content": "A note that was not there before."})


def examples_in_front(bodies: list[Body]) -> None:
    for body in bodies[2:]:
        example = [{"role": "user", "content": "For example?"}, {"role": "assistant", "content": "Like this."}]
        body["messages"][1:1] = example


def compaction(bodies: list[Body]) -> None:
    for body in bodies[4:]:
        body["messages"][1:5] = [{"role": "user", "content": "What was said so far, in short."}]


def results_cleared(bodies: list[Body]) -> None:
    for body in bodies[3:]:
        body["messages"][3]["content"] = "[cleared]"


def messages_taken_out(bodies: list[Body]) -> None:
    for body in bodies[3:]:
        del body["messages"][2:4]


def arguments_reserialised(bodies: list[Body]) -> None:
    for body in bodies[3:]:
        function = body["messages"][2]["tool_calls"][0]["function"]
        function["arguments"] = json.dumps(json.loads(function["arguments"]), sort_keys=True, separators=(",", ":"))


def reasoning_dropped(bodies: list[Body]) -> None:
    for body in bodies[2:]:
        del body["messages"][2]["reasoning_content"]


def reasoning_dropped_from_text(bodies: list[Body]) -> None:
    for place, body in enumerate(bodies):
        if place >= 1:
            message = body["messages"][2]
            thoughts = message.pop("reasoning_content")
            if place == 1:
                message["content"] = f"<think>\n{thoughts}\n</think>\n\n{message['content']}"


def side_call(bodies: list[Body]) -> None:
    messages = [
        {"role": "system", "content": "Name this conversation in five words, without quotation marks."},
        {"role": "user", "content": bodies[0]["messages"][1]["content"]},
    ]
    bodies.insert(1, {"model": "m", "messages": messages})


DESCRIBED = '{"type":"function","function":{"name":"read_file","description":"'

FAULTS = (
    Fault(Kind.CLOCK, clock_in_system, 1, 0, SECOND_LINE + len("It is ")),
    Fault(Kind.CLOCK, date_words_in_system, 3, 0, SECOND_LINE + len("Today: ")),
    Fault(Kind.COUNTER, counter_in_system, 1, 0, SECOND_LINE),
    Fault(Kind.CHANGING_ID, id_in_system, 1, 0, SECOND_LINE + len("Request id: ")),
    Fault(Kind.SYSTEM_CHANGED, memory_in_system, 3, 0, SECOND_LINE),
    Fault(Kind.BILLING_HEADER, billing_header_in_chat, 1, 0, len("x-anthropic-billing-header: cch=")),
    Fault(Kind.TOOLS_REORDERED, tools_reordered, 3, TOOLS, field="tools"),
    Fault(Kind.TOOLS_REORDERED, tool_keys_reordered, 3, TOOLS, len('{"'), field="write_file"),
    Fault(Kind.TOOLS_CHANGED, tools_flap, 1, TOOLS, field="tools"),
    Fault(Kind.CLOCK, clock_in_a_tool, 1, TOOLS, len(DESCRIBED), field="read_file"),
    Fault(Kind.REMINDER_MOVED, reminder_message_moves, 1, 2),
    Fault(Kind.REMINDER_MOVED, clock_in_a_moving_message, 1, 2),
    Fault(Kind.REMINDER_MOVED, reminder_before_the_question, 2, 1),
    Fault(Kind.REMINDER_MOVED, reminder_text_moves, 2, 1, len(QUESTIONS[0])),
    Fault(Kind.HISTORY_REWRITTEN, history_rewritten, 3, 4),
    Fault(Kind.HISTORY_REWRITTEN, message_inserted, 3, 2),
    Fault(Kind.HISTORY_REWRITTEN, note_in_front, 1, 1),
    Fault(Kind.HISTORY_REWRITTEN, examples_in_front, 2, 1),
    Fault(Kind.HISTORY_REWRITTEN, compaction, 4, 1),
    Fault(Kind.HISTORY_PRUNED, results_cleared, 3, 3),
    Fault(Kind.HISTORY_PRUNED, messages_taken_out, 3, 2),
    Fault(Kind.ARGUMENTS_RESERIALISED, arguments_reserialised, 3, 2, len('{"'), field="arguments"),
    Fault(Kind.REASONING_DROPPED, reasoning_dropped, 2, 2, field="reasoning"),
    Fault(Kind.REASONING_DROPPED, reasoning_dropped_from_text, 2, 2, field="reasoning"),
    Fault(Kind.SIDE_CALL, side_call, 1, 0),
)
