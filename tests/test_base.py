"""`pip install specaudit` without an extra: an environment of its own that has no torch, and decides as any other."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from audit.cli import COMMANDS
from audit.errors import ENGINE
from engine.backends.engine_spec import ModelSource
from engine.backends.local_target import LocalTarget
from engine.backends.native.backend import open_models
from engine.core.types import Protocol
from tests.audit.gate.attacks.honest import POLICY, SUITE, asked, ran, written
from tests.audit.invoke import invoke
from tests.engine.backends.transformers import family
from tests.http.server import serving

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]
ROOT = Path(__file__).parents[1]
MOST_MIB, MOST_PACKAGES, BUNDLES = 300, 60, 40
"""Of the size, the bundled models are 42 MiB, scipy and numpy 170."""
TOOLS = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}
"""What an empty environment has already."""


@dataclass(frozen=True)
class Base:
    """An environment in which the wheel was installed, without extras."""

    folder: Path

    def python(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [str(self.folder / "bin" / "python"), "-P", *arguments]
        # no path of the checkout, and no packages of the environment that the tests run in
        known = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return subprocess.run(command, env=known, capture_output=True, text=True, check=False, **options)

    def audit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "audit", *arguments, cwd=self.folder)

    def files(self) -> list[Path]:
        """Those of packages, without compiled ones and without what an empty environment has."""
        (site,) = self.folder.glob("lib/python3*/site-packages")
        listed = (path for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return [path for path in listed if path.relative_to(site).parts[0].split("-")[0] not in TOOLS]


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    folder = tmp_path_factory.mktemp("base")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True, capture_output=True)
    made = Base(folder / "env")
    (wheel,) = (folder / "dist").glob("specaudit-*.whl")
    done = made.python("-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    assert done.returncode == 0, done.stderr
    return made


def test_the_base_is_small_and_has_no_engine(base):
    listed = json.loads(base.python("-m", "pip", "list", "--format", "json").stdout)
    names = {part["name"].lower() for part in listed} - TOOLS
    size = sum(path.stat().st_size for path in base.files()) / 2**20
    print(f"{size:.0f} MiB, {len(names)} packages: {', '.join(sorted(names))}")
    assert not names & set(ENGINE)
    assert len(names) <= MOST_PACKAGES
    assert size <= MOST_MIB


def test_the_start_of_each_command(base):
    for name in COMMANDS:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = base.audit(name, "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"audit {name}: {spent:.2f} s of processor time")
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with a run of a scripted model in a store, and its bundle."""
    folder = tmp_path_factory.mktemp("kept")
    store = ran(folder, SUITE)
    done = invoke("export", "latest", "--out", str(folder / "run.zip"), "--store", str(store))
    assert done.exit_code == 0, done.output
    return folder


ABOUT_RECORDS = (
    *("list", "show latest", "query acceptance", "coverage latest", "diff latest latest", "report latest"),
    *("checklist latest", "controls latest", "disclose latest", "profile latest", "judge latest", "db check"),
)


@pytest.mark.parametrize("words", ABOUT_RECORDS)
def test_commands_about_records_need_no_engine(base, kept, words):
    done = base.audit(*words.split(), "--store", str(kept / "audit.db"))
    assert done.returncode == 0, done.stderr
    assert "specaudit[engine]" not in done.stderr


def test_bundles_are_verified_imported_and_exported_again(base, kept, tmp_path):
    store = ("--store", str(tmp_path / "other.db"))
    assert base.audit("verify", str(kept / "run.zip")).returncode == 0
    imported = base.audit("import", str(kept / "run.zip"), *store)
    assert imported.returncode == 0, imported.stderr
    (run,) = re.findall(r"run (\w{26}) imported", imported.stdout)
    assert base.audit("export", run, "--out", str(tmp_path / "again.zip"), *store).returncode == 0
    assert base.audit("verify", str(tmp_path / "again.zip"), "--judge").returncode == 0
    suite = written(tmp_path, "suite.yaml", SUITE)
    assert base.audit("validate", str(suite)).returncode == 0
    assert base.audit("plan", str(suite), *store).returncode in (0, 3)
    refused = base.audit("probe", "http://127.0.0.1:9")
    assert (refused.returncode, "is the server running?" in refused.stderr) == (2, True)


