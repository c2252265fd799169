"""An answer's text survives its column, whatever characters it has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.store.base.canonical import exact_text, storable, stored_text

HARD = st.text(st.sampled_from("a\x00\u2400\ufe00\ufe01\u2060"), max_size=12)


@pytest.mark.medium
@given(HARD | st.text(st.characters(exclude_categories=("Cs",))))
def test_a_text_is_read_back_as_it_was(text):
    column = stored_text(text)
    assert column == storable(column), "a database takes it"
    assert exact_text(column) == text
    assert stored_text(exact_text(column)) == column


def test_a_usual_text_is_its_own_column_and_a_nul_is_one_sign():
    assert stored_text("a fox\n{}") == "a fox\n{}"
    assert stored_text("a\x00b") == "a\u2400b"
