"""Only whole characters come out, and they are those of the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorline.output.text import TextDecoder

pieces = st.one_of(st.text(max_size=3).map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=3))


@given(data=st.lists(pieces), cuts=st.data())
def test_any_split_gives_the_text_of_the_whole(data: list[bytes], cuts: st.DataObject) -> None:
    whole = b"".join(data)
    decoder, text, position = TextDecoder(), "", 0
    while position < len(whole):
        end = cuts.draw(st.integers(position, len(whole)))
        text += decoder.feed(whole[position:end])
        position = max(end, position)
        if end == position and end < len(whole):
            text += decoder.feed(whole[end : end + 1])
            position = end + 1
    assert text + decoder.flush() == whole.decode("utf-8", "replace")
    assert decoder.flush() == ""


def test_a_character_comes_when_it_is_whole() -> None:
    decoder = TextDecoder()
    data = "é😀".encode()
    assert [decoder.feed(data[i : i + 1]) for i in range(6)] == ["", "é", "", "", "", "😀"]
    assert decoder.flush() == ""


def test_bytes_that_wait_are_told() -> None:
    decoder = TextDecoder()
    decoder.feed("😀".encode()[:2])
    assert decoder.holds_bytes
    assert decoder.flush() == "\ufffd"
    decoder = TextDecoder()
    decoder.feed(b"a")
    assert not decoder.holds_bytes
