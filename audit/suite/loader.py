"""Loads a suite's YAML file as an `audit.suite.spec.Suite`.

The order of validation is: bytes, YAML, JSON Schema, semantics. The first mistake
raises a one-line error with the file, the line and the fix. Loads no model.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import schemas
from audit import checks
from audit.checks.battery import default_checks
from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.rule import LEAST, CoverageRule
from audit.suite.check_parameters import parameters_of
from audit.suite.filters import FiltersParser
from audit.suite.matrix import MOST_CELLS, cell_count, cells
from audit.suite.models import ModelsParser
from audit.suite.prompts import require_streams
from audit.suite.record_level import AUTO, effective_level
from audit.suite.spec import CandidateSpec, Case, ProposerSpec, Suite
from audit.suite.structured import each_case, offers_tools, require_case_grammars, require_grammars
from audit.suite.workloads import WorkloadsParser
from audit.text.documents import Document, Place, is_file, packaged_file, read_yaml
from audit.text.schema_errors import check_document, check_part, check_value, suggestion
from audit.text.unsafe import quoted
from engine import backends, proposers, verify
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.neighbour import contrasting
from engine.core.errors import InvalidRequest
from engine.core.structured import constraint_of
from engine.core.types import Protocol, SamplingParams
from engine.proposers import options as proposer_options

LONGEST_NAME: Final = 64
MOST_REQUESTS: Final = 200_000
"""Of one arm; a run keeps them in memory."""

SAMPLING_DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: field.default for field in dataclasses.fields(SamplingParams)
}

Parameters = dict[str, dict[str, Any]]


def load_suite(name: str | Path) -> Suite:
    """Load a suite from a path, or by the name of a packaged one.

    `quickstart`, `quickstart.yaml` and `suites/quickstart.yaml` all name the
    packaged suite unless a file of that name exists.

    Raises:
        UserError: the first mistake, as `path:LINE: problem; fix`.
    """
    path = find_suite(name)
    document = read_yaml(path)
    _refuse_seeds(document)
    check_document(document, schemas.load("suite"))
    suite = _Loader(document, path.parent).suite()
    require_streams(suite)
    return suite


def _refuse_seeds(document: Document) -> None:
    """Reject seeds in sampling parameters: engines take them per request, but here all requests would share one."""
    arms = document.data.get("arms") if isinstance(document.data, Mapping) else None
    count = len(arms) if isinstance(arms, list) else 0
    for place in (("sampling", "seed"), *(("arms", index, "sampling", "seed") for index in range(count))):
        if place in document.lines:
            problem = "requests with one seed and stream share their random numbers; remove it, seed: is the suite's"
            raise document.error(place, problem)


def find_suite(name: str | Path) -> Path:
    """The file of a suite: the path itself if it is a file, else the packaged suite of that name."""
    path = Path(name)
    if is_file(path):
        return path
    parts = PurePosixPath(str(name)).parts
    inside = PurePosixPath(*(parts[1:] if parts[:1] == ("suites",) else parts))
    packaged = packaged_file(str(inside if inside.suffix in (".yaml", ".yml") else f"{inside}.yaml"))
    return packaged if packaged is not None and packaged.is_file() else path


class _Loader:
    """Converts one schema-valid document to a suite."""

    def __init__(self, document: Document, folder: Path) -> None:
        self._document = document
        self._folder = folder
        self._backend: str = document.data.get("backend", "native")
        self._known(("backend",), "backend", self._backend, backends.REGISTRY)
        self._kind = backends.REGISTRY[self._backend]
        self._filters = FiltersParser(document, folder, self._kind)
        self._defaults: dict[str, Any] = {}
        """Sampling parameters that the prompts imply."""
        self._offers = False
        """True if prompts offer tools."""
        self._target = ModelSource("")

    def suite(self) -> Suite:
        data = self._document.data
        known = ModelsParser(self._document, self._folder, self._kind)
        models = {name: known.spec(name, entry) for name, entry in data["models"].items()}
        self._target = models["target"]
        defaults = self._parameters(("checks",), data.get("checks", {}))
        parser = WorkloadsParser(self._document, self._folder, self._backend)
        workloads = [parser.workload(index, entry) for index, entry in enumerate(data["workloads"])]
        self._unique("workloads", [workload.name for workload in workloads])
        prompts = [parser.cases(index, workload) for index, workload in enumerate(workloads)]
        cases = tuple(case for prompt in prompts for case in prompt.cases)
        self._defaults, self._offers = each_case(cases, ours=self._kind.ours), offers_tools(cases)
        self._require_requests(cases)
        arms = [
            arm for index, entry in enumerate(data["arms"]) for arm in self._matrix(("arms", index), entry, defaults)
        ]
        self._unique("arms", [entry["name"] for entry in data["arms"]])
        self._unique("arms", [arm.name for arm in arms])
        require_grammars(self._document, arms, self._backend)
        require_case_grammars(self._document, arms, dict(zip(workloads, prompts, strict=True)), self._backend)
        return Suite(
            name=data["name"],
            path=self._document.path,
            description=data.get("description", ""),
            backend=self._backend,
            engine=self._engine(("engine",), data.get("engine")),
            seed=int(data.get("seed", 0)),
            batch_size=int(data.get("batch_size", 8)),
            samples=int(data.get("samples", 1)),
            models=models,
            cases=cases,
            arms=tuple(arms),
            sha256=_digest(self._document.raw, [prompt.digest for prompt in prompts], self._filters.digests),
            document=data,
            mixed=self._mixed(data.get("mixed")),
        )

    def _require_requests(self, cases: Sequence[Case]) -> None:
        samples = int(self._document.data.get("samples", 1))
        count = sum(samples if case.samples is None else len(case.samples) for case in cases)
        if count > MOST_REQUESTS:
            problem = f"{samples} samples of {len(cases)} cases are {count} requests per arm, more than {MOST_REQUESTS}"
            raise self._document.error(("samples",), f"{problem}; lower samples, or use rounds (--until decided)")

    def _mixed(self, entry: bool | None) -> bool:
        """Only our engines are deterministic enough for unrecorded neighbours."""
        if entry and not self._kind.ours:
            problem = f"backend {self._backend} has no mixed batches; write beside: in an arm instead"
            raise self._document.error(("mixed",), problem)
        return self._kind.ours if entry is None else entry

    def _unique(self, key: str, names: list[str]) -> None:
        for index, name in enumerate(names):
            if name in names[:index]:
                problem = f"the name {quoted(name)} is already used in {key}; give each its own"
                raise self._document.error((key, index, "name"), problem)

    def _matrix(self, place: Place, entry: Mapping[str, Any], defaults: Parameters) -> Iterator[CandidateSpec]:
        """Yield the arm, or all arms of its `vary` matrix."""
        vary = entry.get("vary", {})
        for key, values in vary.items():
            for index, value in enumerate(values):
                part = {"$ref": f"#/$defs/sampling/properties/{key}", "$defs": schemas.load("suite")["$defs"]}
                self._known((*place, "vary", key), "sampling parameter", key, part["$defs"]["sampling"]["properties"])
                check_value(self._document, (*place, "vary", key, index), value, part)
        count = cell_count(vary, pairs=entry.get("pairs", False))
        if count > MOST_CELLS:
            problem = f"the matrix has {count} arms, more than {MOST_CELLS}; vary fewer values, or leave out pairs"
            raise self._document.error((*place, "vary"), problem)
        for suffix, varied in cells(vary, pairs=entry.get("pairs", False)):
            name = entry["name"] + suffix
            if len(name) > LONGEST_NAME:
                problem = f"the arm {quoted(name)} would have more than {LONGEST_NAME} characters; shorten name"
                raise self._document.error((*place, "name"), problem)
            sampling = {**entry.get("sampling", {}), **varied}
            yield self._arm(place, {**entry, "name": name, "sampling": sampling}, defaults)

    def _arm(self, place: Place, entry: Mapping[str, Any], defaults: Parameters) -> CandidateSpec:
        sampling = self._sampling(place, entry.get("sampling", {}))
        options = {"kind": entry["verifier"]} if isinstance(entry["verifier"], str) else dict(entry["verifier"])
        verifier = Protocol(options.pop("kind"))
        self._verifier((*place, "verifier"), verifier, options)
        if verifier is Protocol.GREEDY and not sampling.greedy:
            problem = f"the greedy verifier needs temperature 0, not {sampling.temperature}; use chain or gumbel"
            raise self._document.error((*place, "verifier"), problem)
        requested = str(entry.get("record", self._document.data.get("record", AUTO)))
        record = effective_level(requested, self._target.source)
        proposer = self._proposer((*place, "proposer"), entry["proposer"])
        engine = self._engine((*place, "engine"), entry.get("engine"))
        plan = EngineSpec(
            protocol=verifier,
            proposer=proposer.kind,
            gamma=proposer.gamma,
            draft=proposer.model,
            options=proposer.options,
            level=record,
            verifier_options=options,
            engine={**self._document.data.get("engine", {}), **engine},
            stream=self._filters.stream(place, entry),
        )
        cancelled = int(entry.get("cancel_beside", 0))
        if cancelled and not self._kind.cancels:
            problem = f"backend {self._backend} cannot cancel a request; remove it"
            raise self._document.error((*place, "cancel_beside"), problem)
        checked = entry.get("checks")
        if "checks" not in entry:
            checked = list(default_checks(self._backend, plan, sampling, self._target, calls=self._offers))
        return CandidateSpec(
            name=entry["name"],
            proposer=proposer,
            verifier=verifier,
            sampling=sampling,
            record=record,
            checks=self._checks((*place, "checks"), checked, defaults),
            fault=self._fault((*place, "fault"), entry.get("fault")),
            verifier_options=options,
            engine=engine,
            beside=self._beside((*place, "beside"), entry.get("beside")) or self._cancelled(sampling, cancelled),
            cancel_beside=cancelled,
            coverage=self._coverage(place, entry.get("coverage", {})),
            stream=plan.stream,
            requested_record=requested if requested != record else None,
        )

    def _coverage(self, arm: Place, overrides: Mapping[str, Any]) -> CoverageRule:
        """The arm's floors: its own keys, else the suite's."""
        values = {**self._document.data.get("coverage", {}), **overrides}
        for key in ("waive", "demand"):
            place = (*arm, "coverage", key) if key in overrides else ("coverage", key)
            for index, name in enumerate(values.get(key, ())):
                self._known((*place, index), "situation", name, CATALOGUE)
        waived, demanded = tuple(values.get("waive", ())), tuple(values.get("demand", ()))
        return CoverageRule(int(values.get("least", LEAST)), waived, demanded, values.get("directed") != "off")

    def _engine(self, place: Place, entry: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The backend's own settings, validated against the backend's schema."""
        if entry is None:
            return {}
        if self._kind.options is None:
            raise self._document.error(place, f"backend {self._backend} has no settings of its own; remove engine")
        check_part(self._document, place, schemas.load(self._kind.options))
        return dict(entry)

    def _beside(self, place: Place, entry: Mapping[str, Any] | None) -> SamplingParams | None:
        """The sampling parameters of the neighbours, the requests that share the batch with the arm's own."""
        if entry is None:
            return None
        try:
            return SamplingParams(**{key: _typed(key, value) for key, value in entry.items()})
        except InvalidRequest as error:
            raise self._document.error((*place, str(error).split()[0]), f"{error}; change the value") from error

    def _cancelled(self, sampling: SamplingParams, after: int) -> SamplingParams | None:
        """The parameters of neighbours that are cancelled; another engine may lack those that the arm does not use."""
        if not after:
            return None
        return contrasting(sampling) if self._kind.ours else sampling

    def _sampling(self, arm: Place, overrides: Mapping[str, Any]) -> SamplingParams:
        values = {**self._defaults, **self._document.data.get("sampling", {}), **overrides}
        try:
            return SamplingParams(**{key: _typed(key, value) for key, value in values.items()})
        except InvalidRequest as error:
            key = str(error).split()[0]
            place = (*arm, "sampling", key) if key in overrides else ("sampling", key)
            raise self._document.error(place, f"{error}; change the value") from error

    def _verifier(self, place: Place, rule: Protocol, options: Mapping[str, Any]) -> None:
        """Validate a rule's options one by one, so that an error names its own line."""
        if self._kind.rules is not None:
            self._known(place, f"rule of backend {self._backend}", rule.value, self._kind.rules)
        for key, value in options.items():
            try:
                verify.load(rule, {key: value})
            except InvalidRequest as error:
                raise self._document.error((*place, key), f"{error}; change the option") from error

    def _proposer(self, place: Place, entry: Mapping[str, Any]) -> ProposerSpec:
        kinds = proposers.REGISTRY if self._kind.proposers is None else self._kind.proposers
        self._known((*place, "kind"), "proposer", entry["kind"], kinds)
        model = entry.get("model")
        if model is not None:
            self._known((*place, "model"), "model", model, self._document.data["models"])
        for i, other in enumerate(entry.get("others", ())):
            self._known((*place, "others", i), "model", other, self._document.data["models"])
        others = tuple(entry.get("others", ()))
        spec = ProposerSpec(entry["kind"], int(entry["gamma"]), model, entry.get("options", {}), others)
        # another engine validates the options of its own proposers
        problem = _proposer_problem(spec) if self._kind.ours else None
        if problem is not None:
            raise self._document.error((*place, "options") if spec.options else place, problem)
        return spec

    def _checks(self, place: Place, entry: Any, defaults: Parameters) -> Parameters:
        if isinstance(entry, list):
            for index, name in enumerate(entry):
                self._known((*place, index), "check", name, checks.REGISTRY)
            entry = {name: {} for name in entry}
        own = self._parameters(place, entry)
        return {name: {**defaults.get(name, {}), **values} for name, values in own.items()}

    def _parameters(self, place: Place, entry: Mapping[str, Any]) -> Parameters:
        for name in entry:
            self._known((*place, name), "check", name, checks.REGISTRY)
        return {name: parameters_of(self._document, (*place, name), name, values) for name, values in entry.items()}

    def _fault(self, place: Place, name: str | None) -> str | None:
        if name is not None and not self._kind.faults:
            raise self._document.error(place, f"backend {self._backend} cannot be broken on purpose; remove fault")
        if name is not None:
            self._known(place, "fault", name, self._kind.faults)
        return name

    def _known(self, place: Place, kind: str, name: str, accepted: Iterable[str]) -> None:
        words = list(accepted)
        if name not in words:
            raise self._document.error(place, f"unknown {kind} {quoted(name)}; {suggestion(name, words)}")


