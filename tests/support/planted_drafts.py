"""Faults of drafts that the catalogue does not have; the suites of tests name them."""

from dataclasses import replace

import numpy as np

from engine.core import registry
from engine.core.types import Tree
from engine.faults.interface import SAMPLED_SCENARIO, Fault, Suits
from engine.models.interface import WrappedModel
from engine.proposers.adaptive_length import PayingProposer

UNSEEN = 0.25
"""The share of the vocabulary that a blind draft cannot propose."""


class _Blind(WrappedModel):
    """One shard of the vocabulary is missing in the draft's rows (NVIDIA/TensorRT-LLM#16440)."""

    def forward(self, cache, placement, want):
        forward = self.inner.forward(cache, placement, want)
        if forward.logits is None:
            return forward
        logits = forward.logits.clone()
        logits[..., round((1 - UNSEEN) * self.vocabulary) :] = -1e9
        return replace(forward, logits=logits)


class _OneCount(dict):
    """The counts of all rows in one place."""

    def __getitem__(self, row):
        return super().__getitem__(0)

    def __setitem__(self, row, counts):
        super().__setitem__(0, counts)

    def __delitem__(self, row):
        pass


def _shared_counts(proposer):
    assert isinstance(proposer, PayingProposer)
    proposer._counts = _OneCount()
    return proposer


def _one_too_many(_request, record):
    """Records a fifth drafted token of a draft of four."""
    made = record.proposal
    if len(made.tree) != 4 or made.q is None:
        return record
    q, uniforms = np.concatenate([made.q, made.q[-1:]]), np.append(made.uniforms, made.uniforms[-1])
    longer = replace(made, tree=Tree.chain((*made.tree.tokens, 0)), q=q, uniforms=uniforms)
    return replace(record, proposal=longer)


def _fault(part, change):
    return Fault(
        "none known: planted by a test",
        lambda parts: replace(parts, **{part: change}),
        Suits(shape="chain", temperature="both"),
        SAMPLED_SCENARIO,
        breaks="acceptance",
        seen_from="engine evidence",
        situation="kept_whole",
    )


BLIND = _fault("draft", _Blind)
LENGTHS = _fault("proposer", _shared_counts)
TOO_MANY = _fault("record", _one_too_many)
PLANTED = {"blind_draft": "BLIND", "one_draft_too_many": "TOO_MANY", "lengths_of_another_request": "LENGTHS"}


def plant(monkeypatch):
    """Register them for one test."""
    for name, attribute in PLANTED.items():
        monkeypatch.setitem(registry.FAULTS, name, f"{__name__}:{attribute}")
