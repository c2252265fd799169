"""The wheel carries everything and works from any folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]
ROOT = Path(__file__).parents[1]
NEEDED = (
    "audit/cli.py",
    "audit/py.typed",
    "engine/py.typed",
    "schemas/py.typed",
    "engine/decode/loop.py",
    "engine/bundled/target/model.safetensors",
    "engine/bundled/draft/tokenizer.json",
    "engine/bundled/draft/card.json",
    "engine/bundled/medium/model.safetensors",
    "engine/bundled/medium_draft/card.json",
    "schemas/suite.json",
    "migrations/env.py",
    "migrations/versions/0001_tables.py",
    "suites/quickstart.yaml",
    "suites/prompts/tools.jsonl",
    "suites/policies/standard.yaml",
    "suites/known_bad/argmax_draft_soft_q.yaml",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("specaudit-*.whl")
    return built


def test_the_wheel_holds_code_weights_and_data_and_no_tests(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert names >= set(NEEDED)
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"audit", "engine", "schemas", "migrations", "suites"}
    assert not any(name.endswith((".pt", ".bin", ".pkl", ".pth")) for name in names)


def test_the_installed_wheel_works_from_another_folder(wheel, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # first on the path, so that the checkout that the tests run from is not what is imported
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from audit.cli import main; main()"

    def audit(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments], cwd=elsewhere, capture_output=True, text=True, check=False
        )

    upgraded = audit("db", "upgrade", "--store", "new.db")
    assert upgraded.returncode == 0, upgraded.stderr
    assert (elsewhere / "new.db").exists()
    valid = audit("validate", "suites/quickstart.yaml")
    assert valid.returncode == 0, valid.stderr
    assert str(site) in valid.stdout
