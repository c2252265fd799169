"""The suite that fits a probed endpoint, as text: greedy answers, and draws where the server keeps its seeds.

The text is a start for its reader, who knows what the server is for: the prompts and lengths are the packaged ones.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML

from engine.backends.openai.probing import EndpointProbe
from engine.backends.openai.settings import Api

SEED: Final = 20261124
DOMAINS: Final[Mapping[Api, tuple[str, ...]]] = {
    Api.CHAT: ("chat", "json"),
    **dict.fromkeys((Api.COMPLETIONS, Api.GENERATE), ("code", "copy")),
}
"""Packaged prompts that a route takes."""
ONE: Final = """\
# Written by `audit probe`. One address serves the baselines and the candidate, so the suite runs twice:
#   audit run SUITE                       with speculation switched off at the server
#   audit run SUITE --baseline latest     at the same address, with speculation on
"""
TWO: Final = """\
# Written by `audit probe`. The first address serves the target alone, that of the arms speculates:
#   audit run SUITE
"""


@dataclass(frozen=True, slots=True)
class SuiteWishes:
    """The user's part of a probe.

    plain: the address of the target without speculation; None if it has none of its own. target: the target's files, a
    source of models; None if they are not here. api_key_env: the variable that holds the key.
    """

    plain: str | None = None
    target: str | None = None
    api_key_env: str | None = None


def suite_text(probe: EndpointProbe, wishes: SuiteWishes) -> str:
    """The suite as YAML."""
    written = io.StringIO()
    dump = YAML()
    dump.default_flow_style = False
    dump.dump(suite_document(probe, wishes), written)
    return (TWO if wishes.plain else ONE) + written.getvalue()


def suite_document(probe: EndpointProbe, wishes: SuiteWishes) -> dict[str, Any]:
    """The suite as a document; `probe.api` is not None."""
    return {
        "version": 1,
        "name": "probed",
        "description": f"Written by audit probe for a server of kind {probe.identity.kind}.",
        "backend": "openai",
        "seed": SEED,
        "batch_size": 8,
        "samples": 4,
        "models": {"target": wishes.target or f"served:{probe.model}"},
        "engine": _engine(probe, wishes),
        "workloads": [
            {"name": name, "prompts": f"suites:prompts/{name}.jsonl", "limit": 16}
            for name in (() if probe.api is None else DOMAINS[probe.api])
        ],
        "sampling": {"temperature": 0, "max_new_tokens": 64},
        "arms": [_greedy(probe, wishes), *([_sampled(probe, wishes)] if probe.holds("seed") else [])],
    }


def _engine(probe: EndpointProbe, wishes: SuiteWishes) -> dict[str, Any]:
    """The connection of the baselines and, but for the address, of the arms."""
    assert probe.api is not None
    engine: dict[str, Any] = {"url": wishes.plain or probe.url, "server": probe.identity.kind, "api": probe.api.value}
    if wishes.target:
        engine["model"] = probe.model
    if wishes.api_key_env:
        engine["api_key_env"] = wishes.api_key_env
    return engine | ({} if probe.level else {"logprobs": 0})


def _arm(name: str, rule: str, probe: EndpointProbe, wishes: SuiteWishes) -> dict[str, Any]:
    arm: dict[str, Any] = {"name": name, "proposer": {"kind": "served", "gamma": 4}, "verifier": rule}
    return arm | ({"engine": {"url": probe.url}} if wishes.plain else {})


def _greedy(probe: EndpointProbe, wishes: SuiteWishes) -> dict[str, Any]:
    checks = ["liveness", "configuration", "identity", "surface_parity", "greedy_equality", "reconciliation", "text"]
    scored = ["logprob_closeness"] if probe.level else []
    anchor = ["anchor", "accounting"] if wishes.target and probe.level else []
    return {**_arm("greedy", "greedy", probe, wishes), "checks": [*checks, *scored, *anchor]}


def _sampled(probe: EndpointProbe, wishes: SuiteWishes) -> dict[str, Any]:
    checks = ["liveness", "configuration", "identity", "surface_parity", "two_sample", "seed", "reconciliation"]
    sampling: Mapping[str, Any] = {"temperature": 1, "max_new_tokens": 64}
    return {**_arm("sampled", "chain", probe, wishes), "sampling": dict(sampling), "checks": checks}
