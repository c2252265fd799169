"""The webhook over TLS, as its own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.gate.admission.served import Client, many, serving
from tests.audit.gate.admission.stores import NAMED, decide, made_store, pod, review

pytestmark = pytest.mark.slow


def test_a_thousand_reviews_are_answered_rightly_and_a_store_that_is_gone_denies(tmp_path: Path):
    url = made_store(tmp_path)
    with serving(url, tmp_path) as port, Client(port, tmp_path) as client:
        assert client.post(review(pod(NAMED)))[1]["response"]["allowed"] is False
        decide(url)
        assert client.post(review(pod(NAMED)))[1]["response"]["allowed"] is True
        assert many(client, 1000).wrong == ()
        assert client.post(review(pod(NAMED)), "text/plain")[0] == 400
        assert allowed(port, tmp_path)
        decide(url, "block")
        assert not allowed(port, tmp_path)
        decide(url)
        assert allowed(port, tmp_path)
        for path in tmp_path.glob("audit.db*"):
            path.unlink()
        assert not allowed(port, tmp_path)
        with Client(port, tmp_path) as last:
            assert last.post(b" " * (9 * 2**20))[0] == 400


def allowed(port: int, folder: Path) -> bool:
    with Client(port, folder) as client:
        status, document = client.post(review(pod(NAMED)))
    assert status == 200
    return document["response"]["allowed"]
