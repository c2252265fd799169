"""The chain of a draft's versions."""

import hashlib
from dataclasses import replace

import pytest

from engine.core.versions import after, first


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_digests_are_a_chain():
    loaded = first("u0")
    second = after(after(loaded, "u1"), "u2")
    assert second.number == 2
    assert second.digest == sha256(sha256(sha256("u0") + "u1") + "u2")
    assert loaded.sound
    assert second.sound


def test_equal_updates_of_different_drafts_are_different_versions():
    assert after(first("a"), "u").digest != after(first("b"), "u").digest


@pytest.mark.parametrize("change", [{"digest": "0" * 64}, {"parent": "0" * 64}, {"update": "x"}, {"number": 0}])
def test_a_changed_version_is_not_sound(change):
    assert not replace(after(first("a"), "u"), **change).sound


def test_only_the_first_has_no_parent():
    assert not replace(first("a"), number=1).sound
