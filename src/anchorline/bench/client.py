"""The calls that the benchmarks make, and what they read from the answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx
import numpy as np

from anchorline.bench.foreign_json import Kind, decoded, masked, told
from anchorline.bench.oracle import Tokens, as_tokens
from anchorline.bench.reported import ChatEvent, CostOfCall, ModelList, Props, TierTimings, ToldPrompt, WholeChat
from anchorline.errors import AnchorlineError, ConfigError

CHAT_PATH = "/v1/chat/completions"
TIMEOUT_SECONDS = 3600.0
PORT_MAX = 65535
SHOWN_CHARACTERS = 500
"""Of an answer that is no error as servers of these protocols write them."""
SHOWN_OF_AN_EVENT = 100
NO_SUCH_PLACE = frozenset({httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED})


class CallFailed(AnchorlineError):
    """The server refused a call; ``status`` is the HTTP status, the message its own words.

    ``details`` are all members of its error object.
    """

    def __init__(
        self, message: str, *, status: int, code: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.details: Mapping[str, Any] = details or {}


class Unreachable(AnchorlineError):
    """There is no server at the URL, or its connection broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One finished call. Times are milliseconds, as ``timings`` has them."""

    text: str
    reply_tokens: Tokens
    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    ttft_ms: float | None
    """Measured here for a streamed call, else the server's own figure."""
    timed: TierTimings
    timings: dict[str, Any] = field(default_factory=dict)
    """As the server wrote them."""

    @property
    def tier(self) -> str:
        """Where the restored tokens came from: resident, host, disk, several of them, or -."""
        timed = self.timed
        counts = {"resident": timed.resident_n, "host": timed.host_n - timed.disk_n, "disk": timed.disk_n}
        return "+".join(name for name, count in counts.items() if count) or "-"


