"""The picture of what the checks cost is that of the numbers beside it, and the bench measures what it says."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.core.types import RecordLevel
from tests.bench.battery import main, together
from tests.bench.battery_evidence import LENGTH, Workload, write
from tests.bench.battery_picture import drawn

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_is_that_of_the_numbers_beside_it():
    again = "run: python -m tests.bench battery --picture docs/pictures"
    sizes, picture = json.loads((PICTURES / "battery.json").read_text()), (PICTURES / "battery.svg").read_text()
    assert picture == drawn(sizes), again
    root = ElementTree.fromstring(picture)
    assert len(root.findall(f"{SVG}circle")) == 2 * len(sizes)
    assert "(pictures/battery.svg)" in (PICTURES.parent / "statistics.md").read_text()


@pytest.mark.slow
def test_a_size_is_measured_with_and_without_helpers(tmp_path):
    workload = Workload(str(tmp_path), 64, RecordLevel.TOPK)
    write(workload, [0, 1])
    sizes = [together(workload, ("accounting", "law"), requests, 2, helpers) for requests, helpers in ((2, 0), (5, 1))]
    assert [(each.tokens, each.distinct, each.processes) for each in sizes] == [
        (2 * LENGTH, 2 * LENGTH, 1),
        (5 * LENGTH, 2 * LENGTH, 2),
    ]
    assert all(each.busy > 0 and each.peak_mib >= each.idle_mib > 0 for each in sizes)
    assert [set(each.verdicts) for each in sizes] == [{"accounting", "law"}] * 2
    assert drawn([asdict(each) for each in sizes]).count("<circle") == 4


@pytest.mark.slow
def test_the_command_prints_every_check_and_every_size(tmp_path):
    arguments = ["--tokens", "512,1024", "--vocabulary", "64", "--folder", str(tmp_path), "--processes", "1"]
    done = CliRunner().invoke(main, [*arguments, "--checks", "accounting,replay", "--picture", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert [line for line in done.output.splitlines() if line.startswith(("accounting ", "replay "))]
    assert "1,024" in done.output
    assert (tmp_path / "battery.svg").read_text() == drawn(json.loads((tmp_path / "battery.json").read_text()))
