import pytest

from audit.stats.equivalence import EquivalenceDecision, decide


@pytest.mark.parametrize(
    ("low", "high", "decision"),
    [
        (-0.1, 0.1, EquivalenceDecision.CERTIFIED),
        (0.11, 0.2, EquivalenceDecision.FAULT),
        (-0.3, -0.2, EquivalenceDecision.FAULT),
        (0.0, 0.2, EquivalenceDecision.INCONCLUSIVE),
    ],
)
def test_three_decisions(low, high, decision):
    assert decide(low, high, 0.1) is decision


def test_bounds_out_of_order_are_refused():
    with pytest.raises(ValueError, match="not in order"):
        decide(0.2, 0.1, 0.01)
    with pytest.raises(ValueError, match="not in order"):
        decide(float("nan"), 0.1, 0.01)
