"""The engine's loop: inbox → admit (plan, restore) → batch → decode → sample → publish → save.

Everything here runs on the one thread that owns the runtime and the cache; ``engine.Engine`` is the
face for the other threads.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from itertools import islice
from math import inf

from anchorline.cache.prefix_cache import PrefixCache
from anchorline.config import EngineConfig
from anchorline.engine.admission import Admission, Outcome
from anchorline.engine.idle import DropReason, IdleSequences
from anchorline.engine.live import LiveSequence, SequencePool
from anchorline.engine.pacing import default_checkpoint_tokens, pauses, tokens_to_pause
from anchorline.engine.prospect import Prospector
from anchorline.engine.request import FinishReason
from anchorline.engine.reseating import reseat
from anchorline.engine.restoring import Restorer
from anchorline.engine.sampling import sample
from anchorline.engine.saving import Saver
from anchorline.engine.schedule import prefill_tokens, share_batch
from anchorline.engine.sealing import SealLedger, giving_way
from anchorline.engine.speeds import LOAD_TOKENS_MIN, PREFILL_TOKENS_MIN, SpeedMeter
from anchorline.engine.stream import Call, Clock, ReturnHold, Stream
from anchorline.errors import AnchorlineError, BackendFailure, Cancelled, ConstraintFailure
from anchorline.llama.interface import DecodeStatus, Runtime

log = logging.getLogger("anchorline.engine")


class EngineLoop:
    """Waiting and running streams over one runtime. Not thread-safe."""

    def __init__(self, runtime: Runtime, config: EngineConfig, cache: PrefixCache | None, clock: Clock) -> None:
        self.runtime = runtime
        self.cache = cache
        self.pool = SequencePool(runtime)
        self.meter = SpeedMeter()
        self.waiting: deque[Stream] = deque()
        self.running: list[Stream] = []
        self.decode_calls = 0
        self.decoded_tokens = 0
        self.preemptions = 0
        self.seals = SealLedger()
        self._exact = config.exact
        self._parallel = 1 if config.exact else config.parallel
        self._resident_idle = 0 if config.exact or cache is None else config.resident_idle
        self._clock = clock
        self._stateful = runtime.capabilities.has_state
        self._checkpoint_tokens = config.checkpoint_every or default_checkpoint_tokens(
            runtime.capabilities, runtime.limits
        )
        self._saver = Saver(runtime, cache)
        self.idle = IdleSequences(
            runtime=runtime,
            pool=self.pool,
            cache=cache,
            saver=self._saver,
            meter=self.meter,
            spare_ids=max(0, runtime.limits.sequences - self._parallel - self._resident_idle),
        )
        self._admission = Admission(
            runtime=runtime,
            pool=self.pool,
            cache=cache,
            saver=self._saver,
            idle=self.idle,
            restorer=Restorer(runtime=runtime, pool=self.pool, meter=self.meter, clock=clock),
            prospector=Prospector(
                pool=self.pool, cache=cache, saver=self._saver, meter=self.meter, stateful=self._stateful
            ),
            meter=self.meter,
            clock=clock,
            running=self.running,
            max_passes=0 if config.exact else config.max_passes,
        )
        self._blocked = False
        """A waiting stream found no room; nothing changes that before something ends."""

    @property
    def has_work(self) -> bool:
        reads_index = self.cache is not None and self.cache.disk is not None and self.cache.disk.has_work
        return bool(self.running or self._saver.has_work or reads_index or next(self._startable(), None))

    def _startable(self) -> Iterator[Stream]:
        """The waiting streams that may be started now, as far as can be told.

        None is behind one that found no room and may not be passed by: it would take the room that others make.
        """
        for stream in self.waiting:
            if stream.hold is not None:
                if stream.hold.is_over:
                    yield stream
            elif not self._blocked:
                yield stream
            elif not self._admission.may_be_passed(stream):
                return

    @property
    def due_seconds(self) -> float:
        """When a stream's wait ends by the clock alone, while there is no other work; infinity where none does."""
        holds = (stream.hold for stream in self.waiting)
        return min((hold.until_seconds for hold in holds if isinstance(hold, ReturnHold)), default=inf)

    @property
    def awaited_returns(self) -> int:
        """How often a call waited for a conversation to come back, whose cells it would have taken."""
        return self._admission.awaited_returns

    @property
    def pending_saves(self) -> int:
        return len(self._saver)

    def finish_saves(self) -> None:
        """Keep now what finished sequences still have to keep."""
        self._saver.flush_all()

    def write_last(self) -> None:
        """Hand over to the disk tier what is not there yet, before the end."""
        if self.cache is not None and self.cache.disk is not None:
            self.finish_saves()
            self.cache.disk.write_pinned()

    def forget_idle(self, tenant: str) -> None:
        """Drop a tenant's finished sequences; what is not saved of them is lost."""
        for live in self.pool.idle():
            if live.prompt.tenant == tenant:
                self._forget(live)

    # -- inbox --------------------------------------------------------------------------------

    def open(self, call: Call) -> list[Call]:
        """Queue a call; its further choices follow when the first one's prompt is decoded.

        Calls that end to make way are returned. A background call does so itself unless there is nothing else to do.
        """
        ended = giving_way(call, [*self.running, *self.waiting])
        for other in ended:
            if other is not call:
                self.seals.delayed(self._clock() - call.queued_seconds)
            self.cancel(other, Cancelled("it was made ahead of need, and there is other work"))
        if call not in ended:
            if not call.request.background:
                self._admission.note_arrival(call.streams[0])
            self.waiting.append(call.streams[0])
            self._try_again()
        return ended

    def cancel(self, call: Call, error: AnchorlineError | None = None) -> None:
        """End a call at once; what it prefilled stays for a retry."""
        for stream in call.streams:
            if stream in self.waiting:
                self.waiting.remove(stream)
            if stream in self.running:
                self._leave(stream)
            stream.close()
        self._try_again()
        call.fail(error or Cancelled("the request was cancelled"), self._clock())

    def preview(self, call: Call) -> None:
        """Let ``call``, which nobody opens, account for what it would begin with now. Changes nothing else."""
        call.restoration = self._admission.preview(call.streams[0], keep_idle=self._resident_idle)
        call.reached_tokens = len(call.prompt)

    # -- one step -----------------------------------------------------------------------------

    def step(self) -> list[Call]:
        """Do one round of work; the calls that ended in it."""
        if self.cache is not None:
            self.cache.advance()
        self._admit()
        ended: list[Call] = []
        work = self._schedule()
        if work:
            ended = self._decode(work)
        if self._saver.has_work:
            self._saver.advance()
        return ended

    def _admit(self) -> None:
        """Start waiting streams, as far as there is room; those that are held are passed by.

        A held stream keeps its place. What may not be passed by starts before all later ones.
        """
        left = list(self._startable())
        while left and len(self.running) < self._parallel:
            stream = self._admission.next_of(left)
            left.remove(stream)
            if stream.call.request.background and self._saver.has_work:
                return  # it would have to finish what a step can interrupt
            self.idle.keep(self._resident_idle)
            outcome = self._admission.admit(stream)
            if outcome is Outcome.NO_ROOM:
                self._blocked = True
                if not self._admission.may_be_passed(stream):
                    return
            elif outcome is Outcome.STARTED:
                for passed in islice(self.waiting, self.waiting.index(stream)):
                    passed.passes += 1
                self.waiting.remove(stream)
                self._run(stream)

    def _run(self, stream: Stream) -> None:
        """Count a seated stream among the running ones."""
        assert stream.live is not None
        stream.live.call_class = stream.call.known_class
        if stream.sampler is None and not stream.only_prefills:
            constraint = stream.call.request.constraint
            mask = None if constraint is None else constraint.start()
            stream.sampler = self.runtime.sampler(stream.sampling, stream.call.prompt.tokens, mask)
        stream.stops = pauses(
            stream.call.prompt,
            stream.live.length,
            exact_batch_tokens=self.runtime.limits.batch_tokens if self._exact else None,
            checkpoint_tokens=self._checkpoint_tokens if self._keeps_states(stream) else None,
        )
        self.running.append(stream)
        if stream.choice == 0 and not stream.call.request.background:
            self.seals.started(
                stream.call.prompt.tokens, stream.live.length, seconds_per_token=self.meter.token_seconds
            )

    def _keeps_states(self, stream: Stream) -> bool:
        return self._stateful and self.cache is not None and stream.call.request.use_cache

    def _schedule(self) -> list[tuple[Stream, int]]:
        """How many pending tokens each running stream feeds into this step; zeros are left out."""
        pending = [tokens_to_pause(stream) for stream in self.running]
        if self._exact:
            return list(zip(self.running, pending, strict=True))
        limits = self.runtime.limits
        wanted = prefill_tokens(
            limits,
            generating=1 in pending,
            background=any(stream.call.request.background for stream in self.running),
            token_seconds=self.meter.token_seconds,
        )
        shares = share_batch(pending, batch_tokens=limits.batch_tokens, prefill_tokens=wanted)
        return [(stream, share) for stream, share in zip(self.running, shares, strict=True) if share]

    def _decode(self, work: list[tuple[Stream, int]]) -> list[Call]:
        """One decode call over ``work``, then sampling for the streams that fed all they knew."""
        outputs = self._fill_batch(work)
        started = self._clock()
        try:
            status = self.runtime.decode()
        except BackendFailure as error:
            return self._lose([stream for stream, _ in work], error)
        if status is DecodeStatus.NO_CELLS:
            return self._make_room()
        self.decode_calls += 1
        self.decoded_tokens += self.runtime.batch.size
        ended_at = self._clock()
        if (tokens := self.runtime.batch.size) >= PREFILL_TOKENS_MIN:
            cells = self.pool.reach(tokens // 2) if tokens >= LOAD_TOKENS_MIN else None
            self.meter.prefilled(tokens, ended_at - started, cells=cells)
        choosing: list[tuple[Stream, int]] = []
        try:
            for stream, share in work:
                self._advance(stream, share, ended_at)
        except BackendFailure as error:
            return self._lose([stream for stream, _ in work], error)
        for stream, output in outputs:
            choosing.append((stream, output))
            choosing.extend((sibling, output) for sibling in self._fork_choices(stream))
        return [*self._end_prefills(work), *self._sample_all(choosing)]

    def _end_prefills(self, work: list[tuple[Stream, int]]) -> list[Call]:
        """End the streams that were only to prefill and have; their calls."""
        done = [stream for stream, _ in work if stream.only_prefills and not stream.in_prompt]
        for stream in done:
            stream.finish = FinishReason.LENGTH
            self._finish(stream)
        return [stream.call for stream in done]

    def _advance(self, stream: Stream, share: int, now: float) -> None:
        """``share`` more tokens of ``stream`` are decoded: note the end of its prompt, keep states at pauses."""
        live = stream.live
        assert live is not None
        live.length += share
        if stream.choice == 0:
            stream.call.reached_tokens = max(stream.call.reached_tokens, min(live.length, len(stream.call.prompt)))
        if stream.call.prefilled_seconds is None and not stream.in_prompt:
            stream.call.prefilled_seconds = now
        if stream.stops and stream.stops[0] == live.length:
            stream.stops.pop(0)
            if (stream.in_prompt or stream.only_prefills) and self._keeps_states(stream):
                self._saver.capture(live, ends_reply=False)
                if not self._exact:
                    # Also when its last save is still under way: others may wait for this state.
                    self._saver.enqueue(live)
            if stream.in_prompt and self._exact and self._stateful:
                reseat(self.runtime, live)

    def _fill_batch(self, work: list[tuple[Stream, int]]) -> list[tuple[Stream, int]]:
        """Put the shares into the batch; (stream, batch index) of those that yield logits."""
        batch = self.runtime.batch
        batch.clear()
        outputs: list[tuple[Stream, int]] = []
        for stream, share in work:
            live = stream.live
            assert live is not None
            last = share == stream.pending and not stream.only_prefills
            tokens = stream.buffer.view(live.length, live.length + share)
            index = batch.add(tokens, start=live.length, sequence=live.id, output=last)
            if last:
                outputs.append((stream, index))
        return outputs

    def _fork_choices(self, stream: Stream) -> list[Stream]:
        """Once the prompt of a call's first stream is decoded: the further choices, forked at its tip.

        They choose from the same logits. Those for which no stream is free wait their turn.
        """
        call = stream.call
        if stream.choice or call.forked or stream.generated or len(call.streams) == 1:
            return []
        call.forked = True
        self.idle.keep(self._resident_idle)
        assert stream.live is not None
        forked: list[Stream] = []
        left = call.streams[1:]
        try:
            while left and len(self.running) < self._parallel:
                left[0].live = self.pool.fork(stream.live, stream.live.length, call.prompt, left[0].buffer)
                self._run(left[0])
                forked.append(left.pop(0))
        except BackendFailure as failure:
            log.info("a choice is computed on its own: %s", failure)
        self.waiting.extendleft(reversed(left))
        self._try_again()
        return forked

    def _sample_all(self, choosing: list[tuple[Stream, int]]) -> list[Call]:
        """Choose the next token of each stream from the logits at its batch index; the calls that ended."""
        ended: list[Call] = []
        for stream, output in choosing:
            if stream.sampler is None:  # its call has failed with another choice
                continue
            try:
                sample(self.runtime, stream, output, clock=self._clock)
            except ConstraintFailure as error:
                log.warning("call %s ends: %s", stream.call.request.id, error)
                self.cancel(stream.call, error)
                ended.append(stream.call)
                continue
            if stream.finish is not None and self._finish(stream):
                ended.append(stream.call)
        return ended

    def _try_again(self) -> None:
        """Something came or ended: look again at what found no room, or waited for a conversation."""
        self._blocked = False
        for stream in self.waiting:
            if isinstance(stream.hold, ReturnHold):
                stream.hold = None

    # -- ends ---------------------------------------------------------------------------------

    def _finish(self, stream: Stream) -> bool:
        """Publish the end of a stream; True when its call ended with it."""
        assert stream.finish is not None
        call = stream.call
        call.finished_streams += 1
        if not stream.only_prefills:
            self.meter.replied(stream.generated)
        call.consumer.on_finish(stream.choice, stream.finish)
        if call.is_finished:
            call.consumer.on_done(call.report(self._clock()))
        self._leave(stream)
        stream.close()
        self._try_again()
        return call.is_finished

    def _leave(self, stream: Stream) -> None:
        """Take a stream out of the running ones; its sequence turns idle and is saved, or is dropped."""
        self.running.remove(stream)
        at_prompt_end = stream.only_prefills and not stream.in_prompt
        live, stream.live = stream.live, None
        assert live is not None
        live.busy = False
        live.idle_since_seconds = self._clock()
        if self.cache is None or not stream.call.request.use_cache or live.length == 0:
            self._forget(live)
            return
        self.pool.touch(live)
        if stream.call.request.background:
            start = stream.call.restoration.restored_tokens
            self.seals.sealed(stream.call.prompt.tokens, start, live.length, seconds_per_token=self.meter.token_seconds)
        if self._stateful and not self._exact:
            self._saver.capture(live, ends_reply=not at_prompt_end or live.prompt.guessed)
        self._saver.enqueue(live)
        if self._exact:
            self.idle.drop_all(DropReason.SURPLUS)

    def _make_room(self) -> list[Call]:
        """The pool is full: take a batch of cells of the idle sequences, or preempt the stream admitted last."""
        if self.idle.make_room(self.runtime.limits.batch_tokens):
            return []
        youngest = self.running[-1]
        if len(self.running) == 1:
            return self._lose([youngest], BackendFailure("the pool has no room for a single sequence"))
        self._preempt(youngest)
        return []

    def _preempt(self, stream: Stream) -> None:
        """Save a running stream's tokens, free its cells and let it wait at the head of the queue."""
        self.preemptions += 1
        self.running.remove(stream)
        live, stream.live = stream.live, None
        assert live is not None
        live.busy = False
        if stream.call.request.use_cache and live.length:
            self._saver.capture(live, ends_reply=True)
            self._saver.enqueue(live)
            self._saver.flush(live)
        self.pool.drop(live)
        self.waiting.appendleft(stream)
        self._blocked = True

    def _lose(self, streams: list[Stream], error: BackendFailure) -> list[Call]:
        """A decode call failed: empty the sequences in it and fail their calls."""
        log.error("a decode call failed; %d sequences are lost: %s", len(streams), error)
        calls = list({id(stream.call): stream.call for stream in streams}.values())
        for stream in streams:
            self.running.remove(stream)
            live, stream.live = stream.live, None
            assert live is not None
            self._forget(live)
        for call in calls:
            self.cancel(call, error)
        return calls

    def _forget(self, live: LiveSequence) -> None:
        live.busy = False
        self._saver.abandon(live)
        self.pool.drop(live)
