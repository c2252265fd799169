"""Data of format 1 stays readable: the files of `format_1/`, which later versions never write again."""

import json
import lzma

import pytest

from audit.store import Store
from engine.core.types import RecordLevel
from engine.record.columns import shape_fault
from engine.record.trace import decode
from tests.audit.invoke import invoke
from tests.audit.store.format_1 import FACTS, HOME, digest_of

KNOWN = json.loads(FACTS.read_text(encoding="ascii"))


@pytest.mark.parametrize("level", list(RecordLevel))
def test_a_trace_gives_the_values_that_were_written(level):
    trace = decode((HOME / f"{level}.trace").read_bytes())
    assert (trace.header.level, shape_fault(trace)) == (level, None)
    assert digest_of(trace) == KNOWN["traces"][level]


@pytest.fixture
def url(tmp_path):
    (tmp_path / "audit.db").write_bytes(lzma.decompress((HOME / "audit.db.xz").read_bytes()))
    assert invoke("db", "upgrade", "--store", str(tmp_path / "audit.db")).exit_code == 0
    return str(tmp_path / "audit.db")


@pytest.mark.medium
def test_a_store_is_whole_and_shows_its_run(url):
    checked = invoke("db", "check", "--store", url)
    assert (checked.exit_code, checked.stderr) == (0, "")
    with Store.open(url, create=False) as store:
        run = store.load_run(store.resolve("latest"))
        assert (run.ulid, run.record_root) == (KNOWN["run"], KNOWN["record_root"])
        assert sum(len(store.load_arm(run.ulid, arm.name).requests) for arm in run.arms) == 4
    assert KNOWN["run"] in invoke("show", "latest", "--store", url).stdout


@pytest.mark.medium
def test_a_bundle_is_verified_and_imported(tmp_path):
    url = str(tmp_path / "other.db")
    imported = invoke("import", str(HOME / "run.zip"), "--store", url)
    assert (imported.exit_code, imported.stderr) == (0, "")
    with Store.open(url, create=False) as store:
        assert store.load_run(KNOWN["run"]).record_root == KNOWN["record_root"]
        assert store.damage() == ()
