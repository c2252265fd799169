"""The first suite for a model: arms, prompts and sizes that fit its files, as commented YAML.

Sizes come from what the default checks need: about `SAMPLED` tokens at a temperature above 0 for the law and the
acceptance of a proposer that drafts seldom, and answers long enough for directed requests to have room.
"""

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit.errors import UserError
from audit.suite.prompts import Workload, read_prompts
from audit.text.documents import mistake
from audit.text.unsafe import visible
from engine.core.errors import EngineError
from engine.models.files.folder import ModelFolder
from engine.models.loading import SourceTokenizer, check_same_tokenizer, load_tokenizer, open_source

LENGTH: Final = 96
"""Tokens of an answer."""
SAMPLED: Final = 2500
"""Tokens of the sampled arm, if answers have two thirds of their length on average."""
PACKAGED: Final = {"chat": 16, "copy": 8}
"""Packaged prompts that a model with a chat template gets, by name with their number: some that an answer repeats."""
TEMPLATE: Final = """\
# {about}
# Written by audit init; docs/suite.md explains every key.
version: 1
name: {name}
models:
{models}
workloads:
{workloads}
batch_size: 4          # rows that decode together
samples: {samples}             # answers to each prompt at a temperature above 0; more of them narrow the bounds
sampling: {{max_new_tokens: {length}}}
arms:                  # each is one configuration to certify, judged by the default checks
  - name: greedy
    proposer: {proposer}
    verifier: greedy
  - name: sampled
    proposer: {proposer}
    verifier: chain
    sampling: {{temperature: 0.8}}   # write what you deploy: temperature, top_p, penalties
"""


@dataclass(frozen=True, slots=True)
class FirstSuite:
    """The user's part: sources of models, a file of prompts or None, and the new file of the suite."""

    target: str
    draft: str | None
    prompts: Path | None
    out: Path


@dataclass(frozen=True, slots=True)
class Prompts:
    """The entries of `workloads`, and the number of prompts in them."""

    workloads: tuple[dict[str, Any], ...]
    count: int


def suite_text(given: FirstSuite) -> str:
    """The suite as YAML; paths in it are relative to its folder.

    Raises:
        UserError: a source cannot be read, the draft does not fit, or the prompts need a template that is not there.
    """
    try:
        target = open_source(given.target).folder
        own = SourceTokenizer(given.target, load_tokenizer(target))
        if given.draft is not None:
            check_same_tokenizer(own, SourceTokenizer(given.draft, load_tokenizer(open_source(given.draft).folder)))
    except EngineError as error:
        raise UserError(str(error)) from error
    templated = bool(getattr(own.tokenizer, "chat_template", None))
    prompts = _prompts(given, templated=templated)
    sources = {"target": given.target, **({} if given.draft is None else {"draft": given.draft})}
    proposer = {"kind": "ngram"} if given.draft is None else {"kind": "draft_model", "model": "draft"}
    return TEMPLATE.format(
        about=visible(_about(given.target, target, templated=templated)),
        name=json.dumps(re.sub(r"[^A-Za-z0-9._-]", "-", given.out.stem).lstrip("._-")[:64] or "suite"),
        models="\n".join(f"  {role}: {json.dumps(_relative(source, given.out))}" for role, source in sources.items()),
        workloads="\n".join(f"  - {json.dumps(item)}" for item in prompts.workloads),
        samples=math.ceil(SAMPLED / (prompts.count * LENGTH * 2 / 3)),
        length=LENGTH,
        proposer=json.dumps({**proposer, "gamma": 4}),
    )


def _about(source: str, folder: ModelFolder, *, templated: bool) -> str:
    config = folder.config
    size = sum(file.size for file in folder.files if file.name.endswith(".safetensors"))
    return (
        f"{Path(source).name}: {config.get('model_type')}, {size / 1e6:.0f} MB of weights, {config.get('vocab_size')} "
        f"tokens of vocabulary, context of {config.get('max_position_embeddings')}, "
        f"{'with' if templated else 'without'} a chat template"
    )


def _prompts(given: FirstSuite, *, templated: bool) -> Prompts:
    if given.prompts is not None:
        cases = read_prompts(Workload("own", given.prompts, "own")).cases
        if not templated and any(case.messages for case in cases):
            problem = f"messages need a chat template, which {given.target} lacks; write rows with prompt"
            raise mistake(str(given.prompts), None, problem)
        return Prompts(({"name": "own", "prompts": _relative(str(given.prompts), given.out)},), len(cases))
    if not templated:
        raise UserError(
            f"{given.target} has no chat template, which the packaged prompts need; add --prompts FILE, with a row "
            '{"id": "1", "prompt": "Once upon a time"} per line'
        )
    entries = ({"name": name, "prompts": f"suites:prompts/{name}.jsonl", "limit": n} for name, n in PACKAGED.items())
    return Prompts(tuple(entries), sum(PACKAGED.values()))


def _relative(source: str, out: Path) -> str:
    """A path as the suite's folder sees it; names of bundled models and of the hub stay."""
    if source.startswith(("bundled:", "hf:")):
        return source
    path = os.path.relpath(Path(source).expanduser().resolve(), out.resolve().parent)
    return path if path.startswith("..") else f"./{path}"
