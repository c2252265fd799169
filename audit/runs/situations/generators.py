"""Generators of directed requests: each brings about some situations, from what the arm's requests showed so far.

A generator guesses from the record: where a draft ended, which texts the model repeats, how many rows there are. The
run then counts what came about (`audit.runs.situations.rounds`), so a wrong guess costs tokens and proves nothing.

To add a generator, add one function, one entry in `GENERATORS` and one section in docs/coverage.md.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Final

import numpy as np

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.context import CHUNK, LONG
from audit.evidence.coverage.view import ArmFacts, Mask, RequestView, view_of
from audit.evidence.records import RequestRecord
from audit.evidence.streams import stream_of as text_of
from audit.evidence.tool_calls import spans_of
from audit.suite.spec import Case, DirectedSampling
from engine.core.types import FinishReason, Role, SamplingParams
from engine.record.trace import TraceHeader
from engine.sampling.rng import stream_of

Place = Callable[[RequestView], Mask]
"""[E] the tokens of a request at which an end meets a situation."""
STOP_LENGTH: Final = 3
"""Characters of a stop string: several tokens may complete it."""


@dataclass(frozen=True, slots=True)
class Brief:
    """The knowledge of a generator about an arm."""

    unmet: Mapping[str, int]
    """Occurrences that are missing, by situation."""
    requests: Sequence[RequestRecord]
    """Answered requests of the suite in this arm, at least one, each with at least one token."""
    directed: Sequence[RequestRecord]
    """Those of the rounds before, likewise."""
    cases: Mapping[str, Case]
    """The cases of all these requests by id."""
    facts: ArmFacts
    limit: int
    """The arm's `max_new_tokens`."""
    number: int
    """The round, from 1; a generator that missed in a round varies its guess in the next one."""
    seed: int

    @property
    def gamma(self) -> int:
        """The longest draft, or a moderate one if none is stated."""
        return self.facts.gamma or 4


@dataclass(frozen=True, slots=True)
class ProposedCase:
    """A case without its id, the tokens that it is expected to emit, and the fewest that would do; 0 for no fewer."""

    case: Case
    tokens: int
    least: int = 0


@dataclass(frozen=True, slots=True)
class Generator:
    """A named way to bring about some situations."""

    name: str
    meets: frozenset[str]
    propose: Callable[[Brief], Iterator[ProposedCase]]


def _case(brief: Brief, request: RequestRecord, prompt: Sequence[int], direction: DirectedSampling) -> Case:
    return replace(brief.cases[request.case_id], tokens=tuple(prompt), samples=None, turns=(), direction=direction)


def _ended(brief: Brief, request: RequestRecord, end: DirectedSampling, tokens: int) -> ProposedCase:
    """The request again on the same random numbers, ending early after about so many tokens."""
    before, header = brief.cases[request.case_id].direction or DirectedSampling(), request.trace.header
    direction = replace(
        before,
        stop_token_ids=(*before.stop_token_ids, *end.stop_token_ids),
        stop=(*before.stop, *end.stop),
        max_new_tokens=end.max_new_tokens or before.max_new_tokens,
        min_tokens=end.min_tokens or before.min_tokens,
        stream=header.stream,
    )
    return ProposedCase(_case(brief, request, header.prompt, direction), tokens)


def _cheapest(proposed: Iterable[ProposedCase], count: int) -> list[ProposedCase]:
    return sorted(proposed, key=lambda one: one.tokens)[:count]


def cut(brief: Brief) -> Iterator[ProposedCase]:
    """The same requests on the same random numbers, with an end token where an accepted token stood.

    The tokens before it are those of the first time, so the end falls at the same place of the same draft.
    """
    tried = {_end(request.trace.header) for request in brief.directed}
    for name, is_place in ENDS.items():
        if name in brief.unmet:
            proposed = (_first_place(brief, request, is_place, tried) for request in (*brief.directed, *brief.requests))
            yield from _cheapest((one for one in proposed if one is not None), brief.unmet[name])


def _end(header: TraceHeader) -> tuple[int, tuple[int, ...]]:
    return header.stream, header.sampling.stop_token_ids


