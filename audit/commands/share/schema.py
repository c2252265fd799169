"""`audit schema`: print a JSON Schema. Knows only the schemas' names."""

import json

import click

import schemas
from audit.text.printer import echo, echo_document


@click.command("schema")
@click.argument("name", required=False, type=click.Choice(schemas.names()), metavar="[NAME]")
def command(name: str | None) -> None:
    """Print the JSON Schema NAME, or the names of all schemas."""
    if name is None:
        echo(*schemas.names())
    else:
        echo_document(json.dumps(schemas.load(name), indent=2))
