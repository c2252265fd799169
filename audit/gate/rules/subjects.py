"""Rules on subjects: what the deployment runs, compared with what the candidate arms ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from audit.gate.decision import Reason, blocked, remark, undecided
from audit.gate.facts import RunFacts
from audit.gate.policy import Policy
from audit.gate.subjects import Subject
from audit.store import ArtifactRef
from audit.store.base.governance import used_drafts

ENGINE = "engine"
"""Kind of the effective configuration of an arm; its role is `engine/ARM`."""


def subject_reasons(
    facts: RunFacts, policy: Policy, subjects: Sequence[Subject], *, no_subject: bool
) -> Iterator[Reason]:
    """Reasons why the audited models are not the subjects to deploy."""
    wanted = [*(Subject(role, digest, "policy") for role, digest in policy.digests.items()), *subjects]
    yield from _unnamed(facts, policy, subjects, no_subject=no_subject)
    for subject in wanted:
        yield from _compared(facts, subject)


def _unnamed(facts: RunFacts, policy: Policy, subjects: Sequence[Subject], *, no_subject: bool) -> Iterator[Reason]:
    given = {subject.role for subject in subjects}
    for role in dict.fromkeys((*policy.named, *policy.named_if_used)):
        used = _used_as(facts, role)
        required = role in policy.named or used
        if not required or role in given or (used and all(artifact.role in given for artifact in used)):
            continue
        if no_subject:
            yield remark(f"subject {role}", "not named; --no-subject waived it")
        else:
            text = f"the policy wants it named; add --subject {role}=FOLDER, or say --no-subject"
            yield undecided(f"subject {role}", text)


def _compared(facts: RunFacts, subject: Subject) -> Iterator[Reason]:
    """Compare the subject's digest with every artifact of its role; artifacts with different digests are ambiguous."""
    requirement = f"subject {subject.role}"
    used = _used_as(facts, subject.role)
    matching = [artifact for artifact in used if artifact.sha256 == subject.sha256]
    if not used:
        known = ", ".join(sorted({name for part in used_artifacts(facts) for name in (part.role, part.kind)}))
        yield undecided(requirement, f"no candidate arm used such a thing; they used: {known}")
    elif not matching:
        text = f"{subject.origin} is sha256:{subject.sha256}, the run used sha256:{used[0].sha256}"
        yield blocked(requirement, text)
    elif len(matching) < len(used):
        names = ", ".join(sorted({artifact.role for artifact in used}))
        yield undecided(requirement, f"the run used several with different digests; name one of: {names}")


def _used_as(facts: RunFacts, role: str) -> list[ArtifactRef]:
    """The used artifact with that role; if there is none, all used artifacts of that kind."""
    used = [*used_artifacts(facts), *engines(facts)]
    return [part for part in used if part.role == role] or [part for part in used if part.kind == role]


def engines(facts: RunFacts) -> list[ArtifactRef]:
    """The effective configuration of each candidate arm, by digest."""
    return [
        ArtifactRef(ENGINE, f"{ENGINE}/{arm.name}", arm.name, None, arm.configuration_sha256)
        for arm in facts.candidates
    ]


def used_artifacts(facts: RunFacts) -> list[ArtifactRef]:
    """The run's artifacts, without the draft models that the suite declares and no candidate arm used."""
    drafts = used_drafts([arm.spec for arm in facts.candidates])
    # an older record or another tool's may not name the models of an arm: then every model counts as used
    return [part for part in facts.run.artifacts if part.kind != "draft" or drafts is None or part.role in drafts]
