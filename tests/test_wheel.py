"""The wheel carries everything and works from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]
ROOT = Path(__file__).parents[1]
NEEDED = (
    "audit/__main__.py",
    "audit/cli.py",
    "audit/py.typed",
    "audit/pages/checks/law.md",
    "specaudit.py",
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


def built(source: Path, folder: Path, **options: object) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True, **options)
    (wheel,) = folder.glob("specaudit-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


def test_two_builds_have_the_same_bytes(wheel, tmp_path):
    """In another folder, in another time zone and language, under another umask, from files of another day."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    copy = tmp_path / "another place"
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
            os.utime(copy / name, (10**9, 10**9))
    settings = os.environ | {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    settings.pop("SOURCE_DATE_EPOCH", None)
    again = built(copy, tmp_path / "dist", env=settings, umask=0o077)
    assert again.read_bytes() == wheel.read_bytes()


def test_the_wheel_holds_code_weights_and_data_and_no_tests(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert names >= set(NEEDED)
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"audit", "engine", "schemas", "migrations", "specaudit.py", "suites"}
    assert not any(name.endswith((".pt", ".bin", ".pkl", ".pth")) for name in names)
    assert {name.rpartition(".")[2] for name in names if name.startswith("audit/pages/")} == {"md"}
    assert not any(name.startswith("audit/pages/design/") for name in names)


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
    assert audit("help", "two_sample").stdout.startswith("# two_sample")
    valid = audit("validate", "suites/quickstart.yaml")
    assert valid.returncode == 0, valid.stderr
    assert str(site) in valid.stdout


def test_the_distributions_name_is_a_command_and_a_module(wheel, tmp_path):
    """`uvx specaudit` and `python -m specaudit` need no other word."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (entries,) = tmp_path.glob("*.dist-info/entry_points.txt")
    parser = ConfigParser()
    parser.read_string(entries.read_text("utf-8"))
    assert parser["console_scripts"]["specaudit"] == parser["console_scripts"]["audit"] == "audit.cli:main"
    known = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "specaudit", "help", "law"]
    done = subprocess.run(command, env=known, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:6]) == (0, "# law\n"), done.stderr
