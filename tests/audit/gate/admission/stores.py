"""A store with decisions, and AdmissionReviews of Kubernetes, for tests of the webhook."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from audit.gate.decision import Decision, GateOutcome
from audit.gate.evidence import read_facts
from audit.gate.judgement import GateJudgement, GateRequest, Signer
from audit.gate.policy import load_policy
from audit.gate.record import recorded
from audit.store import ArtifactRef, Store, StoredDecision
from audit.store.base.keys import PrivateKey
from tests.audit.gate.runs import DRAFT, TARGET, TOKENIZER, stored_run

ARTIFACTS = (
    ArtifactRef("target", "target", "big", None, TARGET),
    ArtifactRef("draft", "draft", "small", None, DRAFT),
    ArtifactRef("tokenizer", "tokenizer", "big", None, TOKENIZER),
)
NAMED = {"specaudit.dev/target": f"sha256:{TARGET}", "specaudit.dev/draft": f"sha256:{DRAFT}"}


def made_store(folder: Path) -> str:
    """The URL of a store with one finished run and no decision."""
    return stored_run(folder, artifacts=ARTIFACTS)


def decide(url: str, decision: str = "allow", age: timedelta = timedelta(0), reasons: tuple[str, ...] = ()) -> None:
    """Record a decision on the latest run under the packaged policy `standard`."""
    policy = load_policy("standard")
    with Store.open(url, create=False) as store:
        run = store.resolve("latest")
        at = datetime.now(UTC) - age
        store.add_decision(StoredDecision(run, policy.sha256, policy.document, decision, reasons, "ci", at))


def sign(
    url: str,
    key: PrivateKey,
    outcome: Decision = Decision.ALLOW,
    age: timedelta = timedelta(0),
    policy: str = "standard",
) -> None:
    """Record a decision on the latest run, with its signed statement."""
    request = GateRequest(
        load_policy(policy), (), "ci", datetime.now(UTC) - age, trust_verdicts=True, signer=Signer((key,))
    )
    with Store.open(url, create=False) as store:
        run = store.resolve("latest")
        facts = read_facts(store, run, trust_verdicts=True, broken=(), announce=lambda arm: None)
        recorded(GateJudgement(facts, GateOutcome(outcome, ()), request, url), store)


def pod(annotations: dict[str, Any] | None) -> dict[str, Any]:
    """A pod as the API server sends it."""
    metadata = {"name": "chat-0", "namespace": "models", "annotations": annotations}
    containers = [{"name": "server", "image": "registry.example.org/vllm:0.32"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def deployment(annotations: dict[str, Any] | None) -> dict[str, Any]:
    """A deployment whose pod template has the annotations."""
    template = {"metadata": pod(annotations)["metadata"], "spec": pod(None)["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "chat"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"}, "spec": spec}


def review(subject: dict[str, Any] | None, uid: str = "u-1", operation: str = "CREATE", **more: Any) -> bytes:
    """An AdmissionReview v1."""
    kind = (subject or {}).get("kind", "Pod")
    request = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": kind},
        "name": "chat-0",
        "namespace": "models",
        "operation": operation,
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": subject,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    document = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request | more}
    return json.dumps(document).encode()
