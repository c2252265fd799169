"""The log of `vllm serve --enable-log-requests` with its log level at DEBUG, which has the bodies of requests."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from audit.suite.traffic.conversation import requested
from audit.suite.traffic.source import TrafficFile, TrafficRow, parsed
from audit.text.documents import decode_text

BODY: Final = re.compile(r"Request (?P<id>\S+) JSON body: (?P<body>.*)")
DETAILS: Final = re.compile(
    r"Re(?:ceived re)?quest (?P<id>\S+?)(?: details)?: prompt: (?P<prompt>.+?), .*?"
    r"prompt_token_ids: (?P<tokens>None|\[[\d, ]*\])"
)
"""Of versions that log the prompt's token ids and no body."""


def requests(file: TrafficFile) -> Iterator[TrafficRow]:
    """The requests, by their bodies where the log has any: what clients sent, before the template."""
    lines = list(enumerate(decode_text(str(file.path), file.raw).split("\n"), 1))
    bodies = [(number, match) for number, line in lines if (match := BODY.search(line))]
    logged = bodies or [(number, match) for number, line in lines if (match := DETAILS.search(line))]
    if not logged:
        raise file.error(None, "no line has a request; start vllm serve with --enable-log-requests and log level DEBUG")
    for number, match in logged:
        try:
            for row in _body_rows(file, number, match) if bodies else _token_rows(match):
                yield TrafficRow(number, row, {})
        except (ValueError, SyntaxError) as error:
            raise file.error(number, f"{error}; a request that --max-log-len cut is no request") from error


def _body_rows(file: TrafficFile, number: int, match: re.Match[str]) -> Iterator[Mapping[str, Any]]:
    name = {} if match["id"] == "N/A" else {"id": match["id"]}
    return ({**name, **row} for row in requested(parsed(file, number, match["body"])))


def _token_rows(match: re.Match[str]) -> Iterator[Mapping[str, Any]]:
    tokens = ast.literal_eval(match["tokens"])
    yield {"id": match["id"], **({"tokens": tokens} if tokens else {"prompt": ast.literal_eval(match["prompt"])})}
