from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from audit.evidence.environment import (
    CODE,
    Cpu,
    code_version,
    environment,
    fingerprint,
    numeric_libraries,
    package_versions,
    parse_cpuinfo,
    read_cpu,
)

CPUINFO = """processor\t: 0
model name\t: Test CPU 9000
flags\t\t: fpu avx2 fma avx512f amx_bf16 avx

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""

TORCH_CONFIG = """PyTorch built with:
  - GCC 13.3
  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 1 for Intel(R) 64 architecture applications
  - Intel(R) MKL-DNN v3.12.0 (Git Hash 80afa71)
  - LAPACK is enabled (usually provided by MKL)
  - Build settings: BLAS_INFO=mkl, USE_MKLDNN=1
"""


def test_equal_facts_have_equal_digests_in_any_order():
    one = fingerprint({"a": "1", "b": "2"}, {"cpu": "x"}, {})
    assert one.sha256 == fingerprint({"b": "2", "a": "1"}, {"cpu": "x"}, {}).sha256
    assert len(one.sha256) == 64


@pytest.mark.parametrize(
    "changed", [({"a": "2"}, {}, {}), ({"a": "1"}, {"c": 1}, {}), ({"a": "1"}, {}, {"dirty": True})]
)
def test_any_change_changes_the_digest(changed):
    assert fingerprint(*changed).sha256 != fingerprint({"a": "1"}, {}, {}).sha256


def test_the_digest_is_of_a_written_format():
    """A changed value means that stored digests no longer compare: raise FORMAT with it."""
    digest = fingerprint({"torch": "2"}, {"cpu": "x"}, {"version": "0"}).sha256
    assert digest == "976f7c168a424ee31ed5f935b65c6e2584aaf48718a3ef21d25165c7db69fcf7"


def test_this_process_has_a_stable_fingerprint():
    first, second = environment(), environment()
    assert first == second
    assert first.packages["torch"]
    assert {"python", "system", "cpu", "cpu_flags", "torch_threads", "libraries", "gpus"} <= set(first.hardware)


def test_absent_packages_are_left_out():
    assert package_versions(("numpy", "no-such-package-here")).keys() == {"numpy"}


def test_the_first_processor_and_its_deciding_flags():
    assert parse_cpuinfo(CPUINFO) == Cpu("Test CPU 9000", ("avx2", "fma", "avx512f", "amx_bf16"))
    arm = "processor : 0\nFeatures : fp asimd sve\n"
    assert parse_cpuinfo(arm).flags == ("asimd", "sve")


def test_without_cpuinfo_python_is_asked(tmp_path):
    assert read_cpu(tmp_path / "none").flags == ()
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    assert read_cpu(tmp_path / "cpuinfo").model == "Test CPU 9000"


def test_numeric_libraries_are_short():
    assert numeric_libraries(TORCH_CONFIG) == (
        "Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 1",
        "Intel(R) MKL-DNN v3.12.0",
    )


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A repository with one tracked file where the code would be."""
    file = tmp_path / "repo" / "audit" / "evidence.py"
    file.parent.mkdir(parents=True)
    file.write_text("1\n")
    git(tmp_path / "repo", "init", "-q")
    git(tmp_path / "repo", "add", ".")
    git(tmp_path / "repo", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "first")
    return file


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_checkout_has_a_commit_and_is_clean_or_dirty(checkout):
    clean = code_version(checkout)
    assert clean["commit"] == git(checkout.parent, "rev-parse", "HEAD")
    assert clean["dirty"] is False
    (checkout.parents[1] / "notes.txt").write_text("not code")
    assert code_version(checkout)["dirty"] is False
    (checkout.parent / "new.py").write_text("2\n")
    assert code_version(checkout)["dirty"] is True
    (checkout.parent / "new.py").unlink()
    checkout.write_text("2\n")
    assert code_version(checkout)["dirty"] is True


def test_installed_code_has_no_commit(tmp_path, checkout):
    for folder in (tmp_path, checkout.parents[1] / "venv" / "audit"):
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "evidence.py").write_text("1\n")
        assert "commit" not in code_version(folder / "evidence.py")


def test_without_git_there_is_no_commit(checkout, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "commit" not in code_version(checkout)


def test_code_folders_are_the_packages():
    root = Path(__file__).parents[3]
    assert all((root / name).is_dir() for name in CODE)
