"""From a request to a prompt: render, tokenise, find the cuts."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anchorline.cache.prompt import Cut, Prompt
from anchorline.errors import RequestError
from anchorline.llama.interface import TokenArray, Tokenizer
from anchorline.output.format import ReplyFormat
from anchorline.output.meaning import Said, read
from anchorline.prompt.cuts import CutFinder
from anchorline.prompt.effort import effort_kwargs
from anchorline.prompt.fingerprint import fingerprint_of_json, tool_json
from anchorline.prompt.floating import block
from anchorline.prompt.messages import Message, normalise_messages, number_calls
from anchorline.prompt.request import ChatRequest, begun_text
from anchorline.prompt.rewrites import NO_REWRITES, NOTHING_REWRITTEN, Rewriter, Rewrites, Rewriting
from anchorline.prompt.select import SelectedTemplate, template_tokens
from anchorline.prompt.splice import Splicer, Splices
from anchorline.prompt.template import RESERVED_KWARGS, Clock
from anchorline.prompt.tokenise import PromptTokenizer, TokenizedText, common_characters
from anchorline.prompt.turns import GeneratedTurn, TurnMemo
from anchorline.prompt.voice import Voice

PINNED_SYSTEM_TOKENS = 256
"""A head without tools deserves a pin from this length on."""

_QUESTION = {"role": "user", "content": "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPrompt:
    """A prompt, the text it was made from ("" for ids), and what making it took."""

    prompt: Prompt
    text: str
    asked: bytes = b""
    """What a reply answers, for ``TurnRecorder``; b"" where it is no turn of a chat."""
    rewriting: Rewriting = NOTHING_REWRITTEN
    render_seconds: float
    """Checking, guarding and all rendering, also the partial renders for the cuts."""
    tokenize_seconds: float


class PromptBuilder:
    """Makes prompts from chat messages, raw text or token ids. Thread-safe.

    Tokens are a function of the request (and the time) alone. The cuts of a long conversation also
    depend on what was asked before, unless ``all_cuts``: then all of them are found every time.
    ``clock`` gives the local time that templates may show, ``reply_format`` how the model writes its replies.
    With ``turns``, turns in them keep the ids that they were generated with; then tokens depend on what was
    generated, too, and with ``rewrites`` that remember on what was asked.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        selected: SelectedTemplate,
        *,
        clock: Clock,
        all_cuts: bool = False,
        reply_format: ReplyFormat | None = None,
        turns: TurnMemo | None = None,
        rewrites: Rewrites = NO_REWRITES,
    ) -> None:
        assert turns is None or reply_format is not None
        self._turns = turns
        self._reply_format = reply_format
        self._tokenizer = tokenizer
        self._reasoning = reply_format.reasoning if reply_format is not None else None
        self._rewriter = Rewriter(rewrites, clock=clock)
        self._tokens = template_tokens(tokenizer)
        self.tokenizer = PromptTokenizer(tokenizer)
        self._cuts = CutFinder(self.tokenizer, all_cuts=all_cuts)
        self._splicer = Splicer(self.tokenizer)
        self._plain = Voice("plain", selected.template, selected.capabilities, self.tokenizer)
        self._tools = self._plain
        if selected.tool_template is not selected.template:
            self._tools = Voice("tools", selected.tool_template, selected.tool_capabilities, self.tokenizer)

    def chat(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
        effort: str | None = None,
        continue_final: bool = False,
        tenant: str = "",
        generates: bool = True,
    ) -> BuiltPrompt:
        """The prompt of a chat request, with cuts.

        ``messages`` and ``tools`` are decoded JSON as the client sent it. ``effort`` (one of EFFORTS) is put
        into the words that the template knows. With ``continue_final`` the prompt ends with the text of
        the last message behind the generation prompt. Turns generated for other tenants than ``tenant`` are
        not known again, and nothing is quicker for what they sent. ``generates`` tells that a reply is made and
        the conversation goes on behind it; what is rewritten stays in it only then. Raises RequestError naming the
        field that cannot be used.
        """
        watch = _Watch()
        request = self._request(
            messages,
            tools,
            template_kwargs,
            effort=effort,
            continue_final=continue_final,
            tenant=tenant,
            generates=generates,
        )
        opened = add_generation_prompt or continue_final
        text, request = self._written(request, tools, opened=opened)
        if request.begun is not None:
            text += begun_text(request.begun, self._reasoning, prompt_end=text)
        watch.lap()
        tokenized = self._tokenized(text, request)
        tokens = self._with_bos(tokenized)
        tokenize_seconds = watch.lap()
        prompt = self._prompt(tokens, tokenized, request, opened=opened)
        plain_text = request.splices.reveal(text.replace(request.guarded.guard, ""))
        watch.lap()
        return BuiltPrompt(
            prompt=prompt,
            text=plain_text,
            asked=request.asked,
            rewriting=request.rewriting,
            render_seconds=watch.total_seconds - tokenize_seconds,
            tokenize_seconds=tokenize_seconds,
        )

    def beginning(
        self,
        messages: Sequence[Any],
        one: Sequence[Any],
        other: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        effort: str | None = None,
        tenant: str = "",
    ) -> Prompt:
        """What the prompts of ``messages`` with ``one`` behind them, and with ``other``, have in common.

        Raises RequestError as ``chat`` does.
        """
        requests = [
            self._request([*messages, *behind], tools, template_kwargs, effort=effort, tenant=tenant)
            for behind in (one, other)
        ]
        (text, request), (other_text, _) = (self._written(request, tools, opened=True) for request in requests)
        tokenized = self._tokenized(text, request)
        tokens = self._with_bos(tokenized)
        agreed = self.tokenizer.position(tokenized, common_characters(text, other_text))
        prompt = self._prompt(tokens, tokenized, request, opened=True)
        return prompt.beginning(agreed + len(prompt) - int(tokenized.tokens.size))

    def render(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that ``chat`` would tokenise, without BOS unless the template writes it."""
        request = self._request(messages, tools, template_kwargs)
        text = request.render(request.guarded.messages, add_generation_prompt=add_generation_prompt)
        return text.replace(request.guarded.guard, "")

    def turn(
        self,
        message: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        effort: str | None = None,
    ) -> TokenArray:
        """Ids of what a model has to generate behind the generation prompt to say an assistant message.

        The end of the turn is among them, and whatever the template writes behind it. Raises
        RequestError as ``chat`` does.
        """
        request = self._request([_QUESTION, message], tools, template_kwargs, effort=effort)
        question, guard = request.guarded.messages[:1], request.guarded.guard
        whole = request.render(request.guarded.messages)
        start = common_characters(request.render(question, add_generation_prompt=True), whole)
        tokenized = self.tokenizer.tokenize(whole, guard)
        last = bisect_right(tokenized.starts, start) - 1
        if last >= 0 and start < tokenized.ends[last]:  # two control tokens may begin alike
            start = tokenized.starts[last]
        return self.tokenizer.tokenize(whole[start:], guard).tokens

    def text(self, text: str, *, tenant: str = "") -> BuiltPrompt:
        """A raw prompt: control-token texts in it are control tokens, BOS is added where the model wants it."""
        watch = _Watch()
        try:
            tokenized = self.tokenizer.tokenize(text, tenant=tenant)
        except UnicodeEncodeError as error:
            raise RequestError("prompt is not valid Unicode (a lone surrogate)", field="prompt") from error
        tokens = self._with_bos(tokenized)
        if not tokens.size:
            raise RequestError("prompt must not be empty", field="prompt")
        prompt = Prompt(tokens=tokens, unwritten_tokens=int(tokens.size - tokenized.tokens.size))
        return BuiltPrompt(prompt=prompt, text=text, render_seconds=0.0, tokenize_seconds=watch.lap())

    def tokens(self, ids: Sequence[int]) -> BuiltPrompt:
        """A prompt of exactly these ids."""
        vocab_size = self._tokenizer.vocab_size
        if not ids:
            raise RequestError("prompt must not be empty", field="prompt")
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
                raise RequestError(
                    f"prompt holds {token!r}; token ids lie between 0 and {vocab_size - 1}", field="prompt"
                )
        tokens = np.array(ids, dtype=np.int32)
        tokens.flags.writeable = False
        return BuiltPrompt(prompt=Prompt(tokens=tokens), text="", render_seconds=0.0, tokenize_seconds=0.0)

    def fragment(self, text: str) -> tuple[int, ...]:
        """Ids of a piece of a reply; control-token texts in it are control tokens, and no BOS is added."""
        return tuple(self.tokenizer.tokenize(text).tokens.tolist())

    def _request(
        self,
        messages: Sequence[Any],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
        *,
        effort: str | None = None,
        continue_final: bool = False,
        tenant: str = "",
        generates: bool = False,
    ) -> ChatRequest:
        normal = normalise_messages(messages)
        rewritten = self._rewriter.messages(normal, tenant=tenant, remember=generates)
        normal, asked = rewritten.messages, rewritten.asked
        begun = normal[-1:] if continue_final else []
        normal, turns = self._healed(normal[: len(normal) - len(begun)], tenant, asked)
        normal += begun
        kwargs = template_kwargs or {}
        if reserved := RESERVED_KWARGS & kwargs.keys():
            raise RequestError(f"chat_template_kwargs must not set {min(reserved)}", field="chat_template_kwargs")
        rendered_tools, tools_json, tools_sorted = self._checked_tools(tools) if tools else (None, b"", False)
        # Calls and results without their tools are shown as they were when the tools were there.
        speaks_of_tools = bool(tools) or any(m["role"] == "tool" or "tool_calls" in m for m in normal)
        voice = self._tools if speaks_of_tools else self._plain
        if effort is not None:
            kwargs = {**effort_kwargs(effort, voice.capabilities.efforts), **kwargs}
        if voice.capabilities.call_ids:
            written = {index: voice.own_ids(turn.said) for index, turn in turns.items()}
            normal = number_calls(normal, voice.name_call, written=written)
        guarded = voice.guard.guard(normal, tools=rendered_tools, tools_json=tools_json, kwargs=kwargs, tenant=tenant)
        last = None
        if continue_final:
            *before, last = guarded.messages
            guarded = replace(guarded, messages=before)
        now, pinned = self._rewriter.time(rewritten, tenant=tenant, remember=generates and voice.shows_time)
        rewriting = Rewriting(
            floated_lines=len(rewritten.floated),
            floated_tokens=int(self._tokenizer.tokenize(block(rewritten.floated)).size) if rewritten.floated else 0,
            tools_sorted=tools_sorted,
            pinned_date=now if pinned and voice.shows_time else None,
        )
        bos, eos = self._tokens.bos, self._tokens.eos
        return ChatRequest(voice, guarded, turns, tools_json, now, bos, eos, last, asked[-1], tenant, rewriting)

    def _checked_tools(self, tools: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], bytes, bool]:
        """The tools as they are rendered, their JSON, and whether that is another than was sent.

        Raises RequestError naming the tool that is none.
        """
        for index, tool in enumerate(tools):
            if not isinstance(tool, Mapping):
                raise RequestError(f"tools[{index}] must be an object", field=f"tools[{index}]", code="invalid_type")
        try:
            rendered = self._rewriter.tools(tools)
            sent = tool_json(tools)
            written = sent if rendered is tools else tool_json(rendered)
        except (UnicodeEncodeError, TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"tools cannot be written as JSON: {error}", field="tools") from error
        return rendered, written, written != sent

    def _healed(
        self, messages: list[Message], tenant: str, asked: Sequence[bytes]
    ) -> tuple[list[Message], dict[int, GeneratedTurn]]:
        """Messages as they were generated here, where they were, and those turns by index."""
        if self._turns is None:
            return messages, {}
        found = {i: self._turns.find(tenant, messages[i], asked=asked[i]) for i in range(len(messages))}
        turns = {index: turn for index, turn in found.items() if turn is not None}
        return [turns[i].heal(message) if i in turns else message for i, message in enumerate(messages)], turns

    def _written(
        self, request: ChatRequest, tools: Sequence[Mapping[str, Any]] | None, *, opened: bool
    ) -> tuple[str, ChatRequest]:
        """The text of a whole request, with placeholders; and the request that knows them."""
        text = request.render(request.guarded.messages, add_generation_prompt=opened)
        if request.turns:
            request = replace(request, splices=self._splices(text, request, tools))
        return request.splices.apply(text), request

    def _splices(self, text: str, request: ChatRequest, tools: Sequence[Mapping[str, Any]] | None) -> Splices:
        schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools or ()}
        guard, reply_format = request.guarded.guard, self._reply_format
        assert reply_format is not None

        def read_reply(written: str, before: str) -> Said:
            return read(written, reply_format, prompt_end=before.replace(guard, ""), tools=schemas)

        return self._splicer.find(
            text, request.turns, request.guarded.messages, request.render, read_reply, guard=guard
        )

    def _tokenized(self, text: str, request: ChatRequest) -> TokenizedText:
        return self.tokenizer.tokenize(
            text, request.guarded.guard, placeholders=request.splices.placeholders, tenant=request.tenant
        )

    def _with_bos(self, tokenized: TokenizedText) -> TokenArray:
        tokens, bos = tokenized.tokens, self._tokenizer.bos
        if not self._tokenizer.adds_bos or bos is None or (tokens.size and tokens[0] == bos):
            return tokens
        tokens = np.concatenate([np.array([bos], dtype=np.int32), tokens])
        tokens.flags.writeable = False
        return tokens

    def _prompt(self, tokens: TokenArray, tokenized: TokenizedText, request: ChatRequest, *, opened: bool) -> Prompt:
        points = self._cuts.find(
            tokenized,
            request.guarded.messages,
            request.spliced,
            head_key=request.head_key(),
            time_key=request.time_key(),
            generation=opened,
        )
        offset = int(tokens.size - tokenized.tokens.size)
        starts = tuple(start + offset if start else 0 for start in points.message_starts)
        roles = tuple(message["role"] for message in request.guarded.messages)
        users = [index for index, role in enumerate(roles) if role == "user"]
        return Prompt(
            tokens=tokens,
            cuts=tuple(Cut(cut.position + offset, cut.kind, cut.message) for cut in points.cuts),
            tool_fingerprint=fingerprint_of_json(request.tools_json) if request.tools_json else None,
            pin_head=bool(request.tools_json) or points.head_tokens >= PINNED_SYSTEM_TOKENS,
            message_starts=starts,
            message_roles=roles,
            unwritten_tokens=offset,
            turn_start=starts[users[-1]] if users else None,
        )


class _Watch:
    """Time since the last lap."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._start = self._last = now()

    def lap(self) -> float:
        last, self._last = self._last, self._now()
        return self._last - last

    @property
    def total_seconds(self) -> float:
        return self._last - self._start
