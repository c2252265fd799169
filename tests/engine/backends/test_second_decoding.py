"""Tokens decoded again: behind their prompt, and with the characters that a stream holds back counted."""

import pytest

from engine.backends.engine_spec import ModelSource
from engine.backends.local_target import LocalTarget
from engine.backends.second_decoding import SecondDecoding, decode_after


class Words:
    """A tokenizer whose tokens carry the blank before them, lost at the beginning of a text; bytes by UTF-8."""

    def __init__(self, *words):
        self.words = words

    def decode(self, ids, *, skip_special_tokens, clean_up_tokenization_spaces):
        assert not clean_up_tokenization_spaces
        kept = [self.words[i] for i in ids if not (skip_special_tokens and self.words[i].startswith(b"<"))]
        return b"".join(kept).decode(errors="replace").removeprefix(" ")


WORDS = Words(b" say", b" caf", b"\xc3", b"\xa9", b" \xc3", b"<end>")


@pytest.mark.parametrize(
    ("prompt", "tokens", "found"),
    [
        ((0,), (1, 2, 3), SecondDecoding(" caf\u00e9")),
        ((), (1, 2, 3), SecondDecoding("caf\u00e9")),
        ((0,), (), SecondDecoding("")),
        ((0,), (1, 2), SecondDecoding(" caf\ufffd", 1)),
        # the blank and the half character are one token
        ((0,), (1, 4), SecondDecoding(" caf \ufffd", 2)),
        ((0,), (1, 2, 2), SecondDecoding(" caf\ufffd\ufffd", 2)),
        # a broken character in the middle stays
        ((0,), (2, 1), SecondDecoding("\ufffd caf")),
        ((0,), (1, 5), SecondDecoding(" caf")),
        ((2,), (3, 1), None),
    ],
)
def test_text_behind_a_prompt(prompt, tokens, found):
    assert decode_after(WORDS, prompt, tokens) == found


def test_special_tokens_may_be_shown():
    assert decode_after(WORDS, (0,), (1, 5), special=True) == SecondDecoding(" caf<end>")


def test_a_target_with_its_own_tokenizer():
    target = LocalTarget(ModelSource("bundled:target"))
    prompt, text = target.bare("The price is"), " 3 \u20ac, not \u00e9t\u00e9."
    tokens = target.bare(text)
    assert target.decoded(prompt, tokens) == SecondDecoding(text)
    assert target.decoded(prompt, (*tokens, *target.eos_ids[:1])) == SecondDecoding(text)
    assert target.decoded(prompt, target.eos_ids[:1], special=True).text != ""
