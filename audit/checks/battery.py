"""The default checks of an arm: for each recorded quantity its strongest account, and the claims about the whole.

Every list is made of checks that need no recorded rates and no extra sample sizes. A list may name checks whose claim
does not exist for the arm's rule or temperature; these end `not_run` and decide nothing.
"""

import contextlib
from typing import Final

from audit.checks import REGISTRY
from audit.evidence.accounts import ArmOutline, accounts_of
from engine.backends import declared
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.evidence import ArmEvidence, ArmSettings, Part
from engine.core.errors import InvalidRequest
from engine.core.types import SamplingParams

DECISIONS: Final = 3
"""The evidence level from which p, q and decisions are on record."""
CLAIMS: Final = (
    *("accounting", "replay", "greedy_equality", "coupled_equality", "law", "q_contract", "prefix_measurable"),
    "acceptance_theory",
)
"""With p, q and decisions on record."""
OURS: Final = ("rng_streams", "bitwise")
"""Further claims about the project's own loop."""
TOKENS: Final = ("accounting", "greedy_equality")
"""With tokens and texts only."""
FOREIGN: Final = ("configuration",)
"""Of an engine that decodes by itself."""
SERVED: Final = ("same_seed", "seed")
"""Of such an engine without p and q on record."""
ANSWERED: Final = ("surface_parity",)
"""Of a service, whose answers have a form."""


def default_checks(
    backend: str, plan: EngineSpec, sampling: SamplingParams, target: ModelSource, *, calls: bool
) -> tuple[str, ...]:
    """The default checks of an arm, by the evidence that its backend declares; `calls` if requests offer tools."""
    declaration = declared(backend)
    level = declaration.levels[plan.level]
    shown = ArmEvidence(declaration.decoder, level.level, level.parts, plan.protocol)
    # the backend itself reports settings that it refuses, when the arm is built
    with contextlib.suppress(InvalidRequest):
        shown = declaration.arm(ArmSettings(plan, sampling, target))
    return standard_checks(
        ArmOutline(
            shown,
            # a rule or a fault may show less; the checks then say so
            level.level,
            sampling.greedy,
            calls=calls,
            structured=sampling.structured is not None,
            streamed=plan.stream is not None,
            filtered=plan.stream is not None and bool(plan.stream.filters),
        )
    )


def standard_checks(arm: ArmOutline) -> tuple[str, ...]:
    """The default checks of an arm, in the order in which they are reported."""
    wanted = {name for _, accounts in accounts_of(arm) for account in accounts[:1] for name in account.checks}
    wanted |= set(_claims(arm)) | {"second_accounts"} | set(ANSWERED if arm.shown.gives(Part.IDENTITY) else ())
    return tuple(name for name in REGISTRY if name in wanted)


def _claims(arm: ArmOutline) -> tuple[str, ...]:
    """The claims that the arm's evidence level can judge."""
    if arm.level < DECISIONS:
        own = ("coupled_equality", "bitwise") if arm.level else ()
        return (*TOKENS, *own) if arm.ours else (*TOKENS, *FOREIGN, *(SERVED if arm.shown.seeded else ()))
    if not arm.ours:
        return (*CLAIMS, *FOREIGN)
    return (*CLAIMS, *(OURS if arm.level > DECISIONS else OURS[1:]))
