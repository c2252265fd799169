"""Grammars in vLLM's words: the engine's argument, a request's parameter, and what vLLM reads otherwise than we do.

One engine of vLLM has one grammar library, `structured_outputs_config.backend`; it follows the arm's grammars. vLLM
takes a grammar for Lark unless a line of it has `::=`.
"""

from collections.abc import Mapping
from typing import Any, Final

from engine.backends.engine_spec import EngineSpec
from engine.backends.vllm.public_api import CONFIG, READ_BACK
from engine.core.errors import InvalidRequest
from engine.core.structured import ConstraintKind, ConstraintSpec

LIBRARIES: Final[Mapping[str, str]] = {"llguidance": "guidance", "xgrammar": "xgrammar"}
"""vLLM's names of the grammar libraries."""
EBNF: Final = "::="


def structured_config(plan: EngineSpec) -> dict[str, Any]:
    """The engine's argument of that name; empty for an arm without grammars and without such a setting.

    Raises:
        InvalidRequest: a library beside the arm's own.
    """
    given = dict(plan.engine.get(CONFIG, {}))
    beside = plan.beside.structured if plan.beside is not None else None
    libraries = [name for name in (plan.library, beside.library if beside is not None else None) if name is not None]
    for name in libraries:
        if name not in LIBRARIES:
            raise InvalidRequest(f"structured: vLLM has no library {name}; write one of: {', '.join(LIBRARIES)}")
        if name != libraries[0]:
            raise InvalidRequest(
                f"beside: one engine of vLLM has one grammar library; write library: {libraries[0]} in its structured"
            )
        chosen = given.setdefault("backend", LIBRARIES[name])
        if chosen != LIBRARIES[name]:
            raise InvalidRequest(
                f"engine.{CONFIG}: backend {chosen} is not the library of the arm's grammars; remove it, "
                f"or write another library in structured"
            )
    return {CONFIG: given} if given else {}


def requested_config(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of that argument, by dotted names."""
    return {f"{CONFIG}.{name}": value for name, value in asked.get(CONFIG, {}).items() if name in READ_BACK}


def structured_params(spec: ConstraintSpec) -> dict[str, Any]:
    """Arguments of `StructuredOutputsParams`.

    Raises:
        InvalidRequest: a grammar that vLLM takes for one in another notation, or a structural tag.
    """
    if spec.kind is ConstraintKind.STRUCTURAL_TAG:
        raise InvalidRequest("structured structural_tag: not audited on vLLM; write json, regex, choice or grammar")
    if spec.kind is ConstraintKind.GRAMMAR and EBNF in spec.source:
        raise InvalidRequest(f"structured grammar: vLLM reads a text with {EBNF} as EBNF; write that otherwise")
    return {spec.kind.value: spec.value if spec.kind is ConstraintKind.CHOICE else spec.source}


def grammar_problem(_engine: Mapping[str, Any], spec: ConstraintSpec) -> str | None:
    """Why vLLM cannot be asked for a grammar; None if it can."""
    try:
        structured_params(spec)
    except InvalidRequest as error:
        return str(error)
    return None
