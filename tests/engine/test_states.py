"""Stateful kinds over the fake runtime: where they resume, and which states are kept."""

from __future__ import annotations

import pytest

from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.engine.request import CallReport, MissReason, PlanKind
from anchorline.llama.interface import MemoryKind
from tests.engine.harness import Harness, make_prompt
from tests.engine.test_properties import check_rest
from tests.support.fake_runtime import CELL_BYTES, STATE_BYTES, FakeRuntime, expected_reply, tokens_of

HEAD = [1, 2, 3, 4, 5, 6, 7, 8] * 3
GENERATION = [40, 41, 42]
"""The generation prompt."""
MESSAGE_TOKENS = 10

kinds = pytest.mark.parametrize("kind", [MemoryKind.HYBRID, MemoryKind.RECURRENT])


def message(name: int, number: int) -> list[int]:
    return [name % 20, *((number * 7 + offset * 3 + name) % 40 for offset in range(MESSAGE_TOKENS - 1))]


def conversation(*messages: list[int], turn: int = 0) -> Prompt:
    """Head, messages, generation prompt; ``turn`` is the index of the newest user message."""
    ids = list(HEAD)
    cuts = [Cut(len(HEAD), CutKind.HEAD)]
    starts = []
    for index, content in enumerate(messages):
        starts.append(len(ids))
        ids += content
        cuts.append(Cut(len(ids), CutKind.MESSAGE, index))
    cuts[-1] = Cut(len(ids), CutKind.GENERATION)
    return Prompt(
        tokens=tokens_of([*ids, *GENERATION]),
        cuts=tuple(cuts),
        tool_fingerprint="tools",
        pin_head=True,
        message_starts=tuple(starts),
        turn_start=starts[turn],
    )


def make(kind: MemoryKind, *, resident_idle: int = 0, cache_bytes: int = 1 << 20) -> Harness:
    runtime = FakeRuntime(context_tokens=4000, sequences=3 + resident_idle, kind=kind)
    return Harness(runtime, resident_idle=resident_idle, cache_bytes=cache_bytes)


def ask(harness: Harness, prompt: Prompt) -> CallReport:
    recorder = harness.ask(prompt)
    assert recorder.error is None
    expected = expected_reply(prompt.tokens.tolist(), 4, kind=harness.runtime.capabilities.kind)
    assert recorder.tokens.get(0, []) == expected
    assert recorder.report is not None
    return recorder.report


@kinds
def test_a_conversation_comes_back_whole_after_another(kind: MemoryKind) -> None:
    harness = make(kind)
    first = [message(1, n) for n in range(7)]
    for turn in range(3):
        ask(harness, conversation(*first[: 2 * turn + 1], turn=2 * turn))
    ask(harness, conversation(message(2, 0)))
    report = ask(harness, conversation(*first, turn=6))
    assert report.plan is PlanKind.RESTORE
    assert report.restored_tokens == len(HEAD) + 5 * MESSAGE_TOKENS
    assert report.miss is None


@kinds
def test_an_edited_tool_round_resumes_at_the_round_before(kind: MemoryKind) -> None:
    harness = make(kind)
    rounds = [message(3, n) for n in range(1 + 2 * 15)]
    for number in range(16):
        ask(harness, conversation(*rounds[: 1 + 2 * number]))
    edited = [*rounds[: 1 + 2 * 9], message(4, 0), message(4, 1)]
    report = ask(harness, conversation(*edited))
    assert report.restored_tokens == len(HEAD) + (1 + 2 * 9) * MESSAGE_TOKENS


@kinds
def test_the_same_prompt_again_prefills_the_generation_prompt(kind: MemoryKind) -> None:
    harness = make(kind, resident_idle=1)
    prompt = conversation(message(1, 0))
    ask(harness, prompt)
    report = ask(harness, prompt)
    assert report.prefilled_tokens == len(GENERATION)


@kinds
def test_two_branches_in_turn_prefill_their_generation_prompts(kind: MemoryKind) -> None:
    harness = make(kind)
    shared = [message(1, n) for n in range(8)]
    branches = [conversation(*shared, message(2, 0), turn=8), conversation(*shared, message(3, 0), turn=8)]
    for branch in branches:
        ask(harness, branch)
    for branch in branches:
        assert ask(harness, branch).prefilled_tokens == len(GENERATION)


