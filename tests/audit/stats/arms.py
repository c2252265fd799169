"""Arms whose distance from the reference is known exactly, and the record that an audit of them would see.

The engine draws x from q, accepts it by the rejection rule on its own p, and with
some probability keeps a refused x. Its p is the reference with noise that
belongs to the context, so nothing averages out. So it emits exactly
(1 - e) p + e q in every context.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from audit.stats.certificate import Certificate, certify
from tests.audit.stats.chains import pick

FLOAT32_NOISE, BFLOAT16_NOISE = 1e-6, 0.036
"""Standard deviation of the noise on log-probabilities."""


@dataclass(frozen=True)
class Arm:
    """[V, V] after each token: reference, the engine's p and its q; `lenient` is how often a refusal is ignored."""

    reference: np.ndarray
    p: np.ndarray
    q: np.ndarray
    lenient: float

    @property
    def emitted(self):
        return (1 - self.lenient) * self.p + self.lenient * self.q

    @property
    def noise(self):
        """[V] distance of p from the reference."""
        return 0.5 * np.abs(self.p - self.reference).sum(axis=1)

    @property
    def distance(self):
        """[V] true total variation of the emitted law from the reference."""
        return 0.5 * np.abs(self.emitted - self.reference).sum(axis=1)


@dataclass(frozen=True)
class Audited:
    certificate: Certificate
    truth: float


def arm(rng, lenient, noise, vocabulary=12) -> Arm:
    reference = rng.dirichlet(np.full(vocabulary, 0.4), size=vocabulary)
    q = 0.5 * reference + 0.5 * rng.dirichlet(np.full(vocabulary, 0.4), size=vocabulary)
    p = softmax(np.log(reference + 1e-30) + noise * rng.standard_normal(reference.shape), axis=1)
    return Arm(reference, p, q, lenient)


def decide(made, rng, context):
    """Tokens [n], and whether replay of the recorded p, q and numbers gives another one [n]."""
    p, q = made.p[context], made.q[context]
    rows = np.arange(len(context))
    drafted = pick(rng, q)
    replayed = rng.random(len(context)) * q[rows, drafted] < p[rows, drafted]
    kept = replayed | (rng.random(len(context)) < made.lenient)
    recovered = pick(rng, np.maximum(p - q, 0.0) + 1e-300)
    return np.where(kept, drafted, recovered), kept != replayed


def audit_positions(made, rng, decisions, anchors, confidence=0.99) -> Audited:
    """One position per response; all contexts equally likely."""
    _, mismatch = decide(made, rng, rng.integers(len(made.p), size=decisions))
    anchored = made.noise[rng.integers(len(made.p), size=anchors)]
    found = certify(int(mismatch.sum()), decisions, anchored, confidence)
    return Audited(found, float(made.distance.mean()))
