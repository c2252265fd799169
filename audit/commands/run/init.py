"""`audit init`: the first suite for a model. Loads no weights and stores nothing."""

from pathlib import Path

import click

from audit.errors import UserError
from audit.text.printer import echo, note

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("init")
@click.argument("target")
@click.option("--draft", metavar="SOURCE", help="The draft, in the same way as TARGET. Default: n-grams.")
@click.option("--prompts", type=FILE, help="Prompts as JSON lines. Default: packaged ones.")
@click.option("--out", type=FILE, help="The new suite. Default: the model's name and .yaml, in this folder.")
def command(target: str, draft: str | None, prompts: Path | None, out: Path | None) -> None:
    """Write a suite for TARGET, a model folder, a .gguf file, hf:ORG/NAME or bundled:NAME.

    Reads the configuration and the tokenizer, and compares the draft's tokenizer with the target's. The suite has a
    greedy and a sampled arm, prompts that the model can take, and sizes at which the default checks can decide. A
    server is probed instead: audit probe URL --suite FILE.
    """
    # imported late: the help needs no tokenizer
    from audit.suite.first_suite import FirstSuite, suite_text
    from audit.suite.loader import load_suite
    from audit.text.staged_files import require_new, write_staged

    if target.startswith(("http://", "https://")):
        raise UserError(f"{target} is a server; write: audit probe {target} --suite FILE")
    place = out or Path(f"{Path(target.partition(':')[2] or target).resolve().name.removesuffix('.gguf')}.yaml")
    require_new(place)
    write_staged({place: suite_text(FirstSuite(target, draft, prompts, place)).encode("utf-8")})
    load_suite(str(place))
    note(f"{place}: written")
    echo(
        f"audit plan {place}         # its size and time",
        f"audit run {place}          # 0: certified, 1: a claim is broken, 3: undecided",
        "audit gate latest --policy standard --no-subject    # may it be deployed?",
    )