@kinds
def test_another_way_to_go_on_from_a_conversation_prefills_its_delta(kind: MemoryKind) -> None:
    """As when an agent reviews a chat in a call of its own, and the chat goes on after it."""
    harness = make(kind)
    trunk = [message(1, n) for n in range(9)]
    ask(harness, conversation(*trunk, turn=8))
    review, chat = ([*trunk, message(number, 0), message(number, 1)] for number in (2, 3))
    for messages in (review, chat):
        delta = len(messages[-2]) + len(messages[-1]) + len(GENERATION)
        assert ask(harness, conversation(*messages, turn=10)).prefilled_tokens == delta
    for messages in (review, chat):
        assert ask(harness, conversation(*messages, turn=10)).prefilled_tokens == len(GENERATION)


@kinds
def test_an_unchanged_reply_continues_the_resident_sequence(kind: MemoryKind) -> None:
    harness = make(kind, resident_idle=1)
    prompt = conversation(message(1, 0))
    ask(harness, prompt)
    reply = expected_reply(prompt.tokens.tolist(), 4, kind=kind)
    longer = Prompt(tokens=tokens_of([*prompt.tokens.tolist(), *reply, 9, 9, 9]), cuts=prompt.cuts)
    report = ask(harness, longer)
    assert report.plan is PlanKind.CONTINUE
    assert report.restored_tokens >= len(prompt) + len(reply) - 1


@kinds
def test_a_miss_names_the_cut_whose_state_was_missing(kind: MemoryKind) -> None:
    harness = make(kind)
    messages = [message(5, n) for n in range(9)]
    ask(harness, conversation(*messages, turn=8))
    report = ask(harness, conversation(*messages[:4], message(6, 0), turn=4))
    assert report.restored_tokens == len(HEAD)
    assert (report.miss, report.missing_cut) == (MissReason.NO_STATE, "message 3")


@kinds
def test_states_of_a_long_prefill_lie_a_checkpoint_apart(kind: MemoryKind) -> None:
    runtime = FakeRuntime(context_tokens=4000, sequences=3, kind=kind)
    harness = Harness(runtime, resident_idle=0, checkpoint_every=50)
    long_message = [n * 7 % 40 for n in range(300)]
    ask(harness, conversation(long_message))
    edited = [*long_message[:180], *(48 for _ in range(40))]
    report = ask(harness, conversation(edited))
    assert report.restored_tokens == len(HEAD) + 150


@kinds
def test_a_cancelled_prefill_resumes_where_it_ended(kind: MemoryKind) -> None:
    runtime = FakeRuntime(context_tokens=4000, sequences=4, kind=kind)
    harness = Harness(runtime, resident_idle=0)
    prompt = conversation([n * 7 % 40 for n in range(400)])
    call, _ = harness.open(prompt)
    for _ in range(8):
        harness.loop.step()
    done = runtime.decoded_tokens
    assert len(HEAD) < done < len(prompt)
    harness.loop.cancel(call)
    harness.run()
    assert ask(harness, prompt).restored_tokens == done


def test_a_long_conversation_keeps_its_rows_and_five_states() -> None:
    """Forty turns, each reply coming back re-rendered, over a head shared with another conversation."""
    harness = make(MemoryKind.HYBRID)
    assert harness.cache is not None
    ask(harness, conversation(message(9, 9)))
    tree = harness.cache.tree
    states_before, bytes_before = tree.state_bytes, kept_bytes(harness)
    messages: list[list[int]] = []
    for turn in range(40):
        messages.append(message(1, 2 * turn))
        ask(harness, conversation(*messages, turn=len(messages) - 1))
        messages.append(message(2, 2 * turn + 1))
    unique = len(conversation(*messages[:-1])) - len(HEAD)
    assert tree.state_bytes - states_before <= 5 * STATE_BYTES
    assert kept_bytes(harness) - bytes_before <= 1.1 * (unique * CELL_BYTES + 5 * STATE_BYTES)


def kept_bytes(harness: Harness) -> int:
    """Rows and states, without the arena's rounding, which is large beside these few bytes."""
    assert harness.cache is not None
    nodes = list(harness.cache.tree)
    rows = {id(node.rows): node.rows.nbytes for node in nodes if node.rows is not None}
    return sum(rows.values()) + harness.cache.tree.state_bytes


