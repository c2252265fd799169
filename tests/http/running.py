"""`audit run` of a packaged suite at two addresses, its sizes reduced."""

from dataclasses import dataclass
from pathlib import Path

from audit.store import Store
from tests.audit.invoke import invoke

SUITES = Path(__file__).parents[2] / "suites" / "openai"
SHORT = {
    "limit: 16": "limit: 2",
    "tool_calls.jsonl}": "tool_calls.jsonl, limit: 4}",
    "structured.jsonl}": "structured.jsonl, limit: 8}",
    "samples: 8": "samples: 2",
    "served:my-model": "served:bundled",
    "max_new_tokens: 128": "max_new_tokens: 40",
}
FEW = "checks: {greedy_equality: {min_tokens: 50}, logprob_closeness: {min_tokens: 50}}\n"


@dataclass(frozen=True)
class Ran:
    code: int
    output: str
    errors: str
    store: Path

    def verdicts(self):
        with Store.open(str(self.store), create=False, read_only=True) as store:
            return {each.check: each for each in store.checks(store.resolve("latest"))}

    def every(self):
        """The results of all arms."""
        with Store.open(str(self.store), create=False, read_only=True) as store:
            return list(store.checks(store.resolve("latest")))

    def arm(self, name):
        with Store.open(str(self.store), create=False, read_only=True) as store:
            found = store.load_arm(store.resolve("latest"), name)
            return list(found.requests), list(found.failed), found.level


def shortened(name, baseline, candidate, folder, **changes):
    """The file of a packaged suite at two addresses, with some words replaced."""
    text = (SUITES / f"{name}.yaml").read_text(encoding="utf-8").replace("../prompts", "suites:prompts")
    addresses = {"http://127.0.0.1:8000/v1": baseline, "http://127.0.0.1:8001/v1": candidate}
    for old, new in {**SHORT, **addresses, **changes}.items():
        text = text.replace(old, new)
    path = folder / "suite.yaml"
    path.write_text(text + FEW, encoding="utf-8")
    return path


def run_suite(name, baseline, candidate, folder, more=(), **changes):
    """Options of `audit run` in `more`; what is written lies in `folder`."""
    path, store = shortened(name, baseline, candidate, folder, **changes), folder / "audit.db"
    done = invoke("run", str(path), "-v", "--store", str(store), "--results", str(folder / "results.json"), *more)
    return Ran(done.exit_code, done.stdout, done.stderr, store)
