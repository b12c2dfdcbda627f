"""From a body to a call that the engine can take; CPU-bound, runs in a worker thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from anchorline.api.chat import ChatCall, ChatPrompt, parse_chat
from anchorline.api.chat_reply import ChatWriter
from anchorline.api.completion_reply import CompletionWriter
from anchorline.api.completions import parse_completion
from anchorline.api.options import CallOptions, clamp_max_tokens
from anchorline.api.reply import ReplyHead, ReplyWriter
from anchorline.constraint.spec import Reasoning
from anchorline.engine.request import GenerationRequest, TokenForcer
from anchorline.errors import RequestError
from anchorline.llama.interface import TokenConstraint
from anchorline.output.budget import ReasoningBudget
from anchorline.output.format import CallMode, ReasoningTags, ReplyContext
from anchorline.output.parser import PlainParser, ReplyParser
from anchorline.output.unsplit import UnsplitReasoning
from anchorline.prompt.rewrites import NOTHING_REWRITTEN, Rewriting
from anchorline.prompt.turns import TurnRecorder
from anchorline.script.script import Script
from anchorline.server.caller import Caller
from anchorline.server.sealing import Asked
from anchorline.server.state import BuiltPrompt, Prompts, ServerState
from anchorline.server.tenants import owned, salted

PROMPT_END_CHARACTERS = 200
"""As much of the prompt as a parser gets to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A checked request with its prompt, ready for the engine, and what becomes of its reply."""

    request: GenerationRequest
    options: CallOptions
    parser: ReplyParser
    writer: ReplyWriter
    spelled: frozenset[str] = frozenset()
    """Texts of the control tokens that the parser needs."""
    recorder: TurnRecorder | None = None
    """Remembers the turns of the reply."""
    asked: Asked | None = None
    """With a recorder: what may be sealed once the reply has ended."""
    head_digest: str | None = None
    """The name of the prompt's head, for the log."""
    rewriting: Rewriting = NOTHING_REWRITTEN


Prepare = Callable[[bytes, ServerState, Caller], PreparedCall]
"""(body, state, caller) to a call."""


def prepare_chat(raw: bytes, state: ServerState, caller: Caller) -> PreparedCall:
    """A chat completion."""
    call = parse_chat(raw, context=state.context)
    return prepare_chat_call(call, state, id=f"chatcmpl-{state.new_id()}", writer=ChatWriter, caller=caller)


def prepare_chat_call(
    call: ChatCall,
    state: ServerState,
    *,
    id: str,
    writer: Callable[[ReplyHead], ReplyWriter],
    caller: Caller,
    field: str = "messages",
) -> PreparedCall:
    """Render a chat request of any protocol; ``field`` is its name for the messages."""
    built = build_chat(call.prompt, state.prompts, tenant=caller.tenant, generates=caller.generates)
    head = _head(state, id, built, call.options)
    request = _request(state, head, built, field=field, caller=caller, salt=call.prompt.cache_salt)
    request = replace(request, prompt=call.cache.complete(request.prompt))
    head = replace(head, pin_wishes=request.prompt.pin_wishes)
    prompt_end = _prompt_end(call, built, state.reply_format.reasoning)
    tenant = salted(caller.tenant, call.prompt.cache_salt)
    recorder = _recorder(call, state, tenant=tenant, asked=built.asked)
    sealable = recorder is not None and call.options.choices == 1
    return PreparedCall(
        request=_steered(request, call, state, prompt_end=prompt_end),
        options=call.options,
        parser=_parser(call, state, prompt_end=prompt_end),
        writer=writer(head),
        spelled=state.reply_format.spelled,
        recorder=recorder,
        asked=Asked(chat=call.prompt, prompt=request.prompt, tenant=tenant) if sealable else None,
        head_digest=built.prompt.head_digest,
        rewriting=built.rewriting,
    )


def build_chat(prompt: ChatPrompt, prompts: Prompts, *, tenant: str, generates: bool = True) -> BuiltPrompt:
    """Render and tokenise for ``tenant``, that of a key; ``generates`` as for ``PromptBuilder.chat``.

    Raises RequestError naming the field that cannot be used.
    """
    return prompts.chat(
        prompt.messages,
        tools=prompt.tools,
        add_generation_prompt=prompt.add_generation_prompt,
        template_kwargs=prompt.template_kwargs,
        effort=prompt.effort,
        continue_final=prompt.continue_final,
        tenant=salted(tenant, prompt.cache_salt),
        generates=generates,
    )


def _prompt_end(call: ChatCall, built: BuiltPrompt, tags: ReasoningTags | None) -> str:
    """How the prompt ends, for whoever reads the reply; reasoning that the client began is as good as just opened."""
    begun = call.prompt.messages[-1].get("content") if call.prompt.continue_final else None
    if tags is not None and isinstance(begun, str) and tags.left_open(begun):
        return tags.begin
    return built.text[-PROMPT_END_CHARACTERS:]


