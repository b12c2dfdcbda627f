"""Turn sealing: while nobody asks, prefill what a conversation's next request will begin with.

reply ends ── quiet for a moment ── render (a worker) ── prefill (the engine, in the background) ── next one
                    └─────────────────────┴── a request comes: all of it stops, and is taken up later
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
from starlette.types import ASGIApp, Receive, Scope, Send

from anchorline.api.chat import ChatPrompt
from anchorline.cache.prompt import Prompt
from anchorline.cache.tokens import common_prefix
from anchorline.engine.request import GenerationRequest
from anchorline.engine.sealing import may_seal
from anchorline.errors import AnchorlineError, Cancelled
from anchorline.llama.interface import SamplingParams
from anchorline.prompt.sealing import continuations, turn_message
from anchorline.prompt.turns import GeneratedTurn
from anchorline.server.prefill import Prefill
from anchorline.server.state import ServerState

log = logging.getLogger("anchorline.sealing")

QUIET_SECONDS = 0.03
"""A client whose tools take less time than this asks again before anything is begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call whose reply may be sealed: what it asked, and for whom."""

    chat: ChatPrompt
    prompt: Prompt
    tenant: str

    @property
    def conversation(self) -> bytes:
        """Names the conversation: as its client does, else by how it begins."""
        if self.prompt.conversation is not None:
            return f"{self.tenant}\n{self.prompt.conversation}".encode("utf-8", "surrogatepass")
        messages = self.chat.messages
        first = next((index for index, message in enumerate(messages) if message.get("role") == "user"), len(messages))
        beginning = json.dumps([self.tenant, messages[: first + 1]], default=str)
        return hashlib.sha256(beginning.encode()).digest()


@dataclass(frozen=True, slots=True)
class _Ended:
    """A turn to be sealed."""

    asked: Asked
    turn: GeneratedTurn


class Sealer:
    """The turns that wait to be sealed, and the one that is. Lives on the event loop."""

    def __init__(self, state: ServerState, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._state = state
        self._quiet_seconds = quiet_seconds
        self._waiting: OrderedDict[bytes, _Ended] = OrderedDict()
        self._requests = 0
        self._preparing: asyncio.Task[Prompt | None] | None = None
        self._prefilling: str | None = None
        """Id of the background call that is under way."""
        self._work: asyncio.Task[None] | None = None
        self._last_seconds = 0.0

    def arrive(self) -> None:
        """A request has come: what is under way stops, so that even its rendering has the machine to itself."""
        self._requests += 1
        if self._preparing is not None:
            self._preparing.cancel()
        if self._prefilling is not None:
            self._state.engine.cancel(self._prefilling)

    def leave(self) -> None:
        """A request was answered, or failed."""
        self._requests -= 1
        if self._waiting and not self._requests and (self._work is None or self._work.done()):
            self._work = asyncio.create_task(self._seal_all())

    async def close(self) -> None:
        """Stop what is under way, for good."""
        self._waiting.clear()
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    def begin(self, asked: Asked) -> None:
        """A conversation goes on: what waited to be sealed of it is outdated."""
        self._waiting.pop(asked.conversation, None)

    def offer(self, asked: Asked, turn: GeneratedTurn) -> None:
        """A turn has ended; it is sealed once there is time. Of many conversations the latest are remembered."""
        self._waiting[asked.conversation] = _Ended(asked, turn)
        while len(self._waiting) > self._state.sealed_turns:
            self._waiting.popitem(last=False)

    async def _seal_all(self) -> None:
        """Seal what waits, the latest first, as long as it is quiet and it pays."""
        while self._waiting:
            await asyncio.sleep(self._quiet_seconds)
            stats, now = self._state.engine.stats(), self._state.monotonic()
            if self._requests:
                return  # once they have left it goes on
            if stats.running or stats.waiting:
                continue
            if not may_seal(pays=stats.seals.pays, since_last_seconds=now - self._last_seconds):
                self._waiting.clear()
                return
            self._last_seconds = now
            conversation, ended = self._waiting.popitem()
            if not await self._seal(ended):
                self._waiting.setdefault(conversation, ended)

    async def _seal(self, ended: _Ended) -> bool:
        """Whether that is done with: not when another request came between."""
        try:
            prompt = await self._prepare(ended)
            if prompt is not None:
                await self._prefill(prompt)
        except Cancelled:
            return False
        except AnchorlineError as error:
            log.debug("a turn is not sealed: %s", error)
        return True

    async def _prefill(self, prompt: Prompt) -> None:
        """Let the engine do it. Raises Cancelled when another call came, or why it cannot be done."""
        prefill = Prefill()
        request = GenerationRequest(
            id=f"seal-{self._state.new_id()}", prompt=prompt, sampling=SamplingParams(), max_tokens=0, background=True
        )
        self._state.engine.submit(request, prefill)
        self._prefilling = request.id
        try:
            report = await prefill.report()
        finally:
            self._prefilling = None
        log.debug("sealed: %d tokens prefilled behind %d", report.prefilled_tokens, report.restored_tokens)

    async def _prepare(self, ended: _Ended) -> Prompt | None:
        """As ``_guess``. Raises Cancelled when a request comes, and whatever a request's prompt may raise."""
        self._preparing = asyncio.create_task(self._state.prepare(lambda: self._guess(ended)))
        try:
            prompt = await self._preparing
        except asyncio.CancelledError:
            work = asyncio.current_task()
            if work is None or work.cancelling():
                raise  # the server ends
            raise Cancelled("a request came") from None
        finally:
            self._preparing = None
        if self._requests:  # it came too late to cancel anything
            raise Cancelled("a request came")
        return prompt

    def _guess(self, ended: _Ended) -> Prompt | None:
        """What the next request will begin with; None where the live sequence does already. For a worker."""
        chat, sent, turn = ended.asked.chat, ended.asked.prompt, ended.turn
        prompt = self._state.prompts.beginning(
            [*chat.messages, turn_message(turn.said)],
            *continuations(turn.said),
            tools=chat.tools,
            template_kwargs=chat.template_kwargs,
            effort=chat.effort,
            tenant=ended.asked.tenant,
        )
        live = np.concatenate([sent.tokens, turn.tokens])
        if common_prefix(live, prompt.tokens) == len(prompt):
            return None
        return replace(prompt, tenant=sent.tenant, common_tokens=sent.common_tokens, conversation=sent.conversation)


class Attendance:
    """ASGI middleware that tells a sealer of every request that may want the machine."""

    def __init__(self, app: ASGIApp, sealer: Sealer) -> None:
        self._app = app
        self._sealer = sealer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        self._sealer.arrive()
        try:
            await self._app(scope, receive, send)
        finally:
            self._sealer.leave()
