"""Acceptance figures of AIPerf, read from its `profile_export.jsonl`: another tool's, so they certify nothing.

The file has one JSON object per request; `spec_decode_acceptance` is there where the server reported drafts
(AIPerf 0.13, `--export-level records`). Every count is held against the others as AIPerf's own model does, and accepted
tokens against the completion's.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit.errors import UserError
from audit.stats.acceptance.estimators import AcceptanceEstimate, DraftTotals, contradiction, draft_sums, estimates

ACCOUNT: Final = "spec_decode_acceptance"
COUNTS: Final = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
LARGEST: Final = 1 << 30
"""Most bytes of a file."""


@dataclass(frozen=True, slots=True)
class AiperfFigures:
    """Figures of a file: its requests; those that failed or are of the warm-up count for nothing.

    engines: what the server's accounts were recognised as. estimates: of the requests that have drafts.
    """

    file: str
    requests: int
    failed: int
    warmup: int
    engines: tuple[str, ...]
    estimates: tuple[AcceptanceEstimate, ...]
    source: str = "AIPerf"


def read_aiperf(path: Path) -> AiperfFigures:
    """The figures of a file.

    Raises:
        UserError: not readable, not of this form, or an account that contradicts itself; names file and line.
    """
    requests, failed, warmup, totals, engines = 0, 0, 0, [], set()
    for line, record in _records(path):
        requests += 1
        if record["metadata"].get("benchmark_phase", "profiling") != "profiling":
            warmup += 1
        elif record.get("error") is not None:
            failed += 1
        elif record.get(ACCOUNT) is not None:
            totals.append(_totals(path, line, record[ACCOUNT]))
            engines.add(str(record[ACCOUNT].get("engine", "not named")))
    if not requests:
        raise UserError(
            f"{path}: it has no records; give profile_export.jsonl of aiperf profile --export-level records"
        )
    named, values = tuple(sorted(engines)), estimates(draft_sums(totals))
    return AiperfFigures(str(path), requests, failed, warmup, named, values)


def _records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path}: larger than {LARGEST} bytes; split it by lines")
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _record(path, number, line)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as text: {error}; give profile_export.jsonl of AIPerf") from error


def _record(path: Path, number: int, line: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}:{number}: not JSON; export the file again, every line is one object") from error
    if not isinstance(record, Mapping) or not isinstance(record.get("metadata"), Mapping) or "metrics" not in record:
        raise UserError(
            f"{path}:{number}: no record of AIPerf, which has metadata and metrics; use --export-level records"
        )
    return record


def _totals(path: Path, number: int, account: Any) -> DraftTotals:
    counts: list[Any] = [account.get(name) for name in COUNTS] if isinstance(account, Mapping) else [None]
    if not all(isinstance(count, int) and not isinstance(count, bool) for count in counts):
        raise UserError(f"{path}:{number}: {ACCOUNT} needs whole numbers {', '.join(COUNTS)}; export the file again")
    emitted = account.get("completion_tokens")
    emitted = emitted if isinstance(emitted, int) else None
    steps, drafted, accepted = counts
    result = contradiction(steps, drafted, accepted, emitted) or _parts(account)
    if result is not None:
        raise UserError(
            f"{path}:{number}: {result}; the server's account is wrong, leave the line out or mend the server"
        )
    return DraftTotals(steps, drafted, accepted, emitted)


def _parts(account: Mapping[str, Any]) -> str | None:
    """Say how the histogram or the steps contradict the sums."""
    histogram, steps = account.get("acceptance_histogram"), account["num_spec_steps"]
    accepted, drafted = account["num_accepted_draft_tokens"], account["num_draft_tokens"]
    try:
        if histogram is not None and sum(histogram.values()) != steps:
            return f"acceptance_histogram has {sum(histogram.values())} steps, num_spec_steps is {steps}"
        if histogram is not None and sum(int(kept) * count for kept, count in histogram.items()) != accepted:
            return f"acceptance_histogram does not add up to {accepted} accepted tokens"
        for name, total in (("per_step_accepted", accepted), ("per_step_drafted", drafted)):
            item = account.get(name)
            if item is not None and (len(item), sum(item)) != (steps, total):
                return f"{name} does not add up to {total} tokens in {steps} steps"
    except (TypeError, ValueError, AttributeError):
        return "acceptance_histogram or the counts by step are not whole numbers"
    return None
