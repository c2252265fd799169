"""Figures that slow tests write for the page on promises: a file per topic, in the folder that `--figures` names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest


def keep(config: pytest.Config, topic: str, figures: Mapping[str, object]) -> None:
    """Write the figures of a topic, if the test run was asked for them."""
    folder = config.getoption("--figures")
    if folder:
        path = Path(folder) / f"{topic}.json"
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
