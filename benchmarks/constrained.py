"""The time per generated token within a JSON schema, against the same engine without one.

Both generate equally many tokens from the same prompt on one engine, in turns. The schema is a list of
objects that does not end by itself, so a reply is made of punctuation, names, numbers and free strings.
The median of the paired ratios is the result; masking should cost 5 % at most.

Run: python benchmarks/constrained.py [--model MODEL] [--layers N]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when llama.cpp's OpenMP starts

import statistics
import tempfile
import time
from pathlib import Path

import click

from anchorline.bench.models import bench_model
from anchorline.config import ContextConfig, EngineConfig, ModelConfig
from anchorline.constraint.compiler import ConstraintCompiler
from anchorline.constraint.spec import ConstraintSpec, JsonSchema
from anchorline.constraint.vocabulary import Vocabulary
from anchorline.engine.engine import Engine
from anchorline.limits import Limits
from anchorline.llama.interface import SamplingParams, TokenArray, TokenConstraint
from anchorline.llama.model import Model, load_model
from anchorline.llama.runtime import LlamaRuntime
from anchorline.machine import physical_cores
from anchorline.numbers import IntegerRangeType
from anchorline.refusal import RefusingCommand
from decode_step import CONTEXT_TOKENS, SAMPLINGS, engine_ms, in_pairs

PROMPT = "<|im_start|>user\nList people with age, town and hobbies as JSON.<|im_end|>\n<|im_start|>assistant\n"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "town": {"type": "string"},
        "hobbies": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "status": {"enum": ["single", "married", "unknown"]},
    },
    "required": ["name", "age", "town", "hobbies", "status"],
    "additionalProperties": False,
}
PEOPLE = JsonSchema(schema={"type": "array", "items": PERSON, "minItems": 1000}, field="schema", strict=True)


def compile_schema(model: Model) -> TokenConstraint:
    vocabulary = Vocabulary(model.tokenizer, end_of_generation=model.tokenizer.end_of_generation)
    made = ConstraintCompiler(vocabulary, Limits()).compile(ConstraintSpec(answer=PEOPLE))
    assert made is not None
    return made


def measure(
    engine: Engine,
    prompt: TokenArray,
    constraint: TokenConstraint,
    *,
    sampling: SamplingParams,
    tokens: int,
    rounds: int,
) -> list[tuple[float, float]]:
    """(constrained, free) milliseconds per token, pair by pair."""

    def ms_per_token(name: str, asked: TokenConstraint | None) -> float:
        return engine_ms(engine, prompt, tokens=tokens, sampling=sampling, name=name, constraint=asked)

    return in_pairs(
        lambda number: ms_per_token(f"kept-{number}", constraint),
        lambda number: ms_per_token(f"free-{number}", None),
        rounds=rounds,
    )


@click.command(cls=RefusingCommand)
@click.option("--model", default="smollm2", show_default=True, help="A GGUF file or 'smollm2'.")
@click.option("--layers", type=IntegerRangeType(1), default=None, help="Keep only this many layers of the model.")
@click.option("--tokens", type=IntegerRangeType(2), default=96, show_default=True, help="Tokens of one generation.")
@click.option("--rounds", type=IntegerRangeType(1), default=15, show_default=True, help="Pairs.")
@click.option("--threads", type=IntegerRangeType(0), default=0, show_default=True, help="0 takes the physical cores.")
@click.option("--sampling", type=click.Choice(list(SAMPLINGS)), default="default", show_default=True)
def main(*, model: str, layers: int | None, tokens: int, rounds: int, threads: int, sampling: str) -> None:
    """Measure both in turns and print the medians and the median of the paired ratios."""
    threads = threads or physical_cores()
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-") as folder:
        path = bench_model(model, folder=Path(folder), layers=layers, context_tokens=CONTEXT_TOKENS)
        loaded = load_model(ModelConfig(model=str(path)))
        constraint = compile_schema(loaded)
        context = ContextConfig(context_tokens=CONTEXT_TOKENS, threads=threads, threads_batch=threads)
        config = EngineConfig(parallel=1, resident_idle=0, cache=False)
        engine = Engine(LlamaRuntime(loaded, context, sequences=1, owns_model=False), config, clock=time.monotonic)
        engine.start()
        try:
            pairs = measure(
                engine,
                loaded.tokenizer.tokenize(PROMPT),
                constraint,
                sampling=SAMPLINGS[sampling],
                tokens=tokens,
                rounds=rounds,
            )
        finally:
            engine.close()
        loaded.close()
    kept = statistics.median(pair[0] for pair in pairs)
    free = statistics.median(pair[1] for pair in pairs)
    ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
    click.echo(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs, {rounds} pairs of {tokens} tokens")
    click.echo(f"within the schema {kept:.3f} ms/token, free {free:.3f} ms/token, median ratio {ratio:.4f}")


if __name__ == "__main__":
    main()
