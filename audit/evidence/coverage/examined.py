"""Which of a candidate's tokens a check examines, for checks that compare two arms."""

import numpy as np

from audit.evidence.coverage.count import every_token, no_token
from audit.evidence.coverage.groups import Examined
from audit.evidence.coverage.view import Mask
from audit.evidence.pairing import Pair, compared
from audit.evidence.records import ArmKind, ArmRecord, Evidence, RequestRecord


def until_parted(evidence: Evidence) -> Examined:
    """Up to and including the first token that differs from the baseline's; later texts are not comparable."""
    others = {} if evidence.baseline is None else evidence.baseline.by_key()

    def mask(request: RequestRecord) -> Mask:
        other = others.get(request.key)
        count = 0 if other is None else compared(Pair(request, other))
        return np.arange(len(request.tokens)) < count

    return mask


def read_by(companion: ArmRecord | None) -> Examined:
    """Every token of the requests that a companion arm has too."""
    keys = frozenset() if companion is None else frozenset(companion.by_key())
    return lambda request: every_token(request) if request.key in keys else no_token(request)


def anchored(evidence: Evidence) -> Examined:
    """Every token of the requests that the anchor arm read."""
    return read_by(evidence.companions.get(ArmKind.ANCHOR))


def read_again(evidence: Evidence) -> Examined:
    """Every token of the requests that the reread arm read."""
    return read_by(evidence.companions.get(ArmKind.REREAD))


def redrafted(evidence: Evidence) -> Examined:
    """Every token of the requests that were drafted again."""
    return read_by(evidence.companions.get(ArmKind.REDRAFT))


def anchored_or_until_parted(evidence: Evidence) -> Examined:
    """The anchor's requests if there is an anchor arm, else the tokens before two arms part."""
    return anchored(evidence) if ArmKind.ANCHOR in evidence.companions else until_parted(evidence)
