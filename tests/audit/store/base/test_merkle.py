"""Vectors derived by hand: hashlib calls written out from the RFC's definition, one per tree."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.store.base.merkle import merkle_root

ENTRIES = [b"", b"\x00", b"one", b"two", b"three"]
L0, L1, L2, L3, L4 = (sha256(b"\x00" + entry).digest() for entry in ENTRIES)


def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


VECTORS = {
    0: bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    1: bytes.fromhex("6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
    2: node(L0, L1),
    3: node(node(L0, L1), L2),
    5: node(node(node(L0, L1), node(L2, L3)), L4),
}


@pytest.mark.parametrize("n", sorted(VECTORS))
def test_root_is_the_tree_of_the_rfc(n):
    assert merkle_root(ENTRIES[:n]) == VECTORS[n]


def recursive(leaves):
    """MTH of RFC 6962 section 2.1 as it is written there."""
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return node(recursive(leaves[:k]), recursive(leaves[k:]))


@pytest.mark.medium
@given(st.lists(st.binary(max_size=3), min_size=1, max_size=40))
def test_pairing_level_by_level_is_the_recursive_definition(leaves):
    assert merkle_root(leaves) == recursive(leaves)


def test_order_and_length_matter():
    roots = {merkle_root(ENTRIES[:n]) for n in range(6)} | {merkle_root(ENTRIES[::-1])}
    assert len(roots) == 7