def _first_place(
    brief: Brief, request: RequestRecord, is_place: Place, tried: Container[tuple[int, tuple[int, ...]]]
) -> ProposedCase | None:
    """The request with an end at its first such place that no earlier round tried; behind an end is no other one."""
    view, header = _view(request, brief.facts), request.trace.header
    if view.sampling.structured is not None:
        # a grammar masks end tokens until it may end, so the request would have no token left there
        return None
    for index in np.flatnonzero(is_place(view)).tolist():
        token = request.tokens[index]
        new = (header.stream, (*header.sampling.stop_token_ids, token)) not in tried
        if new and index >= view.sampling.min_tokens and token not in request.tokens[:index]:
            return _ended(brief, request, DirectedSampling(stop_token_ids=(token,)), index + 1)
    return None


ENDS: Final[Mapping[str, Place]] = {
    "end_in_draft": lambda view: np.asarray(view.role(Role.ACCEPTED) & (view.place < view.drafted[view.step] - 1)),
    "end_at_last_draft": lambda view: np.asarray(
        view.role(Role.ACCEPTED) & (view.place == view.drafted[view.step] - 1)
    ),
    "end_at_bonus": lambda view: view.role(Role.BONUS),
}


def limits(brief: Brief) -> Iterator[ProposedCase]:
    """The same requests on the same random numbers, with the greatest or the least length at such a place."""
    tried = {_lengths(request.trace.header.stream, request.trace.header.sampling) for request in brief.directed}
    for name, places in LIMITS.items():
        if name in brief.unmet:
            proposed = (
                _ended(brief, request, end, end.max_new_tokens or 0)
                for request in (*brief.requests, *brief.directed)
                for end in islice(_untried(places(request, brief), request.trace.header, tried), 1)
            )
            # what follows a shorter draft may differ
            yield from _cheapest(proposed, 2 * brief.unmet[name])


def _untried(
    ends: Iterable[DirectedSampling], header: TraceHeader, tried: Container[tuple[int, int, int]]
) -> Iterator[DirectedSampling]:
    return (end for end in ends if _lengths(header.stream, end.applied(header.sampling)) not in tried)


def _lengths(stream: int, sampling: SamplingParams) -> tuple[int, int, int]:
    return stream, sampling.max_new_tokens, sampling.min_tokens


def _call_ends(request: RequestRecord, brief: Brief) -> Iterator[DirectedSampling]:
    """An end with a tool call, in a step that can still draft."""
    step = _view(request, brief.facts).step
    for span in spans_of(request):
        if span.stop > 1 and step[span.stop - 1] == step[span.stop - 2]:
            yield DirectedSampling(max_new_tokens=span.stop)


def _before_decisions(request: RequestRecord, _brief: Brief) -> Iterator[DirectedSampling]:
    """An end just before the token with which a filter decided."""
    stream = text_of(request.trace.header)
    for decision in stream.decisions if stream else ():
        if decision.token > 0:
            yield DirectedSampling(max_new_tokens=decision.token)


def _inside_drafts(request: RequestRecord, brief: Brief) -> Iterator[DirectedSampling]:
    """A minimum within a draft, and little beyond it; a grammar allows none."""
    if request.trace.header.sampling.structured is not None:
        return
    for index in np.flatnonzero(_view(request, brief.facts).role(Role.ACCEPTED)).tolist():
        yield DirectedSampling(min_tokens=index + 1, max_new_tokens=min(brief.limit, index + 2))


LIMITS: Final[Mapping[str, Callable[[RequestRecord, Brief], Iterator[DirectedSampling]]]] = {
    "tool_call_at_step_end": _call_ends,
    "filter_at_length": _before_decisions,
    "min_tokens_in_draft": _inside_drafts,
}


def again(brief: Brief) -> Iterator[ProposedCase]:
    """The requests that showed a situation, on other random numbers, those first that showed it most often."""
    for name in (name for name in AGAIN if name in brief.unmet):
        counts = [(_occurred(name, request, brief.facts), request) for request in brief.requests]
        met = sorted((pair for pair in counts if pair[0]), key=lambda pair: -pair[0])
        missing = brief.unmet[name]
        for count, request in islice(cycle(met), brief.number - 1, None):
            if missing <= 0:
                break
            missing -= count
            tokens = len(request.tokens)
            yield ProposedCase(_case(brief, request, request.trace.header.prompt, DirectedSampling()), tokens)


