"""A pytest plug-in: files named `*.audit.yaml` are suites, and each claim about an arm is a test.

The first test of a file runs the arms of all selected tests, and the others read its verdicts. A worker of pytest-xdist
runs the arms of its own tests: with `--dist loadgroup` those of one arm stay together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

from audit.errors import CannotDecide, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from audit.api.reading import RunResult
    from audit.store import StoredCheck
    from audit.suite.spec import Suite

SUFFIX: Final = ".audit.yaml"
FAULT, UNDECIDED = 1, 3
"""Exit codes of a claim, as of a run."""
STORE: Final = pytest.StashKey[str]()


class ClaimError(Exception):
    """A claim that is broken or not decided; its text is the finding."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `pytest --help`."""
    group = parser.getgroup("specaudit", "suites of specaudit (*.audit.yaml)")
    text = "How a claim ends that the evidence cannot decide. Default: error."
    group.addoption("--audit-undecided", choices=("error", "fail", "skip"), default="error", help=text)
    text = "Store of the runs, a path or URL. Default: one in pytest's temporary folder."
    group.addoption("--audit-store", metavar="STORE", help=text)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SuiteFile | None:
    """A suite's file."""
    return SuiteFile.from_parent(parent, path=file_path) if file_path.name.endswith(SUFFIX) else None


def store_of(config: pytest.Config) -> str:
    """The store of this process: `--audit-store`, or one in the temporary folder."""
    if STORE not in config.stash:
        folder = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # as pytest's own fixtures do
        config.stash[STORE] = config.getoption("--audit-store") or str(folder / "audit.db")
    return config.stash[STORE]


@dataclass(frozen=True, slots=True)
class ArmResults:
    """The results of one arm by claim, and the run that they belong to."""

    run: RunResult
    claims: Mapping[str, Sequence[StoredCheck]]