def test_an_endpoint_is_audited_without_the_engine(base, tmp_path):
    """Decoding is the server's; a suite that names no files of its target needs neither torch nor a tokenizer."""
    home = family.make(tmp_path / "family")
    backend = open_models({name: ModelSource(name, base=home) for name in ("target", "draft")})
    decode = LocalTarget(ModelSource("target", base=home)).tokens.decode
    store = ("--store", str(tmp_path / "audit.db"))
    rows = [{"id": f"w{at}", "prompt": f"the quick brown {word}"} for at, word in enumerate("fox dog cat owl".split())]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(backend, decode) as plain, serving(backend, decode, 4, Protocol.CHAIN) as speculating:
        arm = {"proposer": {"kind": "served", "gamma": 4}, "engine": {"url": speculating.url}}
        document = {
            **{"version": 1, "name": "light", "seed": 1, "backend": "openai", "batch_size": 4, "samples": 2},
            "models": {"target": "served:bundled"},
            "engine": {"url": plain.url, "model": "bundled", "server": "vllm", "logprobs": 5, "api": "completions"},
            "workloads": [{"name": "words", "prompts": "words.jsonl"}],
            "sampling": {"max_new_tokens": 16},
            "arms": [
                {**arm, "name": "greedy", "verifier": "greedy", "sampling": {"temperature": 0}},
                {**arm, "name": "sampled", "verifier": "chain", "sampling": {"temperature": 1}},
            ],
        }
        (tmp_path / "suite.yaml").write_text(json.dumps(document))
        results = tmp_path / "results.json"
        done = base.audit("run", str(tmp_path / "suite.yaml"), "--results", str(results), *store)
        assert done.returncode == 3, done.stderr  # too few prompts for a certificate, and nothing wrong
        parts = base.audit("run", str(tmp_path / "suite.yaml"), "--workers", "2", *store)
        assert parts.returncode == 3, parts.stderr
    verdicts = {(each["arm"], each["check"]): each["verdict"] for each in json.loads(results.read_text())["checks"]}
    assert "fault" not in verdicts.values()
    assert verdicts["greedy", "identity"] == verdicts["sampled", "surface_parity"] == "certified"
    run = json.loads(results.read_text())["run"]["ulid"]
    again = invoke("judge", run, *store)
    assert again.exit_code == 0, again.output


def test_the_python_interface_says_it_too(base):
    done = base.python("-c", "import audit; audit.run('quickstart', store='new.db')", cwd=base.folder)
    assert "UserError" in done.stderr.splitlines()[-1]
    assert "needs the package torch" in done.stderr.splitlines()[-1]
    assert "pip install 'specaudit[engine]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("words", ["run quickstart --store new.db", "init suite.yaml", "selftest --quick"])
def test_a_command_that_decodes_says_in_one_line_what_to_install(base, words):
    done = base.audit(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("audit:")]
    assert "pip install 'specaudit[engine]'" in line
    assert not (base.folder / "new.db").exists()
    assert "Traceback" not in done.stderr


def test_the_base_decides_as_a_whole_installation_does(base, tmp_path):
    """Forty bundles of other seeds, lengths and margins, under policies that ask for more or less."""
    answers, codes = [], set()
    for number in range(BUNDLES):
        folder = tmp_path / str(number)
        folder.mkdir()
        sampling = {"max_new_tokens": 8 + number % 12}
        store = ran(folder, SUITE | {"seed": number, "batch_size": 1 + number % 3, "sampling": sampling})
        bundle = str(folder / "run.zip")
        assert invoke("export", "latest", "--out", bundle, "--store", str(store)).exit_code == 0
        least = {"min_tokens": (10, 100, 240, 10_000)[number % 4], "max_age": "30d", "min_level": "L3"}
        ours = asked(folder, bundle, policy=POLICY | {"evidence": least})
        done = base.audit("gate", bundle, "--policy", str(folder / "policy.yaml"), "--format", "json")
        reasons = tuple(f"{each['requirement']}: {each['text']}" for each in json.loads(done.stdout)["reasons"])
        answers.append(((ours.code, ours.reasons), (done.returncode, reasons)))
        codes.add(ours.code)
    assert [pair for pair in answers if pair[0] != pair[1]] == []
    assert {0, 3} <= codes
