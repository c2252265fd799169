"""`python -m tests.bench.certificate`: how often the certificate covers a known distance, and how wide it is.

Simulated arms, each with laws and a fault of its own and an exactly known
distance (tests/audit/stats/arms.py). No models, no times.
"""

from __future__ import annotations

from dataclasses import dataclass

import click
import numpy as np
from scipy.stats import beta

from tests.audit.stats.arms import BFLOAT16_NOISE, FLOAT32_NOISE, arm, audit_positions

LENIENT = (0.0, 0.001, 0.01, 0.05)
NOISES = {"float32": FLOAT32_NOISE, "bfloat16": BFLOAT16_NOISE}
SEED = 20_240_117
WIDTHS = ((1_000, 1_000), (10_000, 10_000), (100_000, 20_000), (1_000_000, 20_000), (1_000_000, 1_000_000))
"""Audited decisions and anchors, one per response."""


@dataclass(frozen=True)
class Line:
    """One kind of arm. `truth` and `eps` are medians."""

    name: str
    arms: int
    covered: int
    truth: float
    eps: float

    def __str__(self) -> str:
        """One row of the table."""
        low = float(beta.ppf(0.005, self.covered, self.arms - self.covered + 1)) if self.covered else 0.0
        return (
            f"{self.name:<54} {self.covered:>5}/{self.arms:<5} (at least {low:.4f})  {self.truth:<10.3g} {self.eps:.3g}"
        )


@click.command()
@click.option("--arms", type=click.IntRange(min=8), default=1000, show_default=True, help="Arms in all.")
@click.option("--positions", type=click.IntRange(min=10), default=5000, show_default=True, help="Audited and anchored.")
def main(arms: int, positions: int) -> None:
    """Print coverage at 99 % and width."""
    rng = np.random.default_rng(SEED)
    click.echo(f"{'arms':<54} {'covered':<28} {'distance':<10} bound")
    lines = [_line(e, kind, rng, arms // 8, positions) for e in LENIENT for kind in NOISES]
    for line in lines:
        click.echo(str(line))
    covered, count = sum(line.covered for line in lines), sum(line.arms for line in lines)
    click.echo(f"{'all':<54} {covered:>5}/{count}\n")
    click.echo("no fault, float32 noise: decisions, anchors, bound at 99 %")
    for decisions, anchors in WIDTHS:
        found = audit_positions(arm(rng, 0.0, FLOAT32_NOISE), rng, decisions, anchors).certificate
        click.echo(f"{decisions:>9} {anchors:>9}  {found.eps:.2e} = {found.eps_replay:.2e} + {found.eps_numeric:.2e}")


def _line(lenient: float, kind: str, rng: np.random.Generator, arms: int, positions: int) -> Line:
    audited = [audit_positions(arm(rng, lenient, NOISES[kind]), rng, positions, positions) for _ in range(arms)]
    return Line(
        f"{lenient:g} of refusals ignored, {kind} noise",
        arms,
        sum(each.certificate.eps >= each.truth for each in audited),
        float(np.median([each.truth for each in audited])),
        float(np.median([each.certificate.eps for each in audited])),
    )


if __name__ == "__main__":
    main()
