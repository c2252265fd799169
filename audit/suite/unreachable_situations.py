"""The situations that a suite cannot reach, whatever the models answer: named by key, with the change that helps.

Reads the suite alone. Prompts are measured without a tokenizer: token ids and scripted letters exactly, other text by
a rule of thumb, so a border that is reported as missed may be met. What a run did reach is in its coverage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from audit.evidence.coverage.context import BLOCK, CHUNK, LONG, SHORT
from audit.suite.spec import CandidateSpec, Case, Suite
from engine.backends import REGISTRY

BYTES_PER_TOKEN: Final = 3
"""Of English text and JSON; large vocabularies need fewer tokens."""
TOKENS_PER_MESSAGE: Final = 8
"""Tokens of a chat template."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A key of the suite, the situations that its value excludes, and what to write instead."""

    key: str
    problem: str
    situations: tuple[str, ...]
    fix: str

    def line(self) -> str:
        """Key, problem, situations and fix."""
        verb = "cannot occur" if len(self.situations) > 1 else "does not occur"
        return f"{self.key}: {self.problem}: {', '.join(self.situations)} {verb}; {self.fix}"


def unreachable(suite: Suite) -> tuple[Unreachable, ...]:
    """Situations that the suite neither reaches nor waives, in its keys' order."""
    # other engines compose their batches themselves, whatever a suite asks
    batch = (*_rows(suite), *_mixture(suite)) if REGISTRY[suite.backend].ours else ()
    every = (*batch, *_lengths(suite), *_prompts(suite), *_drafts(suite))
    asked = (replace(item, situations=tuple(filter(partial(_asked, suite), item.situations))) for item in every)
    return tuple(item for item in asked if item.situations)


def _asked(suite: Suite, situation: str) -> bool:
    """True if no waiver of the suite covers the situation in every arm."""
    return any(arm.coverage.floor(situation) for arm in suite.arms)


def warnings(suite: Suite) -> tuple[str, ...]:
    """Unreachable situations, a line each."""
    return tuple(f"{suite.path}: warning: {other.line()}" for other in unreachable(suite))


def requests_of(suite: Suite, arm: CandidateSpec) -> int:
    """Greedy arms run each case once, because repetitions would be copies, unless the case lists its own samples."""
    count = 1 if arm.sampling.greedy else suite.samples
    return sum(len(case.repetitions(count)) for case in suite.cases)


def _rows(suite: Suite) -> Iterator[Unreachable]:
    if suite.batch_size == 1:
        situations = ("neighbour_joins", "rows_finish_together", "mixed_parameters", "mixed_lengths", "mixed_drafts")
        yield Unreachable("batch_size", "1 row has no neighbour", situations, "write 2 or more")
    full = _arms(suite, lambda arm: requests_of(suite, arm) <= suite.batch_size)
    if full:
        problem = f"{suite.batch_size} rows are enough for all requests of {full}"
        fix = "lower it, or add prompts" + (" or samples" if any(not a.sampling.greedy for a in suite.arms) else "")
        yield Unreachable("batch_size", problem, ("row_reused",), fix)


def _mixture(suite: Suite) -> Iterator[Unreachable]:
    alike = _arms(suite, lambda arm: arm.beside is None)
    if suite.mixed or not alike or suite.batch_size == 1:
        return
    problem = f"all rows of {alike} have the same parameters"
    yield Unreachable("mixed", problem, ("mixed_parameters",), "write mixed: true")


def _lengths(suite: Suite) -> Iterator[Unreachable]:
    if len({_tokens(suite, case) for case in suite.cases}) == 1 and len(suite.cases) > 1:
        problem = f"all {len(suite.cases)} prompts have one length"
        yield Unreachable("workloads", problem, ("mixed_lengths",), "add shorter or longer prompts")


def _prompts(suite: Suite) -> Iterator[Unreachable]:
    longest = max(_tokens(suite, case) for case in suite.cases)
    about = "" if _exact(suite) else "about "
    if longest < CHUNK:
        problem = f"the longest prompt has {about}{longest} tokens"
        yield Unreachable("workloads", problem, ("long_prompt",), f"add prompts of {CHUNK} tokens or more")
    longest_context = longest + max(arm.sampling.max_new_tokens for arm in suite.arms)
    if longest_context <= SHORT:
        problem = f"no context is longer than {about}{longest_context} tokens"
        yield Unreachable("workloads", problem, ("context_medium",), f"add prompts of {SHORT} to {LONG - 1} tokens")
    if longest_context <= BLOCK:
        problem = f"no context is longer than a block of {BLOCK} tokens"
        yield Unreachable("workloads", problem, ("block_border",), "add longer prompts, or raise max_new_tokens")


def _drafts(suite: Suite) -> Iterator[Unreachable]:
    """A step emits a token besides the accepted ones, so a draft never exceeds the length that is left minus one."""
    none = _arms(suite, lambda arm: arm.sampling.max_new_tokens == 1)
    if none:
        situations = ("kept_whole", "rejected_first", "recovered_token", "bonus_token")
        yield Unreachable("sampling.max_new_tokens", f"1 leaves {none} no room for a draft", situations, "write more")
    cut = _arms(suite, lambda arm: 1 < arm.sampling.max_new_tokens <= arm.proposer.gamma)
    if cut:
        problem = f"no draft of {cut} has its gamma of tokens"
        yield Unreachable("sampling.max_new_tokens", problem, ("after_kept_whole",), "write more than gamma + 1")


def _arms(suite: Suite, chosen: Callable[[CandidateSpec], bool]) -> str:
    """The names of the chosen arms, empty without one."""
    names = [arm.name for arm in suite.arms if chosen(arm)]
    if len(names) == len(suite.arms) > 1:
        return "every arm"
    return "" if not names else f"arm{'s' if len(names) > 1 else ''} {_some(names)}"


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _exact(suite: Suite) -> bool:
    return suite.backend == "scripted" or all(case.tokens for case in suite.cases)


def _tokens(suite: Suite, case: Case) -> int:
    """Tokens of a prompt, estimated for text unless letters are tokens."""
    if case.tokens:
        return len(case.tokens)
    text = case.prompt
    if text is None:
        text = " ".join(str(message.get("content") or "") for message in case.messages)
    if suite.backend == "scripted":
        return max(1, len(text))
    tools = len(json.dumps(case.tools).encode()) if case.tools else 0
    return -(-(len(text.encode()) + tools) // BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE * len(case.messages)
