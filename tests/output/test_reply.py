"""Engine tokens become events: text in order, each token once, held-back text at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.engine.request import FinishReason, SampledToken
from anchorline.errors import Cancelled
from anchorline.llama.interface import TokenArray, TokenLogprob
from anchorline.output.events import ChoiceFinished, ReplyEvent, ReplyFailed, TextDelta, TokenText
from anchorline.output.formats import FORMATS
from anchorline.output.reply import Reply
from tests.api.test_replies import REPORT
from tests.output.reading import context, put_together
from tests.prompt.vocabulary import ToyTokenizer


class Pieces:
    """A tokenizer whose token n stands for the n-th of given byte strings."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = list(pieces)
        self.control_tokens: Mapping[str, int] = {}
        self.strips: Mapping[str, tuple[bool, bool]] = {}
        self.vocab_size = len(self.pieces)
        self.bos = None
        self.eos = None
        self.adds_bos = False

    def tokenize(self, text: str) -> TokenArray:
        return np.array([self.pieces.index(bytes([byte])) for byte in text.encode()], dtype=np.int32)

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def special_piece(self, token: int) -> bytes:
        return self.pieces[token]

    def detokenize(self, tokens: Sequence[int] | TokenArray) -> bytes:
        return b"".join(self.pieces[int(token)] for token in tokens)


def run(
    pieces: Sequence[bytes], *, stop: tuple[str, ...] = (), reason: FinishReason = FinishReason.LENGTH
) -> tuple[list[TextDelta], ChoiceFinished]:
    """What one choice gives for tokens with these bytes; feeding ends when the reply says so."""
    events: list[ReplyEvent] = []
    reply = Reply(Pieces(pieces), choices=1, stop=stop, emit=events.append)
    for token in range(len(pieces)):
        if reply.on_token(0, SampledToken(token, -0.5 * token, (TokenLogprob(token, -0.5),))):
            break
    reply.on_finish(0, reason)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert isinstance(events[-1], ChoiceFinished)
    assert len(deltas) + 1 == len(events)
    return deltas, events[-1]


def shown(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def tokens_of(deltas: list[TextDelta]) -> list[TokenText]:
    return [token for delta in deltas for token in delta.tokens]


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(st.one_of(st.binary(max_size=3), st.text(max_size=2).map(lambda t: t.encode("utf-8", "replace"))))
)
def test_all_text_and_every_token_once_in_order(pieces: list[bytes]) -> None:
    deltas, finished = run(pieces)
    assert shown(deltas) == b"".join(pieces).decode("utf-8", "replace")
    assert [token.token for token in tokens_of(deltas)] == list(range(len(pieces)))
    assert finished == ChoiceFinished(0, FinishReason.LENGTH, None)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="aé<|", max_size=30), cuts=st.lists(st.integers(1, 4), max_size=60))
def test_no_delta_runs_ahead_of_its_tokens(text: str, cuts: list[int]) -> None:
    data, pieces = text.encode(), list[bytes]()
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    deltas, _ = run([*pieces, data], stop=("<|x|>",))
    reported = given_out = b""
    for delta in deltas:
        given_out += delta.text.encode()
        reported += b"".join(token.text_bytes for token in delta.tokens)
        assert given_out.startswith(reported) or reported == b"".join([*pieces, data])
    assert given_out == reported == text.encode()


def test_a_half_character_waits_for_its_token() -> None:
    deltas, _ = run(["é".encode()[:1], "é".encode()[1:], b"a"])
    assert [(delta.text, [t.token for t in delta.tokens]) for delta in deltas] == [("é", [0, 1]), ("a", [2])]


def test_log_probabilities_come_with_the_text() -> None:
    deltas, _ = run([b"a", b"b"])
    assert tokens_of(deltas)[1] == TokenText(1, b"b", -0.5, (TokenLogprob(1, -0.5),))


def test_a_stop_string_over_several_tokens() -> None:
    deltas, finished = run([b"one ", b"E", b"N", b"D two", b"never"], stop=("END",))
    assert shown(deltas) == "one "
    assert [token.token for token in tokens_of(deltas)] == [0]
    assert finished == ChoiceFinished(0, FinishReason.STOP, "END")


def test_a_token_that_holds_text_and_the_beginning_of_a_stop_string_is_reported() -> None:
    deltas, finished = run([b"a", b"b<", b"/s>"], stop=("</s>",))
    assert shown(deltas) == "ab"
    assert [token.token for token in tokens_of(deltas)] == [0, 1]
    assert finished.stop_string == "</s>"


def test_held_back_text_is_shown_at_the_end() -> None:
    deltas, finished = run([b"a", b"E", b"N"], stop=("END",))
    assert shown(deltas) == "aEN"
    assert [token.token for token in tokens_of(deltas)] == [0, 1, 2]
    assert finished == ChoiceFinished(0, FinishReason.LENGTH, None)