def _occurred(name: str, request: RequestRecord, facts: ArmFacts) -> int:
    mask = CATALOGUE[name].recognise(_view(request, facts))
    return 0 if mask is None else int(mask.sum())


AGAIN: Final = ("grammar", "tool_call", "filter", "context_short")


def _view(request: RequestRecord, facts: ArmFacts) -> RequestView:
    return view_of(request, facts, shared_prefix=False)


def stop_texts(brief: Brief) -> Iterator[ProposedCase]:
    """The same requests on the same random numbers, with a stop string from inside their answers.

    Which tokens complete a text is not on record, so twice as many are tried as are missing.
    """
    missing = 2 * max(brief.unmet.get(name, 0) for name in STOPS)
    for index, request in enumerate(islice(cycle(brief.requests), missing)):
        text = request.text
        start = (brief.number * (7 + 5 * index)) % max(1, len(text) - STOP_LENGTH)
        part = text[start : start + STOP_LENGTH]
        if len(part) == STOP_LENGTH and text.find(part) == start and part.strip():
            expected = 1 + len(request.tokens) * (start + STOP_LENGTH) // max(1, len(text))
            yield _ended(brief, request, DirectedSampling(stop=(part,)), expected)


STOPS: Final = ("stop_string_in_draft", "stop_string_across_steps")


def crowd(brief: Brief) -> Iterator[ProposedCase]:
    """More requests than rows, most of them short.

    The first ones end in their first step, all together and with no room to draft. One in three of the others lasts
    longer than a draft, so that rows are freed and taken beside it.
    """
    rows = brief.facts.batch or 1
    shortest = sorted(brief.requests, key=lambda request: len(request.trace.header.prompt))
    for index, request in enumerate(islice(cycle(shortest), 2 * rows + brief.unmet.get("row_reused", rows))):
        limit = 1 if index < rows or index % 3 else min(brief.limit, brief.gamma + 2)
        case = _case(brief, request, request.trace.header.prompt, DirectedSampling(max_new_tokens=limit))
        yield ProposedCase(case, limit)


def _turn(request: RequestRecord) -> tuple[int, ...]:
    """A prompt and its answer."""
    return (*request.trace.header.prompt, *request.tokens)


