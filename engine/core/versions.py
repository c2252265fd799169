"""Versions of a draft that changes while serving: a chain of digests, so that evidence identifies its draft.

Each version's digest covers its parent's digest and the update that made it, so
equal digests mean equal drafts with equal histories.
"""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftVersion:
    """One state of a draft's weights. Digests are hex SHA-256.

    number: updates since the draft was loaded; the first version has 0.
    digest: SHA-256 of the text `parent` followed by the text `update`.
    parent: the digest of the version before; empty for the first.
    update: digest of the update's inputs and result; for the first version, of the weights alone.
    """

    number: int
    digest: str
    parent: str
    update: str

    @property
    def sound(self) -> bool:
        """The digest is that of parent and update, and only the first version has no parent."""
        return self.digest == _digest(self.parent, self.update) and (self.number == 0) == (not self.parent)


def first(update: str) -> DraftVersion:
    """The version that was loaded; `update` is the digest of its weights."""
    return DraftVersion(0, _digest("", update), "", update)


def after(parent: DraftVersion, update: str) -> DraftVersion:
    """The version that an update of `parent` gave."""
    return DraftVersion(parent.number + 1, _digest(parent.digest, update), parent.digest, update)


def _digest(parent: str, update: str) -> str:
    return hashlib.sha256((parent + update).encode()).hexdigest()
