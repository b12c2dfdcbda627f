"""The next token of a stream: drawn by its sampler, or forced, and handed to whoever takes the reply."""

from __future__ import annotations

from anchorline.engine.request import FinishReason, SampledToken
from anchorline.engine.stream import Clock, Stream
from anchorline.llama.interface import Runtime


def sample(runtime: Runtime, stream: Stream, output: int, *, clock: Clock) -> None:
    """Choose the stream's next token from the logits at ``output`` and hand it on; sets ``finish`` at the last.

    Raises ConstraintFailure.
    """
    call = stream.call
    token = _choose(stream, output)
    if call.first_token_seconds is None:
        call.first_token_seconds = clock()
    if runtime.is_end_of_generation(token):
        stream.finish = FinishReason.STOP
        return
    sampled = SampledToken(token)
    if call.request.logprobs is not None:
        chosen, alternatives = runtime.logprobs(output, token, call.request.logprobs)
        sampled = SampledToken(token, chosen.logprob, alternatives)
    stream.buffer.append(token)
    stream.generated += 1
    if call.consumer.on_token(stream.choice, sampled):
        stream.finish = FinishReason.STOP
    elif stream.generated == call.max_tokens:
        stream.finish = FinishReason.LENGTH


def _choose(stream: Stream, output: int) -> int:
    """The token that the call's forcer wants, else the one that the sampler draws."""
    assert stream.sampler is not None
    forcer = stream.call.request.forcer
    forced = None if forcer is None else forcer.force(stream.choice, stream.reply)
    if forced is None:
        return stream.sampler.sample(output)
    stream.sampler.accept(forced)
    return forced
