"""Rule `deployed`: a run that ran otherwise than the deployment decides nothing about it."""

from collections.abc import Iterator, Mapping
from typing import Final

from audit.evidence.coverage.scope import ArmScope, scope_of_details
from audit.evidence.verdicts import Verdict
from audit.gate.arm_scope import shown_scope
from audit.gate.decision import Reason, undecided
from audit.gate.facts import RunFacts
from audit.gate.policy import Policy
from audit.gate.rules.workload import Shortfall
from audit.gate.serving_profile import DeployedScope, ServingProfile

DEPLOYED: Final = "deployed"
WORDS: Final = ("shape", "numerics", "device", "engine", "version", "weights", "proposer")
"""The parts that an arm states by a word."""


def deployed_reasons(facts: RunFacts, policy: Policy, asked: ServingProfile | None) -> Iterator[Reason]:
    """Why the candidate arms did not run as the deployment does, by the policy and by the deployment's own profile."""
    for profile in (policy.parts.serving, *([] if asked is None else [asked])):
        used: set[str] = set()
        for arm in facts.candidates:
            done, seen = facts.workloads.get(arm.name), _scope(facts, arm.name)
            shown = shown_scope(facts.run, arm, seen, None if done is None else done.longest)
            used.update(digest for digests in shown.models.values() for digest in digests)
            for lack in beyond(seen.smallest_batch, shown, profile.deployed):
                yield undecided(DEPLOYED, f"arm {arm.name}: {lack.text}", arm.name, about=lack.count)
        for role, digests in profile.deployed.models.items():
            for digest in sorted(set(digests) - used):
                yield undecided(DEPLOYED, f"no candidate arm used {role} sha256:{digest}", about=role)


def _scope(facts: RunFacts, arm: str) -> ArmScope:
    """The scope of an arm's certified verdicts, which is the same for all."""
    certified = (check for check in facts.checks if check.arm == arm and check.verdict is Verdict.CERTIFIED)
    known = (scope for check in certified if (scope := scope_of_details(check.details)) is not None)
    return next(known, ArmScope())


def beyond(smallest: int | None, shown: DeployedScope, deployed: DeployedScope) -> Iterator[Shortfall]:
    """The parts of a deployment that an arm does not show, whose smallest batch was `smallest`."""
    size, drafted, context = deployed.batch_size, deployed.drafted, deployed.context
    if size is not None:
        seen = _word(smallest) if smallest == shown.batch_size else f"{smallest} to {shown.batch_size}"
        inside = smallest is not None and smallest <= size <= (shown.batch_size or 0)
        yield from () if inside else (Shortfall("batch_size", f"audited at batch {seen}, deployed at {size}"),)
    if drafted is not None and (shown.drafted or 0) < drafted:
        yield Shortfall("drafted", f"audited with drafts of {_word(shown.drafted)}, deployed with {drafted}")
    if context is not None and (shown.context or 0) < context:
        text = f"audited with up to {_word(shown.context)} tokens of prompt and answer, deployed with {context}"
        yield Shortfall("context", text)
    for name in WORDS:
        wanted, audited = _kind(name, getattr(deployed, name)), _kind(name, getattr(shown, name))
        if wanted not in (None, audited):
            yield Shortfall(name, f"audited with {name} {_word(audited)}, deployed with {wanted}")
    yield from _other_models(shown.models, deployed.models)


def _other_models(shown: Mapping[str, tuple[str, ...]], deployed: Mapping[str, tuple[str, ...]]) -> Iterator[Shortfall]:
    for role, digests in deployed.items():
        for digest in sorted(set(shown.get(role, ())) - set(digests)):
            yield Shortfall(role, f"audited with {role} sha256:{digest}, which is not deployed")


def _word(value: object) -> str:
    return "unknown" if value is None else str(value)


def _kind(name: str, word: str | None) -> str | None:
    """The word of a part; a device without its number: `cuda:0` is `cuda`."""
    return word.partition(":")[0].lower() if name == "device" and word is not None else word
