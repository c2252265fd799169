"""The features that an adapter expects of a server of its kind, held against those that a real one showed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.backends.openai.probing.trials import ONE_TOKEN, ProbedFeature, TrialOutcome
from engine.backends.openai.settings import COUNTING, DIALECTS, NATIVE, Api

EVERYWHERE: Final[Mapping[str, str]] = {
    "chat": "suites send chats",
    "stream": "stream: streamed and both",
    "repeatable": "greedy_equality compares answers at temperature 0",
    "logprobs": "logprob_closeness, and evidence level L1",
    "seed": "the checks seed and same_seed",
    "top_p": "the sampling parameter of that name",
    "one name": "identity compares the names in all answers",
    "own lists": "surface_parity holds a token against its own list",
    "fields in stream": "surface_parity holds a stream against the whole answer",
}
"""The parts that rest on each feature, of servers of every kind."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expected feature, what rests on it, and the trial of it."""

    name: str
    rests: str
    seen: ProbedFeature

    @property
    def holds(self) -> bool | None:
        """True if the server has it; None if the trial decided nothing."""
        return None if self.seen.outcome is TrialOutcome.UNCLEAR else self.seen.outcome is TrialOutcome.YES


OWN_ROUTE: Final[Mapping[str, str]] = {
    Api.GENERATE.value: "api: generate",
    **{name: rests for name, rests in EVERYWHERE.items() if name != Api.CHAT},
}
"""The same of SGLang's own route."""


def contract(kind: str, *, speculates: bool | None, features: Sequence[ProbedFeature]) -> tuple[Expectation, ...]:
    """The expectations of a kind of server, or of SGLang's own route; one without a trial decided nothing."""
    seen = {feature.name: feature for feature in features}
    own = Api.GENERATE in seen
    dialect, expected = (NATIVE, dict(OWN_ROUTE)) if own else (DIALECTS[kind], dict(EVERYWHERE))
    expected |= {name: EVERYWHERE["top_p"] for name in ONE_TOKEN if name in dialect.extras}
    if dialect.token_ids:
        expected |= {"token ids": "tokens on record are the server's own", "prompt as ids": "prompts of tokens"}
    if kind in COUNTING and speculates:
        expected |= {"drafts per answer": "counts of each request"}
    untried = ProbedFeature("", TrialOutcome.UNCLEAR, "not tried")
    return tuple(Expectation(name, rests, seen.get(name, untried)) for name, rests in expected.items())
