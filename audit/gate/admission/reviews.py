"""AdmissionReview v1 of Kubernetes: a request's pod annotations, and the answer's document. Knows no store.

Only the annotations of the pod count, or of the pod template of a workload: they are what a running pod carries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.text.documents import parse_json
from audit.text.unsafe import quoted

API: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
PREFIX: Final = "specaudit.dev/"
"""Prefix of the annotations that name what a pod runs."""
RUN: Final = "run"
"""Annotation that names the run itself, by its ULID."""
SERVES: Final = "serves"
"""Annotation with what the pod serves, as words of a policy's list with commas between."""
CONFIGURATION: Final = "configuration"
"""Annotation with the digest of the engine's effective configuration."""
TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "Rollout", "StatefulSet"),
        ("spec", "template"),
    ),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Where each kind of object has its pod."""
MOST_UID: Final = 256
"""Characters of a uid that an answer repeats."""


class MalformedReview(Exception):
    """The body is no AdmissionReview that can be answered; `uid` is set if it can be denied by name."""

    def __init__(self, message: str, uid: str | None = None) -> None:
        super().__init__(message)
        self.uid = uid


@dataclass(frozen=True, slots=True)
class Review:
    """One request.

    annotations: the pod's annotations without the prefix.
    stray: prefixed annotations of a workload that its pod template does not have.
    settled: why the request is allowed whatever the annotations, or None.
    """

    uid: str
    kind: str
    name: str
    annotations: Mapping[str, str]
    stray: tuple[str, ...] = ()
    settled: str | None = None


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """Whether a request is admitted, and why."""

    allowed: bool
    message: str
    code: int = 200


def denied(message: str, code: int = 403) -> AdmissionAnswer:
    """An answer that stops the request."""
    return AdmissionAnswer(False, message, code)


def response(uid: str, answer: AdmissionAnswer) -> dict[str, Any]:
    """The document that answers a review."""
    status = {"code": answer.code, "message": answer.message}
    return {"apiVersion": API, "kind": KIND, "response": {"uid": uid, "allowed": answer.allowed, "status": status}}


def read_review(body: bytes) -> Review:
    """The request in a body.

    Raises:
        MalformedReview: no JSON, no AdmissionReview of v1, or an object that cannot be understood.
    """
    try:
        document = parse_json(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MalformedReview(f"the body is no JSON document: {error}") from error
    if not isinstance(document, Mapping) or document.get("kind") != KIND or document.get("apiVersion") != API:
        raise MalformedReview(f"the body is no {KIND} of {API}")
    request = document.get("request")
    uid = request.get("uid") if isinstance(request, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(uid, str) or not 0 < len(uid) <= MOST_UID:
        raise MalformedReview("the review has no request with a uid")
    return _review(request, uid)


def _review(request: Mapping[str, Any], uid: str) -> Review:
    operation = request.get("operation")
    if operation == "DELETE":
        return Review(uid, "object", _text(request.get("name")), {}, settled="a deletion starts no pod")
    subject = request.get("object")
    # a tuple, because an operation need not be text
    if operation not in ("CREATE", "UPDATE") or not isinstance(subject, Mapping):
        raise MalformedReview("the request creates or updates no object", uid)
    kind = subject.get("kind")
    if not isinstance(kind, str) or kind not in TEMPLATES:
        raise MalformedReview(f"objects of kind {quoted(_text(kind))} have no pod that this webhook knows", uid)
    annotations = _annotations(_pod(subject, kind, uid), uid)
    outer = {} if kind == "Pod" else _annotations(subject, uid)
    metadata = _mapping(subject.get("metadata"), "metadata", uid)
    name = _text(metadata.get("name") or metadata.get("generateName") or request.get("name"))
    stray = tuple(key for key, value in outer.items() if annotations.get(key) != value)
    return Review(uid, kind, name, annotations, stray, _settled(request, subject, kind, uid))


def _settled(request: Mapping[str, Any], subject: Mapping[str, Any], kind: str, uid: str) -> str | None:
    """An update of a running pod that changes neither its spec nor its annotations starts nothing."""
    old = request.get("oldObject")
    if request.get("operation") != "UPDATE" or kind != "Pod" or not isinstance(old, Mapping):
        return None
    same = old.get("spec") == subject.get("spec") and _annotations(old, uid) == _annotations(subject, uid)
    return "the update changes neither the pod's spec nor its annotations" if same else None


def _pod(subject: Mapping[str, Any], kind: str, uid: str) -> Mapping[str, Any]:
    part: Any = subject
    for key in TEMPLATES[kind]:
        part = _mapping(part, kind, uid).get(key)
    if not isinstance(part, Mapping) or not isinstance(part.get("spec"), Mapping):
        raise MalformedReview(f"the {kind} has no pod with a spec", uid)
    return part


def _annotations(pod: Mapping[str, Any], uid: str) -> dict[str, str]:
    metadata = _mapping(pod.get("metadata"), "metadata", uid)
    annotations = _mapping(metadata.get("annotations"), "annotations", uid)
    ours = {key.removeprefix(PREFIX): value for key, value in annotations.items() if key.startswith(PREFIX)}
    for key, value in ours.items():
        if not isinstance(value, str):
            raise MalformedReview(f"the annotation {quoted(PREFIX + key)} is no text", uid)
    return ours


def _mapping(value: Any, name: str, uid: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise MalformedReview(f"{name} is no object", uid)
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "-"


def names(words: Sequence[str]) -> str:
    """Annotations by their full names, for a message."""
    return ", ".join(PREFIX + word for word in words)