class SuiteFile(pytest.File):
    """A suite; its arms run when the first of their tests does."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self._done: dict[str, ArmResults] = {}

    def collect(self) -> Iterator[ClaimTest]:
        """A test for each claim about each arm."""
        from audit.checks import load
        from audit.suite.loader import load_suite

        self.suite: Suite = load_suite(self.path)
        for arm in self.suite.arms:
            for claim in dict.fromkeys(load(name).claim for name in arm.checks):
                test: ClaimTest = ClaimTest.from_parent(self, name=f"{arm.name}[{claim}]")
                test.arm, test.claim = arm.name, claim
                if self.config.pluginmanager.hasplugin("xdist"):
                    test.add_marker(pytest.mark.xdist_group(f"{self.nodeid}::{arm.name}"))
                yield test

    def results(self, arm: str) -> ArmResults:
        """The results of an arm, which runs if it has not.

        Raises:
            UserError, CannotDecide: the suite cannot run.
        """
        if arm not in self._done:
            self._run([arm] if hasattr(self.config, "workerinput") else self._selected())
        return self._done[arm]

    def _selected(self) -> list[str]:
        tests = (item for item in self.session.items if isinstance(item, ClaimTest) and item.parent is self)
        return list(dict.fromkeys(test.arm for test in tests))

    def _run(self, names: Sequence[str]) -> None:
        from audit.api.running import run
        from audit.runs.interruptions import Interrupted
        from engine.core.sequences import grouped

        arms = tuple(arm for arm in self.suite.arms if arm.name in names)
        try:
            done = run(replace(self.suite, arms=arms), store_of(self.config))
        except Interrupted as stopped:
            pytest.exit(str(stopped), returncode=int(pytest.ExitCode.INTERRUPTED))
        for arm, checks in grouped((check.arm, check) for check in done.checks()).items():
            self._done[arm] = ArmResults(done, grouped((check.claim, check) for check in checks))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:  # noqa: ARG002 - pytest's
        """A mistake in the suite is one line."""
        return str(excinfo.value) if isinstance(excinfo.value, UserError) else super().repr_failure(excinfo)


class ClaimTest(pytest.Item):
    """One claim about one arm."""

    arm: str
    claim: str

    def setup(self) -> None:
        """Read the verdicts, which runs the arm; a claim that is not decided ends here, or as a failure."""
        from audit.evidence.verdicts import Verdict

        assert isinstance(self.parent, SuiteFile)
        done = self.parent.results(self.arm)
        self._checks = done.claims[self.claim]
        self.user_properties += [(f"{check.check}", check.verdict.value) for check in self._checks]
        record = done.run.record()
        self.user_properties += [("run", done.run.id), ("record_root", str(record.record_root))]
        self.user_properties += [("suite_sha256", record.suite_sha256)]
        way = self.config.getoption("--audit-undecided")
        if all(check.verdict is Verdict.NOT_RUN and not check.lacking for check in self._checks):
            pytest.skip(f"no such claim exists for this arm: {self._checks[0].summary}")
        if self._code == UNDECIDED and way == "skip":
            pytest.skip(self._told())
        if self._code == UNDECIDED and way == "error":
            raise ClaimError(self._told())

    @property
    def _code(self) -> int:
        from audit.runs.judge import arm_exit_code

        return arm_exit_code(self._checks)

    def runtest(self) -> None:
        """Fail with the finding if the claim is broken."""
        if self._code:
            raise ClaimError(self._told())

    def _told(self) -> str:
        word = "broken" if self._code == FAULT else "undecided"
        lines = [f"{self.arm}: {self.claim} is {word}"]
        for check in self._checks:
            lines.append(f"  {check.check} {check.verdict.value}: {check.summary}")
            lines += [
                f"    {finding.request}, step {finding.step}: {finding.message}" for finding in check.findings[:3]
            ]
        return "\n".join(lines)

    def _repr_failure_py(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The finding instead of a traceback, in the setup too, for which pytest calls no `repr_failure`."""
        expected = isinstance(excinfo.value, ClaimError | UserError | CannotDecide)
        return str(excinfo.value) if expected else super()._repr_failure_py(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Its place in a report."""
        return self.path, None, f"{self.arm}: {self.claim}"


@pytest.fixture(scope="session")
def audit_store(pytestconfig: pytest.Config) -> str:
    """The store of the runs of this process, for `audit.open_store`."""
    return store_of(pytestconfig)


@pytest.fixture
def audit_run(audit_store: str) -> Callable[..., RunResult]:
    """`audit.run` with the session's store: of a suite, the path of one, or a packaged suite's name."""
    from audit.api.running import run

    return lambda suite, **options: run(suite, audit_store, **options)


@pytest.fixture
def audit_endpoint(audit_run: Callable[..., RunResult], tmp_path: Path) -> Callable[..., RunResult]:
    """Run the default checks against a server that speculates, beside one with the same model that does not."""

    def audit(url: str, plain: str, prompts: Sequence[str], **changes: Any) -> RunResult:
        from audit.suite.allowances import Allowances
        from audit.text.documents import yaml_text

        drafting = {"proposer": {"kind": "served", "gamma": changes.pop("gamma", 4)}, "engine": {"url": url}}
        document = {
            "version": 1,
            "name": "endpoint",
            "backend": "openai",
            "models": {"target": changes.pop("model", "served:model")},
            "engine": {"url": plain, **changes.pop("engine", {})},
            "workloads": [{"name": "prompts", "prompts": "prompts.jsonl"}],
            "arms": [
                {"name": "greedy", "verifier": "greedy", "sampling": {"temperature": 0}, **drafting},
                {"name": "sampled", "verifier": "chain", "sampling": {"temperature": 1}, **drafting},
            ],
            **changes,
        }
        rows = (json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
        (tmp_path / "prompts.jsonl").write_text("".join(rows), "utf-8")
        path = tmp_path / "endpoint.yaml"
        path.write_text(yaml_text(document), "utf-8")
        # whoever writes an address into a test consents to it
        hosts = tuple(str(urlsplit(address).hostname) for address in (url, plain))
        return audit_run(path, allowed=Allowances(hosts=hosts))

    return audit
