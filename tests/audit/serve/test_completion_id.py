"""Names of completions, runs and records."""

from __future__ import annotations

from audit.serve.completion_id import new_ids, place_of, request_name, run_of

RUN = "01M8A444QGGPHQ1RNNJBP4KSNP"


def test_the_id_of_a_completion_names_its_run_and_its_records():
    give = new_ids(RUN)
    assert [give(True), give(False)] == [f"chatcmpl-{RUN}-1", f"cmpl-{RUN}-2"]
    assert run_of(f"chatcmpl-{RUN}-1") == run_of(f"cmpl-{RUN}-22#3") == RUN
    assert [run_of(name) for name in ("latest", RUN, f"chatcmpl-{RUN}", f"xcmpl-{RUN}-1")] == [None] * 4
    assert place_of(request_name(f"cmpl-{RUN}-2", 3)) == (f"cmpl-{RUN}-2", 3)
