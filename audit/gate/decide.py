"""The decision on a run under a policy: a pure function of both and the time.

Every unmet requirement becomes a reason. A requirement that the evidence contradicts blocks; one that the evidence does
not show cannot be decided. A block outweighs the rest:

| what the facts say                                         | outcome       |
|------------------------------------------------------------|---------------|
| a required check is fault or inconclusive                  | block         |
| any check of a candidate arm is fault                      | block         |
| an arm is broken on purpose                                | block         |
| an arm's rule is lossy and the policy requires lossless    | block         |
| a subject's digest differs from the run's                  | block         |
| an arm is below a floor of performance                     | block         |
| a required check is missing or not_run                     | cannot decide |
| a required verdict rests on a lower evidence level         | cannot decide |
| the suite made a required check looser than is accepted    | cannot decide |
| the run is unfinished, too old, too short, of another suite| cannot decide |
| the record or the log does not agree with its hashes       | cannot decide |
| nobody computed the verdicts, the policy accepts no such   | cannot decide |
| no trusted key signed the log, and the policy requires it  | cannot decide |
| a subject that no candidate arm used, or nobody named      | cannot decide |
| an arm that no requirement is for, or that the run lacks   | cannot decide |
| an arm that drafted or accepted nothing, or did too little | cannot decide |
| the run does not show what the deployment serves           | cannot decide |
| an arm's record shows other batches or drafts than deployed| cannot decide |
| a situation was examined too seldom, or nobody counted     | cannot decide |
| a live server is watched too little, or too laxly          | cannot decide |
| a watch of a live server alarmed                           | block         |
| the policy wants a review that the run lacks               | cannot decide |
| a reviewer whose key the policy lists rejected the run     | block         |

A role that nobody named is waived, and the waiver recorded, if the caller says so. Any other requirement is waived by a
signed waiver alone (`audit.gate.waivers`), if the policy accepts it.
"""

from collections.abc import Sequence
from datetime import datetime

from audit.gate.decision import GateOutcome, outcome_of
from audit.gate.facts import RunFacts
from audit.gate.policy import Policy
from audit.gate.rules.claims import claim_reasons
from audit.gate.rules.deployment import deployed_reasons
from audit.gate.rules.reviews import review_reasons
from audit.gate.rules.run import fault_reasons, run_reasons, subject_reasons
from audit.gate.rules.watched import watched_reasons
from audit.gate.rules.workload import workload_reasons
from audit.gate.serving_profile import ServingProfile
from audit.gate.subjects import Subject
from audit.gate.waivers import waived


def decide(
    facts: RunFacts,
    policy: Policy,
    subjects: Sequence[Subject],
    now: datetime,
    *,
    no_subject: bool = False,
    serves: ServingProfile | None = None,
) -> GateOutcome:
    """Judge a run by a policy at a moment, which has a time zone.

    `subjects` are digests that the deployment names, in addition to the policy's own; `no_subject` waives the roles
    that the policy wants named and `subjects` does not name. `serves` is the deployment's own profile, within the
    policy's; None stands for that.
    """
    reasons = (
        *run_reasons(facts, policy, now),
        *subject_reasons(facts, policy, subjects, no_subject=no_subject),
        *fault_reasons(facts, policy),
        *workload_reasons(facts, policy, serves, subjects),
        *deployed_reasons(facts, policy, serves),
        *claim_reasons(facts, policy),
        *review_reasons(facts, policy, now),
        *watched_reasons(facts, policy, now),
    )
    return outcome_of(waived(tuple(dict.fromkeys(reasons)), facts, policy, now))