def repeat(brief: Brief) -> Iterator[ProposedCase]:
    """A prompt, its answer, and the prompt again: models tend to repeat the answer, and so do drafts.

    The text goes on in this way until it is longer than a chunk of a prompt, or than the longest context that is asked.
    Two requests with one prompt share a prefix, however short the prompts of the suite are. An answer's end comes again
    too: copied drafts hold an end token only if the text before holds one.
    """
    # where drafts were kept whole, `keep` brings about more of them
    kept = next(_kept_prompts(brief), None) is not None
    if brief.unmet.keys().isdisjoint(TURNS if kept else (*TURNS, *KEPT)):
        return
    longest = LONG if "context_long" in brief.unmet else CHUNK if "long_prompt" in brief.unmet else 0
    missing = 0 if kept else max(brief.unmet.get(name, 0) for name in KEPT)
    cut_off = FinishReason.LENGTH if not brief.unmet.keys().isdisjoint(ENDS) else None
    answers = sorted(brief.requests, key=lambda request: (request.finish_reason is cut_off, -len(request.tokens)))
    limit = min(brief.limit, max(len(answers[0].tokens), brief.gamma + 2))
    # half of the drafts may be kept whole
    count = min(max(1, -(-2 * missing * (brief.gamma + 1) // limit)), 2 * len(answers))
    chosen = [(request, limit) for request in islice(cycle(answers), brief.number - 1, brief.number - 1 + count)]
    if "shared_prefix" in brief.unmet:
        chosen.insert(1, (chosen[0][0], min(limit, brief.gamma + 2)))
    for request, most in chosen:
        prompt = request.trace.header.prompt
        turn = _turn(request)
        times = max(1, -(-(longest - len(prompt)) // len(turn)))
        case = _case(brief, request, (*turn * times, *prompt), DirectedSampling(max_new_tokens=most))
        yield ProposedCase(case, most, min(most, brief.gamma + 2))


TURNS: Final = (
    *("long_prompt", "context_medium", "context_long", "shared_prefix"),
    *("penalty_in_draft", "ban_in_draft", "tree_deep", "mixed_drafts"),
)
KEPT: Final = ("kept_whole", "bonus_token", "after_kept_whole", *ENDS)


def keep(brief: Brief) -> Iterator[ProposedCase]:
    """Prompts that go on until where a draft was kept whole: the same draft is likely there again, and again kept."""
    missing = max(brief.unmet.get(name, 0) for name in KEPT)
    # the step after drafts one token
    most = min(brief.limit, brief.gamma + 3)
    # half of the drafts may be kept whole again
    for request, prompt in islice(_kept_prompts(brief), 2 * missing):
        yield ProposedCase(_case(brief, request, prompt, DirectedSampling(max_new_tokens=most)), most)


def _kept_prompts(brief: Brief) -> Iterator[tuple[RequestRecord, tuple[int, ...]]]:
    """Contexts that no directed request had; later ones have the turns of other requests before them."""
    asked = {request.trace.header.prompt for request in brief.directed}
    before: tuple[int, ...] = ()
    for other in brief.requests:
        for request in (*brief.requests, *brief.directed):
            for begin in _kept(request, brief.facts):
                prompt = (*before, *request.trace.header.prompt, *request.tokens[:begin])
                if prompt not in asked:
                    asked.add(prompt)
                    yield request, prompt
        before += _turn(other)


def _kept(request: RequestRecord, facts: ArmFacts) -> list[int]:
    """The tokens at which a draft begins that was kept whole and had a step after it."""
    view = _view(request, facts)
    if view.sampling.structured is not None:
        # a grammar begins anew with each request
        return []
    begins: list[int] = view.first[:-1][view.steps_with(Role.BONUS)[:-1]].tolist()
    return begins


def shuffle(brief: Brief) -> Iterator[ProposedCase]:
    """The tokens of a prompt and its answer in a random order: target and draft disagree about what follows."""
    count = 1 + max(brief.unmet.get(name, 0) for name in UNLIKE) // 5
    for request in islice(cycle(brief.requests), brief.number - 1, brief.number - 1 + count):
        tokens = _turn(request)
        random = np.random.default_rng([brief.seed, brief.number, stream_of(request.key) % 2**32])
        order = random.permutation(len(tokens)).tolist()
        most = min(brief.limit, max(len(request.tokens), 2 * (brief.gamma + 2)))
        case = _case(brief, request, [tokens[index] for index in order], DirectedSampling(max_new_tokens=most))
        yield ProposedCase(case, most, min(most, brief.gamma + 2))


UNLIKE: Final = (
    *("recovered_token", "after_rejection", "rejected_first", "rejected_middle", "rejected_last", "near_tie"),
    *("unlikely_token", "small_residual", "outside_truncation", "after_nothing_drafted", "mixed_drafts"),
    *("tree_branch", "block_border"),
)

CROWD: Final = ("row_reused", "rows_finish_together", "neighbour_joins", "nothing_drafted", "length_in_draft")
GENERATORS: Final = (
    Generator("crowd", frozenset((*CROWD, "mixed_lengths")), crowd),
    Generator("cut", frozenset(ENDS), cut),
    Generator("limit", frozenset(LIMITS), limits),
    Generator("again", frozenset(AGAIN), again),
    Generator("stop_text", frozenset(STOPS), stop_texts),
    Generator("repeat", frozenset((*TURNS, *KEPT)), repeat),
    Generator("keep", frozenset(KEPT), keep),
    Generator("shuffle", frozenset(UNLIKE), shuffle),
)
"""In the order in which they are asked: the first requests of a crowd take all rows at once, and ends cost little."""
