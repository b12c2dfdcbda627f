"""The two vocabularies of the ``test:ARCH`` models, with the control tokens of ChatML.

*Hashing*: llama.cpp's ``test`` tokenizer makes one id of five bytes of text, so that long prompts
are cheap, but no id stands for a text.

*Spelling*: byte-level BPE that spells any text: 256 single bytes, and the pairs that are joined in
JSON schemas and English prose. About two bytes make a token.
"""

from __future__ import annotations

from collections.abc import Sequence

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""The last ids of the vocabulary, in this order."""
BEGINNING, END_OF_TURN = CONTROL_TOKENS[0], CONTROL_TOKENS[2]

_PAIRS = (
    'Ġ Ġ|Ġ "|Ġ t|o n|i n|Ġ a|" :|e s|e r|ĠĠ ĠĠ|t i|h e|r e|ĠĠ Ġ|o r|Ġ s|e n|a t|Ġt he|ti on|" ,|Ġ f|Ġ c|in g|'
    'Ġ i|Ċ ĠĠĠ|Ġ o|l e|p e|s t|{ "|e d|r i|Ġ p|Ġ b|y pe|Ġ {"|e t|en t|c t|Ġ d|a l|r o|t ype|a r|es c|Ġ w|'
    "ri p|u n|i t|a m|esc rip|Ċ ĠĠĠĠ|Ġa n|Ġ in|Ġi s|u r|Ġ m|Ġo f|Ġt o|escrip tion|Ġ n|d escription|a n|u l|"
    "c tion|at h|Ġ re|a s|r ing|l i|Ġ e|b j|o d|Ġb e|e ct|} ,|i l|Ġs t|bj ect|t e|- -|ur n|un ction|Ġan d|"
    "i le|Ċ ĊĠĠĠ|s e|l o|am e|on t|Ġt h|Ġ T|e f|c e|Ġf or|p ath|ul t|i re|es s|m ent|q u|er s|c h|u t|"
    "st ring|ont ent|f unction|m p|Ġ (|} }|c ontent|u s|i s|Ġf ile|( )|o t|Ġ g|Ġp ro|ef a|efa ult|ĊĠĠĠĠ ĠĠĠ|"
    ". \\|as s|a b|` `|Ġ I|\" },|a d|ĠĠĠĠ ĠĠĠĠ|u p|c k|Ġ -|it h|Ġ '|c ess|Ġo bject|t er|u e|Ġ r|Ġ or|Ġre t|"
    "Ġe x|Ġa r|Ġa s|n ame|Ġret urn|c i|g er|Ġb y|o l|Ġ v|p er|f i|l ass|v e|Ġ us|l y|Ġi t|Ġ on|Ġar g|a tion|"
    "Ġw ith|ar am|i d|te ger|R et|o bject|ab le|p ro|d efault|Ret urn|t h|Ġ [|Ġ h|aram et|Ġ A|ro m|il l|r or|"
    "u ment|qu ire|pe ci|at e|an d|Ġth at|Ġa l|i r|Ġf rom|Ġ P|m it|e c|ct or|Ġw ill|Ġc o|l a|quire d|ĠI f|"
    'aramet ers|Ġpro cess|li mit|Ġ en|> >|Ġ- >|= =|Ġa re|Ġst ring|_ _|od e|Ġp ath|ti es|in teger|" ]|'
    'per ties|p arameters|Ġs peci|Ġ[ "|re quired|al l|}} }|} },|pro perties|"] }}}|Ġn e|Ġarg ument|i v|Ġi f|'
    "Ġ lo|Ġm a|Ġ N|l in|Ġc on|Ġn ot|m e|. .|Ġs y|or m|ire ctor|-- --|ĠT he|k e|h o|Ġc lass|t es|e m|u m|or t|"
    "t or|Ġc an|Ġ un|escrip tor|Ġ S|s i"
)
MERGES = tuple(_PAIRS.split("|"))
"""Pairs in the order in which they are joined, learnt from the docstrings of Python's standard library."""


def _byte_letters() -> list[str]:
    """GPT-2's letter for each byte: itself where it is printable Latin-1, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def merges(control: Sequence[str] = ()) -> tuple[str, ...]:
    """The pairs that are left where ``control`` tokens take the place of the last ones."""
    return MERGES[: len(MERGES) - len(control)]


def spelling_words(control: Sequence[str] = ()) -> tuple[str, ...]:
    """The text of every token, by id; ``control`` ones stand before those of ChatML."""
    return (*_byte_letters(), *(pair.replace(" ", "") for pair in merges(control)), *control, *CONTROL_TOKENS)


VOCAB_SIZE = len(spelling_words())
HASHING_WORDS = (*(f"word{token}" for token in range(VOCAB_SIZE - len(CONTROL_TOKENS))), *CONTROL_TOKENS)
"""Equally many, so that both vocabularies fit the same weights. Ids read back as hex."""
