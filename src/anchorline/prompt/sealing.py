"""What the next request will begin with, guessed from a turn that was just generated.

    live      …assistant\\n  <think>…</think> the reply
    one       …assistant\\n  the reply <|im_end|>\\n<|im_start|>user\\n ┊ alpha
    other     …assistant\\n  the reply <|im_end|>\\n<|im_start|>user\\n ┊ 0
                                                                     ^ up to here it can be prefilled ahead

A turn with calls is followed by their results, any other by the user. The turn is written as any client's copy of
it would be, since the memo of turns puts back what clients drop.
"""

from __future__ import annotations

from anchorline.output.meaning import Said
from anchorline.prompt.cuts import FIRST_MESSAGES
from anchorline.prompt.messages import Message


def turn_message(said: Said) -> Message:
    """A generated turn as a client sends it back."""
    message: Message = {"role": "assistant", "content": said.content}
    if said.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in said.calls
        ]
    return message


def continuations(said: Said) -> tuple[list[Message], list[Message]]:
    """Two sets of messages that may follow the turn, which differ from their first character on."""
    one, other = (_continuation(said, text) for text in FIRST_MESSAGES)
    return one, other


def _continuation(said: Said, text: str) -> list[Message]:
    if not said.calls:
        return [{"role": "user", "content": text}]
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call in said.calls]
