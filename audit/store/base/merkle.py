"""Merkle tree hash of RFC 6962, section 2.1.

One hash commits to an ordered list: leaves are hashed with the prefix 0x00,
inner nodes with 0x01, so that a leaf cannot pass for a node.
"""

import hashlib
from collections.abc import Sequence


def leaf_hash(data: bytes) -> bytes:
    """Hash of one entry."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Root over entries in their order."""
    return root_over([leaf_hash(leaf) for leaf in leaves])


def root_over(hashes: list[bytes]) -> bytes:
    """Root over the hashes of entries; the empty list has SHA-256 of nothing."""
    return levels(hashes)[-1][0] if hashes else hashlib.sha256(b"").digest()


def levels(hashes: list[bytes]) -> list[list[bytes]]:
    """The tree over the hashes of entries, from these to the root; an odd last node is carried up unpaired.

    That is the same shape as splitting at the largest power of two below n, which is how the RFC defines the tree.
    """
    made = [hashes]
    while len(made[-1]) > 1:
        level = made[-1]
        paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        made.append(paired + level[len(level) - len(level) % 2 :])
    return made