def test_half_a_character_at_the_end_is_replaced() -> None:
    deltas, _ = run([b"a", "é".encode()[:1]])
    assert shown(deltas) == "a\ufffd"


def test_a_stop_string_that_the_end_completes() -> None:
    deltas, finished = run([b"a", "é".encode()[:1]], stop=("\ufffd",))
    assert shown(deltas) == "a"
    assert finished == ChoiceFinished(0, FinishReason.STOP, "\ufffd")


def test_choices_do_not_mix() -> None:
    events: list[ReplyEvent] = []
    reply = Reply(Pieces([b"a", b"b", b"!"]), choices=2, stop=("!",), emit=events.append)
    assert not reply.on_token(0, SampledToken(0))
    assert not reply.on_token(1, SampledToken(1))
    assert reply.on_token(0, SampledToken(2))
    reply.on_finish(0, FinishReason.STOP)
    assert not reply.on_token(1, SampledToken(1))
    reply.on_finish(1, FinishReason.LENGTH)
    text = {choice: shown([e for e in events if isinstance(e, TextDelta) and e.choice == choice]) for choice in (0, 1)}
    assert text == {0: "a", 1: "bb"}
    assert ChoiceFinished(1, FinishReason.LENGTH, None) in events


def test_an_error_is_the_last_event() -> None:
    events: list[ReplyEvent] = []
    error = Cancelled("gone")
    Reply(Pieces([]), choices=1, stop=(), emit=events.append).on_error(error, REPORT)
    assert events == [ReplyFailed(error, REPORT)]


def test_only_the_control_tokens_that_a_parser_asked_for_have_text() -> None:
    vocabulary = ToyTokenizer(["<|start|>", "<|end|>"])
    start, end = vocabulary.control_tokens.values()
    events: list[ReplyEvent] = []
    reply = Reply(vocabulary, choices=1, stop=(), emit=events.append, spelled=frozenset({"<|start|>", "<|none|>"}))
    for token in (start, ord("a"), end):
        reply.on_token(0, SampledToken(token))
    reply.on_finish(0, FinishReason.STOP)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert shown(deltas) == "<|start|>a"
    assert [token.text_bytes for token in tokens_of(deltas)] == [b"<|start|>", b"a", b""]


def test_stop_strings_are_looked_for_in_spelled_tokens_too() -> None:
    vocabulary = ToyTokenizer(["<|end|>"])
    events: list[ReplyEvent] = []
    reply = Reply(vocabulary, choices=1, stop=("d|>",), emit=events.append, spelled=frozenset({"<|end|>"}))
    assert reply.on_token(0, SampledToken(vocabulary.control_tokens["<|end|>"]))
    assert shown([event for event in events if isinstance(event, TextDelta)]) == "<|en"


def test_a_format_reads_the_tokens_of_a_reply() -> None:
    harmony = FORMATS["harmony"]
    vocabulary = ToyTokenizer(sorted(harmony.spelled))
    control = vocabulary.control_tokens
    tokens: list[int] = []
    for part in ("<|channel|>", "analysis", "<|message|>", "hé", "<|end|>", "<|start|>", "assistant", "<|channel|>"):
        tokens += [control[part]] if part in control else vocabulary.tokenize(part).tolist()
    tokens += [*vocabulary.tokenize("final").tolist(), control["<|message|>"], ord("Y"), ord("!"), control["<|end|>"]]
    parser = harmony.parser(context(prompt_end="<|start|>assistant"))
    events: list[ReplyEvent] = []
    reply = Reply(
        vocabulary,
        choices=1,
        stop=(),
        emit=lambda event: events.extend(parser.feed(event)),
        spelled=harmony.spelled,
    )
    for token in tokens:
        reply.on_token(0, SampledToken(token))
    reply.on_finish(0, FinishReason.STOP)
    reading = put_together(events)
    assert reading.parts == [("reasoning", "hé"), ("text", "Y!")]
    assert [token.token for token in reading.tokens] == tokens


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet="ab \n<tol_c>é", max_size=40), cuts=st.lists(st.integers(1, 4), max_size=40))
def test_what_a_parser_holds_back_holds_its_tokens_back(text: str, cuts: list[int]) -> None:
    data, pieces = text.encode(), list[bytes]()
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    deltas, finished = run([*pieces, data])
    parser = FORMATS["hermes"].parser(context())
    given_out = reported = b""
    every: list[ReplyEvent] = [*deltas, finished]
    for event in every:
        for parsed in parser.feed(event):
            if isinstance(parsed, TextDelta):
                given_out += parsed.text.encode()
                reported += b"".join(token.text_bytes for token in parsed.tokens)
                assert len(reported) <= len(given_out) or reported == text.encode()
    assert given_out == reported == text.encode()
