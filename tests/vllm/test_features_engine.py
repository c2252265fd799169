"""The packaged suites of the engine's features: preemption, priorities and long prompts in parts."""

import pytest

from .packaged import assert_as_the_page_says

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("suite", ["features-engine", "features-engine-greedy"])
def test_every_cell_is_as_the_page_says(tmp_path, suite):
    assert_as_the_page_says(tmp_path, suite)
