"""A key that a server says back, in every spelling that is searched for."""

from __future__ import annotations

import base64
import html
import json
import time
from urllib.parse import quote

import pytest

from engine.backends.openai.errors import said
from engine.backends.openai.forms.token_lists import Piece
from engine.backends.openai.response import Completion, ToolCall, without_key
from engine.backends.openai.secret import Secret, secret_of

KEY = 'sk-Live_01/23+45=<&>"ab'
SECRET = secret_of(KEY)


def escaped(text: str, pattern: str) -> str:
    return "".join(pattern.format(ord(char)) for char in text)


SPELLINGS = {
    "plain": KEY,
    "json": escaped(KEY, "\\u{:04x}"),
    "json in json": json.dumps(json.dumps(KEY))[3:-3],
    "json, capitals": escaped(KEY, "\\u{:04X}"),
    "escaped json": escaped(KEY, "\\\\u{:04x}"),
    "mixed": KEY[:5] + escaped(KEY[5:9], "\\u{:04x}") + escaped(KEY[9:], "%{:02x}"),
    "percent": quote(KEY, safe=""),
    "percent, every character": escaped(KEY, "%{:02X}"),
    "percent twice": quote(quote(KEY, safe=""), safe=""),
    "html": html.escape(KEY),
    "html, decimal": escaped(KEY, "&#{};"),
    "html, hexadecimal": escaped(KEY, "&#x{:x};"),
    "html twice": html.escape(html.escape(KEY)),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "base64 of a header": base64.b64encode(f"Bearer {KEY}!".encode()).decode(),
    "base64 after one more": base64.b64encode(f"x{KEY}".encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(f"xy{KEY}yz".encode()).decode(),
    "hexadecimal": KEY.encode().hex(),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=list(SPELLINGS))
def test_every_spelling_of_the_key_is_masked(spelling):
    text = f"Wrong key ({spelling}) given"
    assert SECRET.within(text)
    masked = SECRET.clean(text)
    assert "***" in masked
    assert spelling not in masked
    assert masked.startswith("Wrong key (")
    assert masked.endswith(" given")


def test_texts_and_keys_of_documents_are_masked_after_decoding():
    document = json.loads(json.dumps({"a": [{KEY: f"-{KEY}-"}, 3, None]}))
    assert SECRET.cleaned(document) == {"a": [{"***": "-***-"}, 3, None]}


def test_a_servers_words_are_masked_before_they_are_cut():
    text = json.dumps({"error": {"message": "x" * 290 + KEY}})
    assert said(text.replace("sk-", "\\u0073k-"), SECRET) == "x" * 290 + "***"


@pytest.mark.parametrize(
    "answer",
    [
        Completion(f"it is {KEY}", "stop", token_ids=(1, 2)),
        Completion("", "stop", reasoning=escaped(KEY, "%{:02x}"), token_ids=(1, 2)),
        Completion("", "stop", tool_calls=(ToolCall("f", json.dumps({"k": KEY})),), token_ids=(1, 2)),
        Completion("", "stop", stop_reason=KEY, token_ids=(1, 2)),
        Completion("other", "stop", pieces=tuple(Piece(char, -1.0) for char in KEY), token_ids=(1, 2)),
        Completion("", "stop", pieces=tuple(Piece("", 0.0, raw=bytes([b])) for b in KEY.encode()), token_ids=(1,)),
    ],
    ids=["content", "reasoning", "arguments", "stop reason", "pieces", "bytes"],
)
def test_an_answer_that_holds_the_key_loses_it_with_its_tokens(answer):
    cleaned = without_key(answer, SECRET)
    assert (cleaned.token_ids, cleaned.pieces, cleaned.chunks) == (None, None, ())
    assert not SECRET.within(repr(cleaned))


def test_an_answer_without_the_key_is_untouched():
    answer = Completion("sk-Live", "stop", pieces=(Piece("sk", -1.0),), token_ids=(1, 2))
    assert without_key(answer, SECRET) is answer


def test_a_placeholder_is_no_key():
    assert secret_of("EMPTY") == Secret()
    assert secret_of("EMPTY").clean("EMPTY") == "EMPTY"


def test_a_key_is_not_shown_where_a_value_is_printed():
    assert KEY not in repr(SECRET)


@pytest.mark.parametrize("text", ["\\" * 2**17, "&amp;" * 2**15, "%25" * 2**15, KEY[0] * 2**17, "&#0" * 2**15])
def test_the_search_is_linear_in_the_text(text):
    began = time.process_time()
    SECRET.clean(text)
    assert time.process_time() - began < 2.0
