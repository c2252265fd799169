"""Escaped text renders as itself, whatever it is, and plain text is left alone."""

from __future__ import annotations

import html
import re

import html5lib
import pytest
from markdown_it import MarkdownIt

from audit.text.markdown import as_cell, as_code, as_it_is, table_lines
from audit.text.unsafe import visible

HOSTILE = (
    "<script>alert(1)</script>",
    "![x](javascript:a) [a](b) [a]: http://c",
    "# heading",
    "1. item",
    "12) item",
    "- item",
    "---",
    "===",
    "+ item",
    "> quoted",
    "```sh",
    "~~~ ~~gone~~",
    "| a | b |",
    "*a* _b_ __c__ **d** snake_case _",
    "http://evil.example www.evil.example a@evil.example",
    "&lt;b&gt; &#60;i&#62; \\<u> \\",
    "$x$ `a` ``b`` \u202eevil\x1b[31m\n# next\r\n* next",
    "    code",
)
PLAIN = (
    "0.05",
    "-0.5",
    "1.5 of 2.25",
    "a_b.c",
    "spec/case#0",
    "total variation per emitted token",
    "a - b",
    "(x) {y} !",
)
RENDERER = MarkdownIt("gfm-like", {"html": True, "linkify": False})


def shown(markdown: str) -> str:
    """The text of a rendered document."""
    return "".join(html5lib.parse(RENDERER.render(markdown)).itertext()).strip()


@pytest.mark.parametrize("place", ["{}", "* {}", "### {}", "> {}", "a {} b"])
def test_a_line_renders_as_its_text(place):
    offenders = []
    for text in HOSTILE:
        made = RENDERER.render(place.format(as_it_is(text)))
        tags = {*re.findall(r"<(\w+)", made)} - {"p", "ul", "li", "h3", "blockquote"}
        expected = visible(text).strip()
        same = html.unescape(re.sub(r"<[^>]+>", "", made)).strip() == place.lstrip("*#> ").format(expected)
        offenders += [] if same and not tags else [(text, made)]
    assert offenders == []


def test_a_cell_and_a_code_render_as_their_text():
    rows = [[text, text] for text in HOSTILE]
    made = RENDERER.render("\n".join(table_lines(("a|b", "*c*"), rows, (True, False))))
    cells = [html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", made)]
    assert cells == ["a|b", "*c*", *(visible(text).strip() for row in rows for text in row)]
    assert made.count("text-align:right") == 1 + len(rows)
    for text in (*HOSTILE, *PLAIN, "`", "a``b`"):
        table = RENDERER.render("\n".join(("| a |", "|---|", f"| {as_code(text)} |")))
        (cell,) = re.findall(r"<td><code>(.*?)</code></td>", table)
        assert html.unescape(cell).strip() == visible(text).strip()


def test_plain_text_is_left_alone():
    assert [as_it_is(text) for text in PLAIN] == list(PLAIN)
    assert as_it_is("1. a") == "1\\. a"
    assert [as_cell(text) for text in (*PLAIN, "-", "1. a", "# a")] == [*PLAIN, "-", "1. a", "# a"]
    assert as_code("a_b") == "`a_b`"
