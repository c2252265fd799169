"""The grammars of a suite: which one a request has, and whether its library takes it; before any model is loaded.

Tools that prompts offer: what a suite asks of them, and whether the backend can carry it out.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from audit.suite.prompts import Workload, WorkloadCases
from audit.suite.spec import CandidateSpec, Case
from audit.text.documents import Document, Place, mistake
from audit.text.unsafe import quoted
from engine.backends import REGISTRY, grammar_problem
from engine.backends.catalogue import NAMED
from engine.core.errors import InvalidRequest
from engine.core.structured import DEFAULT_LIBRARY, LIBRARY, ConstraintKind, ConstraintSpec, constraint_of, schemas_of
from engine.core.types import SamplingParams, ToolOffer


def offers_tools(cases: Iterable[Case]) -> bool:
    """True if any case offers tools in whose answers calls are looked for."""
    return any(case.tools and case.tool_choice != "none" for case in cases)


def demands_call(case: Case) -> bool:
    """True if the case's answer must call a tool."""
    return bool(case.tools) and ToolOffer(case.tools, case.tool_choice).demands


def require_tool_choices(document: Document, place: Place, cases: Iterable[Case], backend: str) -> None:
    """Raise at `place` of the document if the backend cannot carry out a case's tool choice."""
    known = REGISTRY[backend]
    for case in cases:
        kind = case.tool_choice if isinstance(case.tool_choice, str) else NAMED
        if not case.tools or kind in known.tool_choices:
            continue
        problem = f"backend {backend}: tool_choice of case {quoted(case.id)} is {kind}, which is not known to it"
        raise document.error(place, f"{problem}; write one of: {', '.join(known.tool_choices)}")


KEY: Final = "structured"


def sampling_of(sampling: SamplingParams, case: Case, *, ours: bool = True) -> SamplingParams:
    """An arm's parameters for one case: the case's own grammar by the arm's library, else the arm's grammar, if any.

    For a case that demands a call `ours`, the built-in engine, makes the grammar; it gets the library alone.
    """
    given = sampling.structured
    if given is None:
        return sampling
    if case.structured is not None:
        return dataclasses.replace(sampling, structured=dataclasses.replace(case.structured, library=given.library))
    alone = given.kind is ConstraintKind.CASE and not (ours and demands_call(case))
    return dataclasses.replace(sampling, structured=None) if alone else sampling


def library_of(sampling: SamplingParams) -> str | None:
    """The grammar library of an arm's requests; None without grammars."""
    return None if sampling.structured is None else sampling.structured.library


def each_case(cases: Sequence[Case], *, ours: bool) -> dict[str, Any]:
    """The sampling parameter that makes arms take each case's own grammar; nothing if no case has one. The built-in
    engine (`ours`) has one for each case that demands a call.
    """
    result = any(case.structured or (ours and demands_call(case)) for case in cases)
    return {KEY: {LIBRARY: DEFAULT_LIBRARY}} if result else {}


Problems = Callable[[ConstraintSpec], Iterator[str]]
"""Why a backend's arms cannot have a grammar."""


def require_grammars(document: Document, arms: Sequence[CandidateSpec], backend: str) -> None:
    """Raise where an arm has a grammar for all cases that the backend cannot carry out.

    Raises:
        UserError: a library refuses a grammar or is not installed, or the backend or its server has no such grammars.
    """
    for arm in arms:
        spec = arm.sampling.structured
        if spec is None:
            continue
        known = REGISTRY[backend]
        if not known.ours and known.asked is None:
            having = ", ".join(name for name, kind in REGISTRY.items() if kind.ours or kind.asked)
            problem = f"backend {backend} has no grammars, these have: {having}; remove structured"
            raise document.error(_place(document, arm), problem)
        for problem in problems_of(document, [arm], backend)(spec) if spec.kind is not ConstraintKind.CASE else ():
            raise document.error(_place(document, arm), problem)


def require_case_grammars(
    document: Document, arms: Sequence[CandidateSpec], mapping: Mapping[Workload, WorkloadCases], backend: str
) -> None:
    """Raise where a workload's case has a grammar that the arms cannot have.

    Raises:
        UserError: a library refuses a grammar or is not installed, or the server has no such grammars; the message has
            the line. An arm has a grammar for all cases, and the tool choice of a case makes another one.
    """
    ours, problems = REGISTRY[backend].ours, problems_of(document, arms, backend)
    for workload, cases in mapping.items():
        for line, case in zip(cases.lines, cases.cases, strict=True):
            for problem in (other for spec in _specs(case, ours=ours) for other in problems(spec)):
                raise mistake(str(workload.path), line, problem)
            if ours and demands_call(case):
                _require_no_other(document, arms, case)


def _require_no_other(document: Document, arms: Sequence[CandidateSpec], case: Case) -> None:
    for arm in arms:
        spec = arm.sampling.structured
        if spec is not None and spec.kind is not ConstraintKind.CASE:
            problem = f"a grammar beside case {quoted(case.id)}, whose tool_choice demands a call; remove one of them"
            raise document.error(_place(document, arm), problem)


def _specs(case: Case, *, ours: bool) -> Iterator[ConstraintSpec]:
    """The grammars that the case brings: its own, or in our loop the arguments of the tools of which it demands one."""
    if case.structured is not None:
        yield case.structured
    for tool in case.tools if ours and demands_call(case) else ():
        schema = tool.get("function", tool).get("parameters")
        if schema:
            yield constraint_of({ConstraintKind.JSON.value: schema})


def problems_of(document: Document, arms: Sequence[CandidateSpec], backend: str) -> Problems:
    """The problems of a grammar in those of the arms that have one: for our loop each arm's library compiles it;
    another engine is asked whether it can be requested at the arm and at its baseline.
    """
    wanting = [arm for arm in arms if arm.sampling.structured is not None]
    if REGISTRY[backend].ours:
        libraries = sorted({arm.sampling.structured.library for arm in wanting if arm.sampling.structured is not None})
        return lambda spec: (
            problem for library in libraries for problem in _problems(dataclasses.replace(spec, library=library))
        )
    shared = document.data.get("engine", {})
    settings = [item for arm in wanting for item in (shared, {**shared, **arm.engine})]

    def problems(spec: ConstraintSpec) -> Iterator[str]:
        yield from _schema_problems(spec)
        for engine in settings:
            problem = grammar_problem(backend, engine, spec)
            if problem is not None:
                yield problem

    return problems


def _place(document: Document, arm: CandidateSpec) -> Place:
    """The place of an arm's grammar: its own, else the suite's."""
    entries = document.data["arms"]
    index = next((at for at, entry in enumerate(entries) if arm.name.startswith(entry["name"])), 0)
    places: Sequence[Place] = (("arms", index, "sampling", KEY), ("sampling", KEY))
    return next((place for place in places if place in document.lines), ("arms", index))


def _schema_problems(spec: ConstraintSpec) -> Iterator[str]:
    """Why a JSON Schema in a grammar is none, at most one reason."""
    for schema in schemas_of(spec):
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            where = "/".join(map(str, error.absolute_path)) or "its root"
            yield f"structured {spec.kind} is no JSON Schema at {where}: {error.message}; correct it"
            return


def _problems(spec: ConstraintSpec) -> Iterator[str]:
    """Why a grammar cannot be used, at most one reason."""
    # imported late: suites without grammars need no library
    from engine.constraints.compiled import check

    wrong = list(_schema_problems(spec))
    if wrong:
        yield from wrong
        return
    try:
        check(spec)
    except InvalidRequest as error:
        yield str(error)
