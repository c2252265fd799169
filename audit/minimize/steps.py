"""Reduction steps for a suite of one arm; the search repeats each until nothing more can go.

Every step takes a suite that gives the verdict and returns one that also does.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from audit.minimize.shrink import fewest, plainer, set_names, smallest
from audit.minimize.trial import Trials
from audit.store import RequestKey
from audit.suite.spec import CandidateSpec, Case, Suite
from engine.backends import REGISTRY
from engine.core.types import SamplingParams

MOST_PROMPTS: Final = 4
"""Only suites of at most this many requests get shorter prompts: in larger ones no single prompt is the cause."""
FEW_LETTERS: Final = 64
"""Text of at most this many characters is cut by words, then by characters."""

Step = Callable[[Suite, Trials], Suite]


def keys_of(suite: Suite) -> tuple[RequestKey, ...]:
    """The arm's requests; every case names its repetitions."""
    name = suite.arms[0].name
    return tuple(RequestKey(name, case.id, sample) for case in suite.cases for sample in case.samples or ())


def with_keys(suite: Suite, keys: Iterable[RequestKey]) -> Suite:
    """The suite with the given requests, in the suite's order."""
    wanted = {(key.case_id, key.sample) for key in keys}
    chosen = [
        replace(case, samples=tuple(sample for sample in case.samples or () if (case.id, sample) in wanted))
        for case in suite.cases
    ]
    return replace(suite, cases=tuple(case for case in chosen if case.samples))


def fewer_requests(suite: Suite, trials: Trials, always: RequestKey | None) -> Suite:
    """Leave out other requests; `always` is never left out."""
    kept = tuple(key for key in keys_of(suite) if key == always)
    others = tuple(key for key in keys_of(suite) if key != always)

    def chosen(some: Sequence[RequestKey]) -> Suite:
        return with_keys(suite, (*kept, *some))

    least = 1 - len(kept)
    some = fewest(others, lambda part: trials.stays(chosen(part), f"{len(kept) + len(part)} requests"), least)
    return chosen(some)


def less_neighbour(suite: Suite, trials: Trials) -> Suite:
    """Drop the neighbours, or simplify the parameters of those that the suite names."""
    if suite.mixed:
        unmixed = replace(suite, mixed=False)
        suite = unmixed if trials.stays(unmixed, "no mixed batch") else suite
    beside = suite.arms[0].beside
    if beside is None:
        return suite
    alone = _with_arm(suite, replace(suite.arms[0], beside=None, cancel_beside=0))
    if trials.stays(alone, "nothing beside the requests"):
        return alone

    def neighbour(params: SamplingParams) -> Suite:
        return _with_arm(suite, replace(suite.arms[0], beside=params))

    plain = plainer(beside, lambda params: trials.stays(neighbour(params), f"beside: {_described(params)}"))

    def length(count: int) -> SamplingParams:
        return replace(plain, max_new_tokens=count)

    shortest = smallest(
        1, plain.max_new_tokens, lambda n: trials.stays(neighbour(length(n)), f"beside: max_new_tokens {n}")
    )
    return neighbour(length(shortest))


def smaller_batch(suite: Suite, trials: Trials) -> Suite:
    """Reduce the batch size."""

    def size(count: int) -> Suite:
        return replace(suite, batch_size=count)

    return size(_one_or_few(suite.batch_size, lambda n: trials.stays(size(n), f"batch_size {n}")))


def shorter(suite: Suite, trials: Trials) -> Suite:
    """Reduce the number of new tokens per request."""
    sampling = suite.arms[0].sampling

    def length(count: int) -> Suite:
        return _with_sampling(suite, replace(sampling, max_new_tokens=count))

    return length(smallest(1, sampling.max_new_tokens, lambda n: trials.stays(length(n), f"max_new_tokens {n}")))


def shorter_drafts(suite: Suite, trials: Trials) -> Suite:
    """Reduce the draft length."""
    arm = suite.arms[0]

    def drafts(gamma: int) -> Suite:
        return _with_arm(suite, replace(arm, proposer=replace(arm.proposer, gamma=gamma)))

    return drafts(_one_or_few(arm.proposer.gamma, lambda n: trials.stays(drafts(n), f"gamma {n}")))


