"""`audit minimize` from a stored run to a folder that gives the verdict again."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from audit.evidence.verdicts import Verdict
from audit.minimize.result import CUT_DOWN
from audit.minimize.start import begin
from audit.store import Store
from audit.suite.loader import load_suite
from audit.suite.spec import Suite
from engine.backends.native.scripted import TOOLS
from engine.core.registry import BACKENDS
from engine.core.types import SamplingParams
from tests.audit.invoke import invoke

HEAD = """\
version: 1
name: broken
backend: {backend}
seed: 3
samples: 2
batch_size: 8
models: {{target: "{target}", draft: "{draft}"}}
"""
SCRIPTED = HEAD.format(backend="scripted", target="scripted:1", draft="scripted:2")
BUNDLED = HEAD.format(backend="native", target="bundled:target", draft="bundled:draft")
ROWS = "workloads: [{name: w, prompts: rows.jsonl}]\nsampling: {temperature: 0.6, top_p: 0.95, max_new_tokens: 48}\n"
ARM = """\
  - name: {name}
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: {verifier}
    checks: [{checks}]
"""


def arm(name: str, checks: str, fault: str = "", more: str = "", verifier: str = "chain") -> str:
    lines = ARM.format(name=name, checks=checks, verifier=verifier) + (f"    fault: {fault}\n" if fault else "")
    return lines + (f"    {more}\n" if more else "")


@dataclass(frozen=True)
class Place:
    """A folder with a suite, its run in a store, and room for reproducers."""

    folder: Path

    @property
    def store(self) -> str:
        return str(self.folder / "audit.db")

    def ran(self, text: str) -> Place:
        (self.folder / "rows.jsonl").write_text(
            "".join(json.dumps({"id": f"r{i}", "prompt": f"once upon {i} there was"}) + "\n" for i in range(8))
        )
        (self.folder / "suite.yaml").write_text(text)
        self.run(self.folder / "suite.yaml")
        return self

    def run(self, suite: Path):
        return invoke("run", str(suite), "--store", self.store, "--results", str(self.folder / "results.json"))

    def minimized(self, *arguments: str, out: str = "out"):
        return invoke("minimize", self.runs()[-1], *arguments, "--store", self.store, "--out", str(self.folder / out))

    def reproducer(self, out: str = "out") -> Suite:
        return load_suite(self.folder / out / "suite.yaml")

    def verdicts(self) -> dict[str, Verdict]:
        with Store.open(self.store, create=False, read_only=True) as store:
            return {each.check: each.verdict for each in store.checks(store.resolve("latest"))}

    def runs(self) -> list[str]:
        """Newest first."""
        with Store.open(self.store, create=False, read_only=True) as store:
            return [each.ulid for each in store.list_runs(100)]


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> Place:
    """Three broken arms and a clean one, over scripted models."""
    arms = (
        arm("hot", "honoured", "temperature_ignored_on_drafted_rows", "beside: {temperature: 1, max_new_tokens: 8}"),
        arm("resampled", "replay, law", "resample_from_p"),
        arm("stale", "greedy_equality", "kv_not_rolled_back", "sampling: {temperature: 0}", "greedy"),
        arm("clean", "replay"),
    )
    return Place(tmp_path_factory.mktemp("broken")).ran(SCRIPTED + ROWS + "arms:\n" + "".join(arms))


def one_request(suite: Suite) -> SamplingParams:
    """The suite has one request of token ids; its sampling parameters."""
    (case,), (only,) = suite.cases, suite.arms
    assert len(case.samples) == 1
    assert case.tokens
    assert (suite.batch_size, only.beside) == (1, None)
    return only.sampling


@pytest.mark.slow
def test_honoured_keeps_the_temperature_and_little_else(broken):
    told = broken.minimized("hot/w/r0#1", out="honoured")
    assert told.exit_code == 0, told.output
    suite = broken.reproducer("honoured")
    sampling = one_request(suite)
    assert suite.cases[0].id == "w/r0"
    assert suite.cases[0].samples == (1,)
    assert len(suite.cases[0].tokens) <= 3
    # three wrong rows are what the check needs
    assert sampling.max_new_tokens <= 3
    assert suite.arms[0].proposer.gamma <= 2
    assert sampling == SamplingParams(temperature=sampling.temperature, max_new_tokens=sampling.max_new_tokens)
    assert "reproduces 2 of 2" in told.stdout
    assert "trial 1: hot/w/r0#1 alone: stays" in told.stderr


@pytest.mark.slow
def test_the_page_says_what_a_bug_report_needs(broken):
    broken.minimized("hot/w/r2#0", out="page")
    page = (broken.folder / "page" / "README.md").read_text()
    assert "**fault**, reproduces 2 of 2 times" in page
    assert "| requests | 16 | 1 |" in page
    assert "as if temperature were not set" in page
    assert "* `hot/w/r2#0` step 0: drafted row" in page
    assert "| numpy |" in page
    assert "`scripted:1` sha256:" in page
    assert CUT_DOWN not in page


@pytest.mark.parametrize(("request_of", "check"), [("resampled/w/r3#1", "replay"), ("stale/w/r1#0", "greedy_equality")])
@pytest.mark.slow
def test_the_reproducers_own_run_gives_the_verdict(broken, tmp_path, request_of, check):
    told = broken.minimized(request_of, "--check", check, out=check)
    assert told.exit_code == 0, told.output
    sampling = one_request(broken.reproducer(check))
    assert sampling.max_new_tokens <= 8
    assert sampling.top_p == 1.0
    own = Place(tmp_path)
    assert own.run(broken.folder / check / "suite.yaml").exit_code == 1
    assert own.verdicts() == {check: Verdict.FAULT}


@pytest.mark.slow
def test_the_same_search_gives_the_same_files(broken):
    for out in ("first", "second"):
        broken.minimized("resampled/w/r1#0", "--check", "replay", out=out)
    names = sorted(path.name for path in (broken.folder / "first").iterdir())
    assert names == ["README.md", "suite.yaml", "w.jsonl"]
    for name in names:
        assert (broken.folder / "first" / name).read_bytes() == (broken.folder / "second" / name).read_bytes()


@pytest.mark.medium
def test_without_a_request_the_fault_names_it(broken):
    told = broken.minimized("--check", "greedy_equality", "--trials", "2", out="unnamed")
    assert told.exit_code == 0
    assert told.stderr.startswith("greedy_equality of arm stale, from stale/w/r")
    assert "further reductions may be possible" in told.stdout


@pytest.mark.medium
def test_contradictions_that_name_a_request_are_chosen_before_statistics(broken, monkeypatch):
    with Store.open(broken.store, create=False, read_only=True) as store:
        run = store.load_run(broken.runs()[-1])
        replay = next(each for each in store.checks(run.ulid) if each.check == "replay")
        by_chance = [replace(replay, check="law", p_value=1e-6), replace(replay, check="bitwise", findings=())]
        monkeypatch.setattr(Store, "checks", lambda *_: [*by_chance, replay])
        start = begin(store, run, load_suite(broken.folder / "suite.yaml"), None, None)
    assert (start.fault.check, start.by_chance) == ("replay", False)


@pytest.mark.medium
def test_a_limit_ends_the_search_with_what_is_found_by_then(broken):
    told = broken.minimized("hot/w/r0#0", "--trials", "4", out="limited")
    assert told.exit_code == 0
    assert told.stderr.count("trial ") == 4
    assert "further reductions may be possible" in (broken.folder / "limited" / "README.md").read_text()
    assert broken.reproducer("limited").arms[0].sampling.max_new_tokens < 48


@pytest.mark.slow
def test_nothing_is_stored_unless_it_is_asked_for(broken):
    before = broken.runs()
    broken.minimized("hot/w/r1#0", "--trials", "2", out="not-kept")
    assert broken.runs() == before
    kept = broken.minimized("hot/w/r1#0", "--trials", "2", "--keep", out="kept")
    assert kept.exit_code == 0
    assert broken.runs()[1:] == before
    assert broken.verdicts() == {"honoured": Verdict.FAULT}


@pytest.mark.slow
def test_a_statistical_check_keeps_as_many_requests_as_it_needs(tmp_path):
    text = (SCRIPTED + ROWS).replace("samples: 2", "samples: 6").replace("48", "32")
    place = Place(tmp_path).ran(
        text + "arms:\n" + arm("hot", "law", "sqrt_acceptance", "sampling: {temperature: 1, top_p: 1}")
    )
    assert place.verdicts() == {"law": Verdict.FAULT}
    told = place.minimized("w/r0#0", "--trials", "20")
    assert told.exit_code == 0, told.output
    suite = place.reproducer()
    kept = sum(len(case.samples) for case in suite.cases)
    assert 1 < kept < 48
    # fresh random numbers: of the trial that was kept
    assert 3 < suite.seed < 3 + 20
    assert CUT_DOWN in told.stdout
    assert CUT_DOWN in (tmp_path / "out" / "README.md").read_text()
    assert place.run(tmp_path / "out" / "suite.yaml").exit_code == 1


@pytest.fixture
def dying(monkeypatch):
    """The scripted backend dies of some requests."""
    monkeypatch.setitem(BACKENDS, "scripted", "tests.audit.minimize.dying:DYING")


DIES = "sampling: {temperature: 0.8, top_k: 6, top_p: 0.9, repetition_penalty: 1.1}"


@pytest.mark.slow
def test_of_an_engine_that_dies_exactly_the_deadly_parameter_and_letter_stay(tmp_path, dying):
    place = Place(tmp_path).ran(SCRIPTED + ROWS + "arms:\n" + arm("frail", "liveness", more=DIES))
    told = place.minimized()
    assert told.exit_code == 0, told.output
    sampling = one_request(place.reproducer())
    assert sampling == SamplingParams(top_k=sampling.top_k, max_new_tokens=1)
    assert sampling.top_k
    assert place.reproducer().cases[0].tokens == (4,)
    assert "engine_died: device-side assert" in told.stdout
    assert place.run(tmp_path / "out" / "suite.yaml").exit_code == 1


@pytest.mark.slow
def test_a_fresh_engine_for_every_trial_keeps_what_an_engine_remembers(tmp_path, monkeypatch):
    monkeypatch.setitem(BACKENDS, "scripted", "tests.audit.minimize.dying:STICKY")
    place = Place(tmp_path).ran(SCRIPTED + ROWS + "arms:\n" + arm("frail", "liveness", more=DIES))
    shared = place.minimized()
    assert (shared.exit_code, "reproduces 0 of 2 times" in shared.stdout) == (3, True)
    assert "--fresh starts it anew" in shared.stderr
    (tmp_path / "out").rename(tmp_path / "shared")
    fresh = place.minimized("--fresh")
    assert fresh.exit_code == 0, fresh.output
    assert one_request(place.reproducer()).top_k
    assert place.reproducer().cases[0].tokens == (4,)


@pytest.mark.slow
def test_a_backend_that_takes_text_gets_shorter_text(tmp_path, dying, monkeypatch):
    monkeypatch.setitem(BACKENDS, "scripted", "tests.audit.minimize.dying:OF_TEXT")
    place = Place(tmp_path).ran(SCRIPTED + ROWS + "arms:\n" + arm("frail", "liveness", more=DIES))
    assert place.minimized().exit_code == 0
    assert place.reproducer().cases[0].prompt == "e"


@pytest.mark.slow
def test_messages_and_tools_are_left_out_too(tmp_path, dying, monkeypatch):
    monkeypatch.setitem(BACKENDS, "scripted", "tests.audit.minimize.dying:OF_TEXT")
    place = Place(tmp_path)
    chat = [{"role": "system", "content": "calm"}, {"role": "user", "content": "why are we here"}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"id": "a", "messages": chat, "tools": [{}, {}]}) + "\n")
    place.ran((SCRIPTED + ROWS).replace("rows.jsonl", "chat.jsonl") + "arms:\n" + arm("frail", "liveness", more=DIES))
    assert place.minimized().exit_code == 0
    (case,) = place.reproducer().cases
    assert case.messages == ({"role": "user", "content": "e"},)
    assert case.tools == ()


@pytest.mark.slow
def test_tools_stay_beside_tokens_where_the_verdict_is_about_calls(tmp_path):
    place, lost = Place(tmp_path), arm("lost", "tool_call_equality", "parser_fed_per_chunk", verifier="gumbel")
    rows = (
        {"id": f"r{i}", "messages": [{"role": "user", "content": f"once upon {i} there was"}], "tools": [*TOOLS, {}]}
        for i in range(4)
    )
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    place.ran((SCRIPTED + ROWS).replace("rows.jsonl", "chat.jsonl") + "arms:\n" + lost)
    told = place.minimized()
    assert told.exit_code == 0, told.output
    (case,) = place.reproducer().cases
    assert len(case.tokens) <= 3
    assert len(case.tools) == 1


@pytest.mark.slow
def test_a_verdict_that_does_not_come_again_is_said_in_one_line(tmp_path, dying, monkeypatch):
    place = Place(tmp_path).ran(SCRIPTED + ROWS + "arms:\n" + arm("frail", "liveness", more=DIES))
    monkeypatch.setitem(BACKENDS, "scripted", "engine.backends.native:SCRIPTED_KIND")
    told = place.minimized("frail/w/r2#1")
    assert told.exit_code == 3
    assert "does not reproduce" in told.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.medium
def test_a_clean_run_has_nothing_to_minimize(tmp_path):
    place = Place(tmp_path).ran(SCRIPTED + ROWS + "arms:\n" + arm("clean", "replay"))
    told = place.minimized("w/r0#0")
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.endswith("has no fault: there is nothing to minimize\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("w/r9#0",), "has no request 'w/r9#0'; write one as findings do, such as hot/w/r0#0"),
        (("clean/w/r0#0",), "arm clean has no such fault; there are: honoured of hot"),
        (("hot/w/r0#0", "--check", "replay"), "arm hot has no such fault; there are: replay of resampled"),
        (("--check", "accounting"), "accounting found no fault; there are: honoured of hot"),
        (("--check", "acounting"), "unknown check 'acounting'"),
    ],
)
def test_bad_input_is_one_line(broken, arguments, says):
    told = broken.minimized(*arguments, out="never")
    assert told.exit_code == 2
    (line,) = told.stderr.splitlines()
    assert says in line
    assert not (broken.folder / "never").exists()


def test_what_is_there_is_not_overwritten(broken):
    (broken.folder / "taken").mkdir()
    (broken.folder / "taken" / "mine").write_text("mine")
    told = broken.minimized("hot/w/r0#0", out="taken")
    assert (told.exit_code, len(told.stderr.splitlines())) == (2, 1)
    assert "already exists" in told.stderr
    told = broken.minimized("hot/w/r0#0", out="nowhere/out")
    assert "its parent folder does not exist" in told.stderr


@pytest.mark.medium
def test_a_suite_that_changed_since_is_refused(tmp_path):
    place = Place(tmp_path).ran(SCRIPTED + ROWS + "arms:\n" + arm("broken", "replay", "resample_from_p"))
    (tmp_path / "rows.jsonl").write_text('{"id": "r0", "prompt": "other"}\n')
    told = place.minimized()
    assert told.exit_code == 2
    assert "has changed since run" in told.stderr


@pytest.mark.slow
def test_a_bundled_model_whose_cache_is_not_rolled_back(tmp_path):
    code = '{name: code, prompts: "suites:prompts/code.jsonl", limit: 4}'
    chat = '{name: chat, prompts: "suites:prompts/chat.jsonl", limit: 4}'
    rows = f"workloads: [{code}, {chat}]\nsampling: {{max_new_tokens: 48}}\n"
    text = BUNDLED + rows + "arms:\n" + arm("stale", "greedy_equality", "kv_not_rolled_back", verifier="greedy")
    place = Place(tmp_path).ran(text)
    assert place.verdicts() == {"greedy_equality": Verdict.FAULT}
    told = place.minimized("stale/code/code-000#0", "--trials", "25")
    assert told.exit_code == 0, told.output
    suite = place.reproducer()
    assert one_request(suite).max_new_tokens <= 8
    assert len(suite.cases[0].tokens) <= 8
    assert "noise bound" in told.stdout
    assert "given by the suite" in told.stdout