def server_url(text: str, *, flag: str) -> httpx.URL:
    """The URL given with ``flag``, without a slash or ``/v1`` at its end, which every call brings.

    Raises ConfigError when it is none of a server.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{flag} {text!r} is no URL: {error}") from error
    if (
        url.scheme not in ("http", "https")
        or not url.host
        or url.query
        or url.fragment
        or url.userinfo
        or (url.port or 0) > PORT_MAX
    ):
        raise ConfigError(f"{flag} {text!r} is not of the form http://HOST:PORT or https://HOST/PATH")
    return url.copy_with(path=url.path.rstrip("/").removesuffix("/v1").rstrip("/") or "/")


class Client:
    """An HTTP client for one server; close it, or use it as a context manager.

    It calls no other server, whatever path it is given, and its errors do not hold the API key, whatever is answered.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        reuses_connections: bool = True,
        query: Mapping[str, str] | None = None,
    ) -> None:
        """``query`` goes with every call. Raises Unreachable when ``url`` is none.

        Servers may close a connection behind a streamed answer without saying so before, so that the next call on it
        fails; without ``reuses_connections`` each call makes its own.
        """
        headers = {b"Authorization": f"Bearer {api_key}".encode(errors="surrogateescape")} if api_key else {}
        self.url = url
        self._key = (api_key or "").strip()
        try:
            self._http = httpx.Client(
                base_url=url,
                timeout=TIMEOUT_SECONDS,
                headers=headers,
                params=query,
                trust_env=False,
                limits=httpx.Limits(max_keepalive_connections=None if reuses_connections else 0),
            )
        except httpx.InvalidURL as error:
            raise Unreachable(f"{url} is no URL: {error}") from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self.call("POST", path, body)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The decoded answer. Raises CallFailed, or Unreachable when there is none."""
        with self.guarded():
            return self._checked(self._http.send(self._request(method, path, body)))

    def events(
        self, path: str, body: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer as they come. Raises CallFailed, or Unreachable when it breaks off."""
        with self.guarded():
            request = self._request("POST", path, body, headers=headers)
            with closing(self._http.send(request, stream=True)) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    self._checked(response)
                yield from self._events(response)

    def masked(self, value: Any) -> Any:
        """``value``, a text or decoded JSON, without the API key, which a server may have repeated in it."""
        return masked(value, self._key)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """What goes wrong with a call inside is raised as CallFailed or Unreachable, without the API key."""
        try:
            yield
        except CallFailed as error:
            raise CallFailed(
                self.masked(str(error)), status=error.status, code=error.code, details=self.masked(dict(error.details))
            ) from error
        except httpx.DecodingError as error:
            message = self.masked(f"the answer is not encoded as its headers say: {error}")
            raise CallFailed(message, status=httpx.codes.OK) from error
        except httpx.RequestError as error:
            raise Unreachable(self.masked(f"no answer from {self.url}: {error}")) from error

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None, *, headers: Mapping[str, str] | None = None
    ) -> httpx.Request:
        """Raises CallFailed for what cannot be sent, and for a place on any other server."""
        try:
            request = self._http.build_request(method, path, json=body, headers=headers)
        except (ValueError, RecursionError, httpx.InvalidURL) as error:
            raise CallFailed(f"the call cannot be sent: {error}", status=httpx.codes.BAD_REQUEST) from error
        if _origin(request.url) != _origin(self._http.base_url):
            raise CallFailed(f"{path} is not on {self.url}: nothing was sent", status=httpx.codes.BAD_REQUEST)
        return request

    def ask(self, kind: type[Kind], method: str, path: str, body: dict[str, Any] | None = None) -> Kind:
        """The answer as a ``kind``. Raises CallFailed, naming the place and what is wrong, when it is none."""
        return self._told(kind, self.call(method, path, body), path)

    def metrics(self) -> dict[str, float]:
        """Those of ``GET /metrics`` that have no labels, by name. Raises CallFailed or Unreachable."""
        with self.guarded():
            response = self._http.get("/metrics")
            self._check_status(response)
        lines = (line.split(" ") for line in response.text.splitlines() if not line.startswith("#") and "{" not in line)
        return {name: float(value) for name, value in lines}

    def model_name(self) -> str:
        """The name of the first model that the server lists."""
        return self.ask(ModelList, "GET", "/v1/models").data[0].id

    def context_tokens(self) -> int:
        """The size of the server's context; no prompt may be as long."""
        return self.ask(Props, "GET", "/props").default_generation_settings.n_ctx

    def prompt_tokens(self, body: dict[str, Any]) -> Tokens:
        """The ids of the prompt that the server makes of a chat body."""
        return self.prompt(body)[0]

    def prompt(self, body: dict[str, Any]) -> tuple[Tokens, list[int]]:
        """The ids of the prompt that the server makes of a chat body, and its cuts."""
        prompt = self.ask(ToldPrompt, "POST", "/apply-template", {**body, "return_tokens": True})
        return as_tokens(prompt.tokens), prompt.cuts

    def chat(self, body: dict[str, Any]) -> Answer:
        """One call whose answer comes as a whole, with the ids of the reply."""
        told = self.ask(WholeChat, "POST", CHAT_PATH, {**body, "stream": False, "return_tokens": True})
        choice = told.choices[0]
        return self._answer(
            text=choice.message.content or "", reply=choice.tokens or (), usage=told.usage, timings=told.timings
        )

    def stream_chat(self, body: dict[str, Any]) -> Answer:
        """One streamed call; its TTFT is from sending the request to the first text, reasoning or call received."""
        request = {**body, "stream": True, "stream_options": {"include_usage": True}, "return_tokens": True}
        text: list[str] = []
        reply: list[int] = []
        usage: dict[str, Any] | None = None
        timings: dict[str, Any] | None = None
        ttft_ms: float | None = None
        started = time.perf_counter()
        for event in self.events(CHAT_PATH, request):
            told = self._told(ChatEvent, event, CHAT_PATH)
            for choice in told.choices or ():
                said = choice.delta is not None and choice.delta.says_something()
                if (said or choice.finish_reason) and ttft_ms is None:
                    ttft_ms = (time.perf_counter() - started) * 1000
                if choice.delta is not None and choice.delta.content:
                    text.append(self._told(str, choice.delta.content, CHAT_PATH))
                reply.extend(choice.tokens or ())
            usage = told.usage or usage
            timings = told.timings or timings
        return self._answer(text="".join(text), reply=reply, usage=usage, timings=timings, ttft_ms=ttft_ms)

    def _answer(
        self,
        *,
        text: str,
        reply: Sequence[int],
        usage: dict[str, Any] | None,
        timings: dict[str, Any] | None,
        ttft_ms: float | None = None,
    ) -> Answer:
        """Raises CallFailed unless the server says what it restored and prefilled, and that adds up."""
        told = {name: value for name, value in (("usage", usage), ("timings", timings)) if value is not None}
        cost = self._told(CostOfCall, told, CHAT_PATH)
        prompt_tokens, cached_tokens = cost.usage.prompt_tokens, cost.usage.prompt_tokens_details.cached_tokens
        prefilled_tokens = cost.timings.prompt_n
        if cached_tokens + prefilled_tokens != prompt_tokens or cached_tokens != cost.timings.cache_n:
            raise CallFailed(
                f"the server's numbers disagree: {prompt_tokens} prompt tokens, {cached_tokens} cached "
                f"(timings: {cost.timings.cache_n}), {prefilled_tokens} prefilled",
                status=httpx.codes.OK,
            )
        return Answer(
            text=text,
            reply_tokens=np.asarray(reply, dtype=np.int32),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            prefilled_tokens=prefilled_tokens,
            ttft_ms=cost.timings.ttft_ms if ttft_ms is None else ttft_ms,
            timed=cost.timings,
            timings=timings or {},
        )

    def _told(self, kind: type[Kind], value: Any, path: str) -> Kind:
        """``value``, which was answered at ``path``, as a ``kind``. Raises CallFailed when it is none."""
        with self.guarded():
            return told_as(kind, value, what=f"the answer of {self.url.rstrip('/')}{path}")

    def _checked(self, response: httpx.Response) -> Any:
        """The decoded answer. Raises CallFailed for a refusal, and for what is no JSON."""
        self._check_status(response)
        try:
            return decoded(response.content)
        except ValueError as error:
            message = f"{response.url} did not answer with JSON"
            raise CallFailed(message, status=response.status_code) from error

    def _check_status(self, response: httpx.Response) -> None:
        """Raises CallFailed for a refusal; it names the place where the server's own words may not."""
        if response.is_success:
            return
        place = f"{response.url}: " if response.status_code in NO_SUCH_PLACE else ""
        try:
            error_told = dict(decoded(response.content)["error"])
            message, code = str(error_told["message"]), error_told.get("code")
        except (ValueError, KeyError, TypeError):
            place = f"{response.url}: "
            response.encoding = "utf-8"
            message, code, error_told = self.masked(response.text)[:SHOWN_CHARACTERS], None, {}
        raise CallFailed(
            f"{place}HTTP {response.status_code}: {message}",
            status=response.status_code,
            code=code,
            details=error_told,
        )

    def _events(self, response: httpx.Response) -> Iterator[dict[str, Any]]:
        response.encoding = "utf-8"
        for line in response.iter_lines():
            if line.startswith("data:"):
                payload = line.removeprefix("data:").strip()
                if payload == "[DONE]":
                    return
                event = self._event(payload)
                if event.get("error"):
                    raise CallFailed(_message_of(event["error"]), status=httpx.codes.OK)
                yield event

    def _event(self, payload: str) -> dict[str, Any]:
        try:
            event = decoded(payload)
        except ValueError as error:
            shown = self.masked(payload)[:SHOWN_OF_AN_EVENT]
            raise CallFailed(
                f"{self.url} sent an event that is no JSON, {error}: {shown}", status=httpx.codes.OK
            ) from error
        if not isinstance(event, dict):
            shown = self.masked(payload)[:SHOWN_OF_AN_EVENT]
            raise CallFailed(f"{self.url} sent an event that is no object: {shown}", status=httpx.codes.OK)
        return event


def told_as(kind: type[Kind], value: Any, *, what: str) -> Kind:
    """``value``, which a server told, as a ``kind``. Raises CallFailed when it is none."""
    try:
        return told(value, kind)
    except ValueError as error:
        raise CallFailed(f"{what} cannot be read: {error}", status=httpx.codes.OK) from error


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _message_of(error: Any) -> str:
    return str(error.get("message") if isinstance(error, dict) else error)