def _parser(call: ChatCall, state: ServerState, *, prompt_end: str) -> ReplyParser:
    functions = [tool["function"] for tool in call.prompt.tools or ()]
    context = ReplyContext(
        prompt_end=prompt_end,
        tools={function["name"]: function.get("parameters") or {} for function in functions},
        calls=call.calls if functions else CallMode.NONE,
        new_call_id=state.new_call_id,
    )
    parser, tags = state.reply_format.parser(context), state.reply_format.reasoning
    if call.split_reasoning or tags is None:
        return parser
    return UnsplitReasoning(parser, tags, opened=tags.opened_by(prompt_end))


def _recorder(call: ChatCall, state: ServerState, *, tenant: str, asked: bytes) -> TurnRecorder | None:
    """A reply that goes on with a client's own text, or shows its reasoning as content, is no turn by itself."""
    if state.turns is None or call.prompt.continue_final or not call.split_reasoning or not call.options.use_cache:
        return None
    return TurnRecorder(state.turns, state.tokenizer, tenant=tenant, asked=asked)


def _steered(request: GenerationRequest, call: ChatCall, state: ServerState, *, prompt_end: str) -> GenerationRequest:
    """The request with what has a say in its tokens: a script that has them all, else a budget and a constraint."""
    if state.script is not None:
        return replace(request, forcer=_scripted(state.script, call.prompt))
    return replace(
        request,
        forcer=_reasoning_budget(call, state, prompt_end=prompt_end),
        constraint=_constraint(call, state, prompt_end=prompt_end),
    )


def _reasoning_budget(call: ChatCall, state: ServerState, *, prompt_end: str) -> TokenForcer | None:
    tags, budget_tokens = state.reply_format.reasoning, call.reasoning_budget_tokens
    if tags is None or budget_tokens is None:
        return None
    return ReasoningBudget(
        tags,
        tokenizer=state.tokenizer,
        closing=state.prompts.fragment(tags.end),
        budget_tokens=budget_tokens,
        opened=tags.opened_by(prompt_end),
        choices=call.options.choices,
    )


def _constraint(call: ChatCall, state: ServerState, *, prompt_end: str) -> TokenConstraint | None:
    """What holds behind a block of reasoning, if the prompt has opened one or the template knows them."""
    if call.constraint is None:
        return None
    tags, reasoning = state.reply_format.reasoning, None
    if tags is not None and (tags.opened_by(prompt_end) or tags.end in state.served.chat_template):
        reasoning = Reasoning(tags=tags, opened=tags.opened_by(prompt_end))
    return state.constraints.compile(call.constraint, reasoning=reasoning, call_tags=state.reply_format.call_tag)


def _scripted(script: Script, prompt: ChatPrompt) -> TokenForcer:
    return script.answer(
        prompt.messages, tools=prompt.tools, template_kwargs=prompt.template_kwargs, effort=prompt.effort
    )


def prepare_completion(raw: bytes, state: ServerState, caller: Caller) -> PreparedCall:
    """A text completion."""
    call = parse_completion(raw, context=state.context)
    if call.tokens is not None:
        built = state.prompts.tokens(call.tokens)
    else:
        built = state.prompts.text(call.text or "", tenant=salted(caller.tenant, call.cache_salt))
    head = _head(state, f"cmpl-{state.new_id()}", built, call.options)
    request = _request(state, head, built, field="prompt", caller=caller, salt=call.cache_salt)
    if call.constraint is not None:
        request = replace(request, constraint=state.constraints.compile(call.constraint))
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
        rewriting=built.rewriting,
        render_seconds=built.render_seconds,
        tokenize_seconds=built.tokenize_seconds,
    )


def _request(
    state: ServerState, head: ReplyHead, built: BuiltPrompt, *, field: str, caller: Caller, salt: str | None
) -> GenerationRequest:
    options, prompt_tokens = head.options, head.prompt_tokens
    if prompt_tokens == 0:
        raise RequestError(f"{field} makes a prompt without any token", field=field)
    state.engine.prepare(options.sampling)
    return GenerationRequest(
        id=head.id,
        prompt=owned(built.prompt, caller.tenant, salt, config=state.config),
        sampling=options.sampling,
        max_tokens=clamp_max_tokens(
            options.max_tokens, prompt_tokens=prompt_tokens, context_tokens=state.engine.context_tokens, field=field
        ),
        choices=options.choices,
        logprobs=options.logprobs,
        use_cache=options.use_cache,
        received_seconds=caller.received_seconds,
        switch_seconds=caller.switch_seconds,
    )
