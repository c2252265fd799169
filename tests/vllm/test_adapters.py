"""The packaged suites of adapters, repaired and stock."""

import pytest

from .packaged import assert_as_the_page_says

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("suite", ["adapters", "adapters-stock"])
def test_every_cell_is_as_the_page_says(tmp_path, suite):
    assert_as_the_page_says(tmp_path, suite)