def _one_or_few(high: int, stays: Callable[[int], bool]) -> int:
    """Try 1 first: it is often enough, and each other value may start another engine, which is slow."""
    return 1 if high > 1 and stays(1) else smallest(min(2, high), high, stays)


def plainer_sampling(suite: Suite, trials: Trials) -> Suite:
    """Drop sampling parameters and move the others towards their neutral values."""

    def stays(params: SamplingParams) -> bool:
        return trials.stays(_with_sampling(suite, params), f"sampling: {_described(params)}")

    return _with_sampling(suite, plainer(suite.arms[0].sampling, stays))


def shorter_prompts(suite: Suite, trials: Trials) -> Suite:
    """Cut tokens from every prompt, or words if the backend takes no tokens."""
    if len(keys_of(suite)) > MOST_PROMPTS:
        return suite
    for index in range(len(suite.cases)):
        suite = _shorter_prompt(suite, index, trials)
    return suite


def _shorter_prompt(suite: Suite, index: int, trials: Trials) -> Suite:
    case = suite.cases[index]

    def stays(changed: Case, what: str) -> bool:
        return trials.stays(_with_case(suite, index, changed), f"prompt of {case.id}: {what}")

    if REGISTRY[suite.backend].tokens:
        given = case.tokens or trials.prompt_of(suite, case.id)
        with_tokens = replace(case, messages=(), prompt=None, tokens=given)
        plain = replace(with_tokens, tools=())
        # what reads calls out of the answer needs the tools, though the tokens have them already
        if case.tools and not stays(plain, f"{len(given)} tokens, no tools"):
            plain = with_tokens
        if stays(plain, f"{len(given)} tokens"):
            plain = _fewer_tools(plain, stays)
            fewer = fewest(given, lambda some: stays(replace(plain, tokens=some), f"{len(some)} tokens"), 1)
            return _with_case(suite, index, replace(plain, tokens=fewer))
    return _with_case(suite, index, _shorter_text(case, stays))


def _shorter_text(case: Case, stays: Callable[[Case, str], bool]) -> Case:
    if case.prompt is not None:
        return replace(
            case,
            prompt=_fewer_words(
                case.prompt, lambda text: bool(text) and stays(replace(case, prompt=text), _size(text))
            ),
        )
    case = _fewer_tools(case, stays)
    messages = fewest(case.messages, lambda some: stays(replace(case, messages=some), f"{len(some)} messages"), 1)
    case = replace(case, messages=messages)
    for index in range(len(case.messages)):
        case = _shorter_message(case, index, stays)
    return case


def _fewer_tools(case: Case, stays: Callable[[Case, str], bool]) -> Case:
    tools = fewest(case.tools, lambda some: stays(replace(case, tools=some), f"{len(some)} tools"))
    return replace(case, tools=tools)


def _shorter_message(case: Case, index: int, stays: Callable[[Case, str], bool]) -> Case:
    message = case.messages[index]

    def with_text(text: str) -> Case:
        changed = {**message, "content": text}
        return replace(case, messages=(*case.messages[:index], changed, *case.messages[index + 1 :]))

    content = message.get("content")
    if not isinstance(content, str) or not content:
        return case
    return with_text(_fewer_words(content, lambda text: stays(with_text(text), f"message {index}, {_size(text)}")))


def _fewer_words(text: str, stays: Callable[[str], bool]) -> str:
    words = re.findall(r"\s*\S+|\s+$", text)
    text = "".join(fewest(words, lambda some: stays("".join(some))))
    if len(text) <= FEW_LETTERS:
        text = "".join(fewest(text, lambda some: stays("".join(some))))
    return text


def _size(text: str) -> str:
    return f"{len(text)} characters"


def _described(params: SamplingParams) -> str:
    return ", ".join(f"{name} {getattr(params, name)}" for name in set_names(params)) or "all at their defaults"


def _with_case(suite: Suite, index: int, case: Case) -> Suite:
    return replace(suite, cases=(*suite.cases[:index], case, *suite.cases[index + 1 :]))


def _with_arm(suite: Suite, arm: CandidateSpec) -> Suite:
    return replace(suite, arms=(arm,))


def _with_sampling(suite: Suite, sampling: SamplingParams) -> Suite:
    return _with_arm(suite, replace(suite.arms[0], sampling=sampling))
