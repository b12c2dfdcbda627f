"""Processes that answer over one disk tier and are killed at random moments.

Run: python -m tests.engine.killing DIRECTORY KILLS SEED [MODEL]

Each is forked from one that has no threads, so that it is up at once. What it says is compared with the answers of a
process without a cache; one that is wrong, or does not come up, ends with a code of its own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from anchorline.config import ModelConfig
from anchorline.engine.request import SampledToken
from anchorline.llama.model import load_model
from tests.engine.exact import TOKENS, ask, at_rest, conversation, engine_on
from tests.support.consumer import Recorder

MODEL = "test:qwen35"
TURNS = (40, 30, 25, 70, 20, 15, 90, 10)


class Teller(Recorder):
    """Writes a byte for each token, so that others know how far a process is."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe = pipe

    def on_token(self, choice: int, token: SampledToken) -> bool:
        os.write(self._pipe, b".")
        return super().on_token(choice, token)


def answer_all(
    directory: Path | None, expected: list[object] | None, pipe: int, *, named: str, seed: int
) -> list[object]:
    """The answers of the model ``named`` to a shuffled script, each compared with ``expected``.

    A fault of the disk tier is an error.
    """
    model = load_model(ModelConfig(model=named))
    prompts = [*conversation(1, 500, *TURNS), *conversation(2, 500, 60, 200)]
    answers: list[object] = [None] * len(prompts)
    order = random.Random(seed).sample(range(len(prompts)), len(prompts))
    with engine_on(model, cache=directory is not None, disk=directory, mib=1, named=named) as engine:
        for index in order:
            (tokens, values), _ = ask(engine, prompts[index], str(index), recorder=Teller(pipe))
            answers[index] = [tokens, values]
            assert expected is None or answers[index] == expected[index], f"prompt {index}"
        stats = at_rest(engine).disk
        assert not stats.store.faults, stats.store.faults
        assert not stats.unattached, stats.unattached
        assert directory is None or stats.records
    return answers


def in_child(work: Callable[[int], None]) -> tuple[int, int]:
    """A fork that does ``work`` with a pipe to write to: its process id, and the pipe's other end.

    It ends with 0, or says why not and ends with 1.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(writer)
            code = 0
        finally:  # nothing of the parent's is to be unwound
            if code:
                traceback.print_exc()
            os._exit(code)
    os.close(writer)
    return child, reader


def reap(child: int, reader: int) -> int:
    while os.read(reader, 4096):
        pass
    os.close(reader)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at_random_moments(directory: Path, *, kills: int, seed: int, named: str = MODEL) -> int:
    """How many of ``kills`` processes were killed at work; raises SystemExit when one failed."""
    moments = random.Random(seed)
    answers, tier = directory / "answers.json", directory / "tier"
    if reap(*in_child(partial(_write, answers, named))):
        raise SystemExit("the run without a cache failed")
    expected = json.loads(answers.read_text())
    killed = 0
    for number in range(kills + 1):
        child, reader = in_child(partial(_answer, tier, expected, named, number))
        if number < kills:
            for _ in range(moments.randrange(len(expected) * TOKENS)):
                os.read(reader, 1)
            os.kill(child, signal.SIGKILL)
        code = reap(child, reader)
        if code not in (0, -signal.SIGKILL):
            raise SystemExit(f"process {number} failed after {killed} were killed")
        killed += code != 0
    return killed


def _write(answers: Path, named: str, pipe: int) -> None:
    answers.write_text(json.dumps(answer_all(None, None, pipe, named=named, seed=0)))


def _answer(directory: Path, expected: list[object], named: str, seed: int, pipe: int) -> None:
    answer_all(directory, expected, pipe, named=named, seed=seed)


def main(directory: str, kills: str, seed: str, named: str = MODEL) -> None:
    print(kill_at_random_moments(Path(directory), kills=int(kills), seed=int(seed), named=named))


if __name__ == "__main__":
    main(*sys.argv[1:])
