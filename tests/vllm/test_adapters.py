"""The packaged suites of adapters, repaired and stock, and of the engine's features at temperature 0."""

import pytest

from .packaged import assert_as_the_page_says

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("suite", ["adapters", "adapters-stock", "features-engine-greedy"])
def test_every_cell_is_as_the_page_says(tmp_path, suite):
    assert_as_the_page_says(tmp_path, suite)
