"""No false faults and no false blocks: clean endpoints of random settings, their suites without a `checks:` key.

`--honest N` sets the number of runs, of two arms each; every fifth is large enough for the gate. `python -m pytest
tests/http/test_honest_endpoints.py -m slow -s --honest 500` tries 1,000 arms and 100 bundles; `--honest-from` goes on
where an earlier one stopped. A third of the time goes to the disk: `--basetemp /dev/shm/honest`.
"""

import json
import random

import pytest
from scipy.stats import binom

from engine.backends.engine_spec import ModelSource
from engine.backends.local_target import LocalTarget
from engine.backends.native.backend import open_models
from engine.core.types import Protocol
from tests.audit.invoke import invoke
from tests.engine.backends.transformers import family
from tests.http.server import serving

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("http")]
RATE = 0.01
"""Most false alarms of an arm, by all of its checks."""
LARGE = 5
"""One run in so many is large enough for the gate."""
SAMPLED = (
    {"temperature": 1},
    {"temperature": 0.7},
    {"temperature": 1, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 1, "presence_penalty": 0.5},
)
WORDS = (
    "the quick brown fox",
    "the lazy dog",
    '{"name"',
    "over the fox",
    "jumps over",
    '"age": 12',
    "the the",
    "a dog",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return family.make(tmp_path_factory.mktemp("family"))


def random_suite(chance, home, plain, speculating, large):
    """A greedy and a sampled arm; README's shape, and what a server may show more or less of."""
    source = str(home / "target") if chance.random() < 0.5 else "served:bundled"
    engine = {
        "url": plain,
        "model": "bundled",
        "server": "vllm",
        "logprobs": chance.choice([1, 5, 8] if large else [0, 1, 5, 8]),
    }
    engine["api"] = "completions"
    if chance.random() < 0.3:
        engine["stream"] = "streamed"
    if chance.random() < 0.2 and not large:
        engine["seeds"] = "none"
    arm = {"proposer": {"kind": "served", "gamma": 4}, "engine": {"url": speculating}}
    return {
        "version": 1,
        "name": "honest",
        "seed": chance.randrange(10**6),
        "backend": "openai",
        "batch_size": chance.choice([1, 4, 8]),
        # texts alone are certified alike within 0.05, which takes as many answers as `audit plan` says
        "samples": (8 if source != "served:bundled" else 24) if large else chance.choice([1, 2, 3]),
        "models": {"target": source},
        "engine": engine,
        "workloads": [{"name": "words", "prompts": "words.jsonl"}],
        "sampling": {"max_new_tokens": chance.choice([16, 24])},
        "arms": [
            {**arm, "name": "greedy", "verifier": "greedy", "sampling": {"temperature": 0}},
            {**arm, "name": "sampled", "verifier": "chain", "sampling": chance.choice(SAMPLED)},
        ],
    }


def judged(folder, home, backend, decode, seed):
    """The faults of a clean run, and the gate's answer about the bundle of a large one."""
    chance, large = random.Random(seed), seed % LARGE == 0
    # the gate asks for what a server may hide
    shows = {"ids": large or chance.random() < 0.8, "scores": large or chance.random() < 0.9}
    shows["metrics"] = large or chance.random() < 0.8
    rule = chance.choice([Protocol.CHAIN, Protocol.BLOCK])
    texts = [" ".join(chance.sample(WORDS, 3)) for _ in range(32 if large else chance.randint(8, 16))]
    rows = [{"id": f"w{at}", "prompt": text} for at, text in enumerate(dict.fromkeys(texts))]
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = ("--store", str(folder / "audit.db"))
    with serving(backend, decode, **shows) as plain, serving(backend, decode, 4, rule, **shows) as speculating:
        document = random_suite(chance, home, plain.url, speculating.url, large)
        (folder / "suite.yaml").write_text(json.dumps(document))
        results = folder / "results.json"
        done = invoke("run", str(folder / "suite.yaml"), "--results", str(results), *place)
    assert done.exit_code in (0, 1, 3), done.output
    checks = json.loads(results.read_text("utf-8"))["checks"]
    faults = [f"{c['arm']} {c['check']}: {c['summary']}" for c in checks if c["verdict"] == "fault"]
    if not large:
        return faults, None
    bundle = folder / "run.zip"
    assert invoke("export", "latest", "--out", str(bundle), *place).exit_code == 0
    gate = invoke("gate", str(bundle), "--policy", "endpoint", "--no-subject")
    return faults, gate


def test_clean_endpoints_raise_no_alarm_beyond_the_rate_and_the_gate_blocks_none(home, tmp_path, pytestconfig):
    backend = open_models({name: ModelSource(name, base=home) for name in ("target", "draft")})
    decode = LocalTarget(ModelSource("target", base=home)).tokens.decode
    seeds = range(pytestconfig.getoption("--honest-from"), pytestconfig.getoption("--honest"))
    alarms, blocked, runs = [], [], len(seeds)
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        faults, gate = judged(folder, home, backend, decode, seed)
        alarms += faults
        blocked += [(seed, gate.stdout)] if gate is not None and gate.exit_code == 1 and not faults else []
        print(seed, gate and gate.exit_code, faults, flush=True)
    bundles = sum(seed % LARGE == 0 for seed in seeds)
    print(f"{2 * runs} arms, {len(alarms)} alarms; {bundles} bundles, {len(blocked)} blocked")
    assert blocked == []
    assert len(alarms) <= binom.ppf(0.999, 2 * runs, RATE), alarms
