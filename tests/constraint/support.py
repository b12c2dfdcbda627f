"""A compiler over a vocabulary of single bytes, and random walks through what a mask allows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from anchorline.constraint.compiler import ConstraintCompiler
from anchorline.constraint.spec import Answer, ConstraintSpec, JsonSchema
from anchorline.constraint.vocabulary import Vocabulary
from anchorline.limits import Limits
from anchorline.llama.interface import TokenConstraint
from tests.server.standin import CONTROL, ByteTokenizer

END = CONTROL["<|im_end|>"]


def byte_compiler(limits: Limits | None = None) -> ConstraintCompiler:
    vocabulary = Vocabulary(ByteTokenizer(), end_of_generation=ByteTokenizer.end_of_generation)
    return ConstraintCompiler(vocabulary, limits or Limits())


def schema(value: Mapping[str, Any] | bool, *, field: str = "schema", strict: bool = True) -> JsonSchema:
    return JsonSchema(schema=value, field=field, strict=strict)


def compiled(compiler: ConstraintCompiler, answer: Answer) -> TokenConstraint:
    made = compiler.compile(ConstraintSpec(answer=answer))
    assert made is not None
    return made


def takes(constraint: TokenConstraint, text: str | bytes, *, whole: bool = True) -> bool:
    """Whether ``text``, or with ``whole`` False a text that begins so, is within the constraint."""
    mask = constraint.start()
    for token in text.encode() if isinstance(text, str) else text:
        if token not in mask.allowed():
            return False
        mask.accept(token)
    return not whole or END in mask.allowed()


def walk(constraint: TokenConstraint, seed: int, *, most: int = 20_000) -> bytes:
    """A text of random allowed tokens, ended at one of the places where it may end."""
    chosen = random.Random(seed)
    mask, text = constraint.start(), bytearray()
    for _ in range(most):
        allowed = mask.allowed().tolist()
        token = END if END in allowed and chosen.random() < 0.5 else chosen.choice(allowed)
        mask.accept(token)
        if token == END:
            return bytes(text)
        text.append(token)
    raise AssertionError(f"no end after {most} tokens: {bytes(text[:200])!r}")
