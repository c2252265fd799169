"""The reduction of rows, as another engine's process imports it."""

import subprocess
import sys

import pytest

FOREIGN_TO_OTHER_ENGINES = ("torch", "zstandard", "transformers", "sqlalchemy")


@pytest.mark.medium
def test_an_engine_without_torch_and_without_a_compressor_can_reduce_rows():
    code = (
        f"import engine.record.rows.reduction, sys; print([x for x in {FOREIGN_TO_OTHER_ENGINES} if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