def _proposer_problem(spec: ProposerSpec) -> str | None:
    """The problem with the proposer's options or its missing model, or None; reads no weights."""
    try:
        proposer_options.read(spec.kind, spec.options)
    except InvalidRequest as error:
        return f"{error}; change the options"
    needed = proposer_options.NEEDS.get(spec.kind)
    if needed is None or spec.model:
        return None
    return f"proposer {spec.kind} needs {needed}; add model: with the name of one of the suite's models"


def _typed(key: str, value: Any) -> Any:
    """Convert a JSON value to the sampling field's type: `5.0` is an integer in JSON, lists become tuples."""
    if key == "structured":
        return constraint_of(value)
    if key == "logit_bias":
        return tuple((int(token), float(bias)) for token, bias in value)
    default = SAMPLING_DEFAULTS[key]
    return _whole(value) if isinstance(default, tuple) else type(default)(value)


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_whole(item) for item in value)
    return int(value) if isinstance(value, float) else value


def _digest(raw: bytes, prompts: Iterable[bytes], rules: Mapping[str, bytes]) -> str:
    """SHA-256 over the digests of the YAML bytes, of the prompt files and of the filters' rule files, in order."""
    return hashlib.sha256(b"".join([hashlib.sha256(raw).digest(), *prompts, *rules.values()])).hexdigest()
