"""`audit help`: the pages of the documentation in the terminal, by the names of what they are about."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import click

from audit.errors import UserError
from audit.text.printer import echo, echo_page

HOME = Path(__file__).parents[2]
HEADING = re.compile(r"^(#{2,6}) +(.+?) *$", re.MULTILINE)
MOST = 8
"""Names that a refusal suggests."""


def _commands(context: click.Context) -> list[str]:
    group = context.find_root().command
    assert isinstance(group, click.Group)
    return group.list_commands(context)


def _complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in (*_commands(context), *page_files()) if name.startswith(incomplete)]


@click.command("help")
@click.argument("topic", required=False, shell_complete=_complete)
@click.pass_context
def command(context: click.Context, topic: str | None) -> None:
    """Explain TOPIC: a command, a page, or a heading such as a check, a situation or a field; or list the pages."""
    pages, commands = page_files(), _commands(context)
    if topic is None:
        echo(*pages)
    elif topic in commands:
        context.find_root().command.main([topic, "--help"], context.find_root().info_name)
    else:
        echo_page(explained(pages, topic, commands))


def page_files() -> dict[str, Path]:
    """The pages by name, such as `checks/law`: the wheel's, or those of the checkout."""
    wheel = HOME / "pages"
    root = wheel if wheel.is_dir() else HOME.parent / "docs"
    files = (path for path in sorted(root.rglob("*.md")) if path.relative_to(root).parts[0] != "design")
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in files}


def explained(pages: Mapping[str, Path], topic: str, commands: Iterable[str] = ()) -> str:
    """The Markdown of a page, or of the sections under a heading.

    Raises:
        UserError: no page and no heading is named so. The message has the nearest names, those of `commands` too.
    """
    wanted = topic.strip("/").removesuffix(".md")
    named = [name for name in pages if wanted in (name, name.rpartition("/")[2])]
    if len(named) > 1:
        raise UserError(f"{topic} names {len(named)} pages: {', '.join(named)}; say which")
    if named:
        return pages[named[0]].read_text("utf-8")
    texts = {name: path.read_text("utf-8") for name, path in pages.items()}
    sections = [f"{section}\n(from {name})\n" for name, text in texts.items() for section in _under(text, wanted)]
    if sections:
        return "\n".join(sections)
    headings = {_plain(heading[2]) for text in texts.values() for heading in HEADING.finditer(text)}
    names = {name.rpartition("/")[2] for name in pages}
    near = get_close_matches(wanted.casefold(), sorted({*commands, *names, *headings}), MOST)
    mentions = sorted(pages, key=lambda name: -texts[name].casefold().count(wanted.casefold()))
    seen = [name for name in mentions if wanted.casefold() in texts[name].casefold()][:MOST]
    raise UserError(
        f"no page and no heading is named {topic!r}; near: {', '.join(near) or 'none'}; "
        f"pages that mention it: {', '.join(seen) or 'none'}; audit help lists all"
    )


def _under(text: str, title: str) -> Iterator[str]:
    """The sections of a page under the headings with this title."""
    headings = list(HEADING.finditer(text))
    for place, heading in enumerate(headings):
        if _plain(heading[2]).partition(":")[0] == title.casefold():
            ends = (later.start() for later in headings[place + 1 :] if len(later[1]) <= len(heading[1]))
            yield text[heading.start() : next(ends, len(text))]


def _plain(heading: str) -> str:
    """A heading without its marks, and without the anchor at its end."""
    return re.sub(r"\{.*\}|[`*]", "", heading).strip().casefold()
