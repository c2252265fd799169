"""Chat templates of others: a failure is one line, and no loop goes on."""

from __future__ import annotations

import sys
import time

import pytest
from transformers import PreTrainedTokenizerFast

from engine.backends.interface import Prompt
from engine.backends.tokenizer import chat_text, tokens_by
from engine.core.errors import InvalidRequest, ModelError
from engine.models.files.folder import bundled_folder

MESSAGES = ({"role": "user", "content": "Hello"},)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(bundled_folder("bundled:target")))


def test_the_bundled_template_gives_its_text(tokenizer):
    text = chat_text(tokenizer, MESSAGES, "target", add_generation_prompt=True)
    assert text == tokenizer.apply_chat_template(list(MESSAGES), tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must\n alternate') }}",
        "{{ messages + 1 }}",
        "{{ messages[7].content.x }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{% if",
    ],
)
def test_a_template_that_fails_is_one_line_that_names_the_model(tokenizer, template):
    read = tokens_by(tokenizer, "./theirs")
    kept, tokenizer.chat_template = tokenizer.chat_template, template
    try:
        with pytest.raises(ModelError, match=r"^\./theirs: its chat template fails on a prompt: .*raw text") as caught:
            read.encode(Prompt(messages=MESSAGES))
    finally:
        tokenizer.chat_template = kept
    assert "\n" not in str(caught.value)


def test_a_template_that_loops_is_ended(tokenizer):
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    before, began = sys.gettrace(), time.monotonic()
    kept, tokenizer.chat_template = tokenizer.chat_template, loops
    try:
        with pytest.raises(ModelError, match=r"did not end within 0\.2 s"):
            chat_text(tokenizer, MESSAGES, "./theirs", seconds=0.2)
    finally:
        tokenizer.chat_template = kept
    assert time.monotonic() - began < 60
    assert sys.gettrace() is before


def test_arguments_reach_the_template_and_its_own_are_refused(tokenizer):
    read = tokens_by(tokenizer, "./theirs")
    kept, tokenizer.chat_template = tokenizer.chat_template, "{% if loud %}A{% else %}B{% endif %}"
    try:
        loud, quiet = (read.decode(read.encode(Prompt(MESSAGES, template={"loud": way}))) for way in (True, False))
        assert (loud, quiet) == ("A", "B")
        with pytest.raises(InvalidRequest, match="chat_template_kwargs may not set add_generation_prompt"):
            read.encode(Prompt(MESSAGES, template={"add_generation_prompt": False}))
    finally:
        tokenizer.chat_template = kept


PANICS = {
    "a text": lambda read: read.encode(Prompt(text="aaa")),
    "a text of a grammar": lambda read: read.spell(4).encode("aaa"),
    "an answer": lambda read: read.decode([1, 2]),
}


@pytest.mark.parametrize("work", PANICS)
def test_a_panic_of_the_library_is_one_line_that_names_the_model(tokenizer, work):
    """Pyo3's class is no Exception; a prompt may bring about what the texts of the trial did not."""
    panic = type("PanicException", (BaseException,), {})

    class Broken:
        chat_template = None

        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def __call__(self, *texts, **options):
            raise panic("Onig: Regex search error:\n retry-limit-in-match over")

        decode = __call__

    told = rf"^\./theirs: its tokenizer gives up on {work.removesuffix(' of a grammar')} \(Onig: .* over\)"
    with pytest.raises(ModelError, match=told) as caught:
        PANICS[work](tokens_by(Broken(), "./theirs"))
    assert "\n" not in str(caught.value)