def test_old_states_go_before_rows_under_pressure() -> None:
    runtime = FakeRuntime(context_tokens=4000, sequences=3, kind=MemoryKind.HYBRID)
    harness = Harness(runtime, resident_idle=0, cache_bytes=64 * 80)
    cache = harness.cache
    assert cache is not None
    rounds = [message(3, n) for n in range(1 + 2 * 12)]
    for number in range(13):
        ask(harness, conversation(*rounds[: 1 + 2 * number]))
        assert cache.arena.used_bytes <= cache.arena.budget_bytes
    report = ask(harness, conversation(*rounds))
    assert report.prefilled_tokens == len(GENERATION)
    assert cache.counters.evictions > 0


@kinds
def test_choices_fork_at_the_tip_of_the_prompt(kind: MemoryKind) -> None:
    harness = make(kind)
    prompt = conversation(message(1, 0))
    _, recorder = harness.open(prompt, choices=3, seed=5)
    harness.run()
    for choice in range(3):
        expected = expected_reply(prompt.tokens.tolist(), 4, salt=5 + choice, kind=kind)
        assert recorder.tokens.get(choice, []) == expected
    generated = sum(len(tokens) for tokens in recorder.tokens.values())
    assert harness.runtime.decoded_tokens <= len(prompt) + generated


@kinds
def test_a_prompt_that_comes_before_the_save_is_done_finds_its_states(kind: MemoryKind) -> None:
    """The reply is out and its sequence idle, but of many pieces few have been written to the host tier yet."""
    runtime = FakeRuntime(context_tokens=4000, sequences=4, batch_tokens=400, kind=kind)
    harness = Harness(runtime, resident_idle=1, checkpoint_every=20)
    long_message = [n * 7 % 40 for n in range(300)]
    _, recorder = harness.open(conversation(long_message), max_tokens=1)
    while not recorder.has_ended:
        harness.loop.step()
    report = ask(harness, conversation(long_message, message(2, 0), message(3, 0), turn=2))
    assert report.restored_tokens == len(HEAD) + len(long_message)


@kinds
def test_a_second_session_finds_the_head_while_the_first_still_generates(kind: MemoryKind) -> None:
    harness = make(kind)
    _, first = harness.open(conversation(message(1, 0)), max_tokens=60)
    while not first.sampled:
        harness.loop.step()
    report = ask(harness, conversation(message(2, 0)))
    assert report.restored_tokens == len(HEAD)


@kinds
def test_a_head_that_changes_near_its_end_resumes_inside_of_it(kind: MemoryKind) -> None:
    """Its checkpoints outlive the turns of the conversations over it."""
    runtime = FakeRuntime(context_tokens=4000, sequences=4, kind=kind)
    harness = Harness(runtime, resident_idle=0, checkpoint_every=20)
    head = [n * 7 % 40 for n in range(100)]

    def over_head(ids: list[int], *messages: list[int]) -> Prompt:
        rest = conversation(*messages, turn=len(messages) - 1)
        shift = len(ids) - len(HEAD)
        cuts = tuple(Cut(cut.position + shift, cut.kind, cut.message) for cut in rest.cuts)
        starts = tuple(start + shift for start in rest.message_starts)
        tokens = tokens_of([*ids, *rest.tokens.tolist()[len(HEAD) :]])
        return Prompt(tokens=tokens, cuts=cuts, message_starts=starts, turn_start=starts[-1])

    messages = [message(1, n) for n in range(9)]
    for turn in range(0, 9, 2):
        ask(harness, over_head(head, *messages[: turn + 1]))
    changed = [*head[:90], *([48] * 10)]
    assert ask(harness, over_head(changed, message(1, 0))).restored_tokens == 80


def test_who_is_preempted_before_anything_was_computed_has_no_state() -> None:
    runtime = FakeRuntime(context_tokens=64, sequences=3, kind=MemoryKind.HYBRID)
    harness = Harness(runtime, resident_idle=0)
    for name in (40, 41):
        harness.open(make_prompt([name, *range(25)]), max_tokens=20)
    while harness.loop.pool.free_cells > 6:
        harness.loop.step()
    assert len(harness.loop.running) == 2
    harness.open(make_prompt([42] * (harness.loop.pool.free_cells - 1)))
    harness.loop.step()
    assert harness.loop.preemptions == 1
    assert harness.loop.decoded_tokens == runtime.used_cells
    harness.run()
    check_rest(harness, runtime)
