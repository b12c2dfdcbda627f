"""From a body to a call that the engine can take; CPU-bound, runs in a worker thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anchorline.api.chat import ChatCall, parse_chat
from anchorline.api.chat_reply import ChatWriter
from anchorline.api.completion_reply import CompletionWriter
from anchorline.api.completions import parse_completion
from anchorline.api.options import CallOptions, clamp_max_tokens
from anchorline.api.reply import ReplyHead, ReplyWriter
from anchorline.engine.request import GenerationRequest
from anchorline.errors import RequestError
from anchorline.output.parser import PlainParser, ReplyParser
from anchorline.server.state import BuiltPrompt, ServerState


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A checked request with its prompt, ready for the engine, and what becomes of its reply."""

    request: GenerationRequest
    options: CallOptions
    parser: ReplyParser
    writer: ReplyWriter


Prepare = Callable[[bytes, ServerState, float], PreparedCall]
"""(body, state, received_seconds) to a call."""


def prepare_chat(raw: bytes, state: ServerState, received_seconds: float) -> PreparedCall:
    """A chat completion."""
    call = parse_chat(raw, context=state.context)
    return prepare_chat_call(
        call, state, id=f"chatcmpl-{state.new_id()}", writer=ChatWriter, received_seconds=received_seconds
    )


def prepare_chat_call(
    call: ChatCall,
    state: ServerState,
    *,
    id: str,
    writer: Callable[[ReplyHead], ReplyWriter],
    received_seconds: float,
    field: str = "messages",
) -> PreparedCall:
    """Render a chat request of any protocol; ``field`` is its name for the messages."""
    built = state.prompts.chat(
        call.prompt.messages,
        tools=call.prompt.tools,
        add_generation_prompt=call.prompt.add_generation_prompt,
        template_kwargs=call.prompt.template_kwargs,
    )
    head = _head(state, id, built, call.options)
    request = _request(state, head, built, field=field, received_seconds=received_seconds)
    return PreparedCall(request=request, options=call.options, parser=PlainParser(), writer=writer(head))


def prepare_completion(raw: bytes, state: ServerState, received_seconds: float) -> PreparedCall:
    """A text completion."""
    call = parse_completion(raw, context=state.context)
    built = state.prompts.tokens(call.tokens) if call.tokens is not None else state.prompts.text(call.text or "")
    head = _head(state, f"cmpl-{state.new_id()}", built, call.options)
    request = _request(state, head, built, field="prompt", received_seconds=received_seconds)
    return PreparedCall(request=request, options=call.options, parser=PlainParser(), writer=CompletionWriter(head))


def _head(state: ServerState, request_id: str, built: BuiltPrompt, options: CallOptions) -> ReplyHead:
    return ReplyHead(
        id=request_id,
        created=int(state.wall_clock()),
        model=state.served.name,
        fingerprint=state.served.fingerprint,
        options=options,
        tokenizer=state.tokenizer,
        prompt_tokens=len(built.prompt),
        render_seconds=built.render_seconds,
        tokenize_seconds=built.tokenize_seconds,
    )


def _request(
    state: ServerState, head: ReplyHead, built: BuiltPrompt, *, field: str, received_seconds: float
) -> GenerationRequest:
    options, prompt_tokens = head.options, head.prompt_tokens
    if prompt_tokens == 0:
        raise RequestError(f"{field} makes a prompt without any token", field=field)
    return GenerationRequest(
        id=head.id,
        prompt=built.prompt,
        sampling=options.sampling,
        max_tokens=clamp_max_tokens(
            options.max_tokens, prompt_tokens=prompt_tokens, context_tokens=state.engine.context_tokens, field=field
        ),
        choices=options.choices,
        logprobs=options.logprobs,
        use_cache=options.use_cache,
        received_seconds=received_seconds,
    )
