"""What the kinds of cases start from: one small honest run with its store, bundle, report and statement, made once."""

from __future__ import annotations

import copy
import json
import shutil
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import schemas
from engine.models.files.folder import bundled_folder
from tests.audit.gate.attacks.honest import POLICY
from tests.audit.gate.attacks.honest import SUITE as WHOLE
from tests.audit.invoke import invoke

REPORT: Final = {
    "results": {"arc": {"acc,none": 0.3, "loss": 1.0e-05}},
    "n-shot": {"arc": 0},
    "config": {"model": "hf", "seed": 1234},
    "git_hash": "abc",
}
PROMPTS: Final = (
    {"id": "a", "messages": [{"role": "user", "content": "Weather?"}], "domain": "tale"},
    {"id": "b", "prompt": "Once upon"},
    {"id": "c", "prompt": "Two", "tools": [{"name": "weather", "parameters": {"type": "object"}}]},
)

PROFILE: Final = {
    "version": 1,
    "description": "a deployment",
    "serves": {
        "greedy": True,
        "sampled": {"lowest": 0.5, "highest": 1.0, "settings": [{"temperature": 1, "top_k": 0}]},
    },
    "deployed": {"batch_size": 2, "drafted": 2, "context": 20, "device": "cpu", "numerics": "float64"},
}
GRAMMARS: Final[dict[str, Any]] = {
    "json": {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^[a-z]{1,3}$"},
            "d": {"type": "string", "minLength": 1, "maxLength": 9},
            "b": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1, "maxItems": 4},
            "c": {"anyOf": [{"const": 1}, {"enum": ["x", None]}, {"type": "number"}]},
        },
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    },
    "regex": "(ab|[c-e]{2,4})*f?[^g\\d]+",
    "choice": ["yes", "no", "maybe"],
    "grammar": 'start: "a" word+ | num\nword: /[a-z]{1,4}/ ","\nnum: /[0-9]+/\n',
    "structural_tag": {
        "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
        "triggers": ["<f>"],
    },
}


def suite(limit: int) -> dict[str, Any]:
    """The suite: two arms on scripted models."""
    document = copy.deepcopy(WHOLE)
    document["workloads"] = [{"name": "chat", "prompts": "suites:prompts/chat.jsonl", "limit": limit}]
    document["sampling"] = {"max_new_tokens": 8}
    return document


@dataclass(frozen=True)
class Fixtures:
    """Files in a folder that no case changes."""

    home: Path

    @cached_property
    def store(self) -> Path:
        """A store with one finished run."""
        path, source = self.home / "audit.db", self.home / "suite.yaml"
        source.write_text(json.dumps(suite(3)))
        done = invoke("run", str(source), "--store", str(path), "--results", str(self.home / "results.json"))
        assert done.exit_code in {0, 3}, done.output
        return path

    @cached_property
    def run(self) -> str:
        """The run's id."""
        done = invoke("list", "--store", str(self.store), "--json")
        return str(json.loads(done.stdout)[0]["ulid"])

    @cached_property
    def bundle(self) -> dict[str, bytes]:
        """The run as a bundle, by part."""
        path = self.home / "run.zip"
        done = invoke("export", "latest", "--out", str(path), "--store", str(self.store))
        assert done.exit_code == 0, done.output
        with zipfile.ZipFile(path) as archive:
            return {info.filename: archive.read(info) for info in archive.infolist()}

    @cached_property
    def signed(self) -> Path:
        """A folder with a checkpoint, a proof, a bundle with both, the key, and a policy that asks for reviews."""
        home = self.home / "signed"
        home.mkdir()
        store = str(shutil.copy(self.store, home / "audit.db"))
        key, note = str(home / "key"), str(home / "note")
        steps: tuple[tuple[str, ...], ...] = (
            ("keys", "init", key, "--name", "fuzz"),
            ("db", "checkpoint", "--key", key, "--out", note, "--store", store),
            ("db", "prove", "latest", "--out", str(home / "proof.json"), "--store", store),
            ("export", "latest", "--out", str(home / "run.zip"), "--store", store),
        )
        for step in steps:
            done = invoke(*step)
            assert done.exit_code == 0, done.output
        public = (home / "key.pub").read_text().strip()
        reviews = {"keys": {"trusted": {"log": public}}, "reviews": {"safety": {"keys": {"bob": public}}}}
        (home / "policy.yaml").write_text(json.dumps(POLICY | reviews))
        return home

    @cached_property
    def statement(self) -> dict[str, Any]:
        """The statement about an attached report; the report lies beside it."""
        path = self.home / "report.json"
        path.write_text(json.dumps(REPORT))
        arguments = ("--out", str(self.home / "out.json"), "--failed")
        done = invoke("attach", "latest", str(path), "--store", str(self.store), *arguments)
        assert done.exit_code == 0, done.output
        return dict(json.loads((self.home / "out.json.intoto.json").read_text()))

    @cached_property
    def model(self) -> Path:
        """The smallest bundled model, with fewer bytes than a case should copy."""
        return bundled_folder("bundled:draft")

    def warm(self) -> None:
        """Make the files: the first command imports much, which no case should pay for."""
        import transformers

        assert transformers.AutoTokenizer
        assert self.bundle
        assert self.statement
        assert self.signed

    @property
    def policy(self) -> dict[str, Any]:
        """A policy that the run meets but for its size."""
        return POLICY


def schema(name: str) -> Any:
    """A packaged schema."""
    return schemas.load(name)
