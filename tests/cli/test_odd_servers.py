"""Commands that are sent to a server which is none of ours: a line that names it and what it left out, no traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from anchorline.bench.trace import CHAT_PATH
from anchorline.cli.main import cli
from anchorline.config import ServerConfig
from tests.server.support import listening

MODELS = JSONResponse({"data": [{"id": "odd-7b"}]})
PROMPT = JSONResponse({"prompt": "hello", "tokens": [1, 2, 3], "cuts": [1]})
REQUEST = {"messages": [{"role": "system", "content": "Be odd."}, {"role": "user", "content": "hello"}]}


class OddServer:
    """Answers what ``answers`` has for a path, and ``otherwise`` to any other call."""

    def __init__(self) -> None:
        self.url = ""
        self.otherwise: Response = JSONResponse(None)
        self.answers: dict[str, Response] = {}

    async def answer(self, request: Request) -> Response:
        await request.body()
        return self.answers.get(request.url.path, self.otherwise)


@pytest.fixture(scope="module")
def listens() -> Iterator[OddServer]:
    odd = OddServer()
    routes = [Route("/{path:path}", odd.answer, methods=["GET", "POST", "PATCH", "DELETE"])]
    with listening(Starlette(routes=routes), ServerConfig(port=0)) as odd.url:
        yield odd


@pytest.fixture
def odd(listens: OddServer) -> OddServer:
    listens.answers = {}
    return listens


def sse(*payloads: str) -> Response:
    return Response("".join(f"data: {payload}\n\n" for payload in payloads), media_type="text/event-stream")


def failed(*arguments: str) -> str:
    """What a command prints that fails in order."""
    result: Result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1, result.output
    return " ".join(result.output.split())


ODD_ANSWERS = [
    HTMLResponse("<html>Welcome</html>"),
    HTMLResponse("<html>Bad Gateway</html>", status_code=502),
    JSONResponse({"detail": "Not Found"}, status_code=404),
    JSONResponse({"error": {"message": "Not Found"}}, status_code=404),
    JSONResponse({"error": "no object"}, status_code=400),
    JSONResponse({"error": {"pinned": [1], "message": 7}}, status_code=409),
    JSONResponse(None),
    JSONResponse([]),
    JSONResponse({}),
    JSONResponse({"data": []}),
    JSONResponse({"data": [{"id": 1, "tokens": -1}], "pinned_bytes": "many"}),
]
COMMANDS = ["demo", "replay", "cache warm", "cache ls", "cache pin", "cache unpin", "cache clear", "cache stats"]
ARGUMENTS = {"cache pin": ["anchor_x"], "cache unpin": ["anchor_x"]}
PRINT_ANY_OBJECT = {"cache unpin", "cache clear", "cache stats"}


def is_object(answer: Response) -> bool:
    return answer.status_code == 200 and bytes(answer.body).startswith(b"{")


@pytest.mark.parametrize(
    ("command", "otherwise"),
    [
        pytest.param(command, answer, id=f"{command}, {answer.status_code} {bytes(answer.body)[:30].decode()}")
        for command in COMMANDS
        for answer in ODD_ANSWERS
        if command not in PRINT_ANY_OBJECT or not is_object(answer)
    ],
)
def test_each_command_says_what_is_wrong_with_the_server(
    odd: OddServer, tmp_path: Path, command: str, otherwise: Response
) -> None:
    odd.otherwise = otherwise
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps({"path": CHAT_PATH, "t": 0, "t_end": 1, "body": REQUEST}))
    given = ARGUMENTS.get(command, [str(file)] if command in ("replay", "cache warm") else [])
    said = failed(*command.split(), *given, "--url", odd.url)
    assert odd.url in said or f"HTTP {otherwise.status_code}: " in said


@pytest.mark.parametrize(
    ("place", "answer", "missing"),
    [
        (
            "/v1/models",
            JSONResponse({"data": [{"name": "x"}]}),
            "/v1/models cannot be read: Object missing required field `id`",
        ),
        (
            "/apply-template",
            JSONResponse({"prompt": "x"}),
            "/apply-template cannot be read: Object missing required field `tokens`",
        ),
        (
            CHAT_PATH,
            sse('{"choices": []}', "[DONE]"),
            "completions cannot be read: Object missing required field `usage`",
        ),
        (CHAT_PATH, sse('{"usage": {"prompt_tokens": 3}}'), "missing required field `prompt_tokens_details`"),
        (CHAT_PATH, sse('{"choices": [{"delta": {"con'), "sent an event that is no JSON"),
        (CHAT_PATH, sse('{"choices": 7}'), "Expected `array | null`, got `int`"),
        (CHAT_PATH, sse('{"choices": [{"delta": {"content": 7}}]}'), "Expected `str`, got `int`"),
        (CHAT_PATH, JSONResponse({"choices": []}), "missing required field `usage`"),
    ],
)
def test_the_demo_names_what_the_server_left_out(odd: OddServer, place: str, answer: Response, missing: str) -> None:
    odd.answers = {"/v1/models": MODELS, "/apply-template": PROMPT, place: answer}
    said = failed("demo", "--url", odd.url)
    assert missing in said
    assert odd.url in said
