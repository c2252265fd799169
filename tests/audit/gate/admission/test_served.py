"""The webhook over TLS, as its own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.gate.admission.forgeries import FORGERIES, OURS
from tests.audit.gate.admission.served import Client, many, serving
from tests.audit.gate.admission.stores import NAMED, decide, made_store, pod, review, sign

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


def test_only_what_a_trusted_key_signed_is_admitted_over_tls(tmp_path: Path):
    url, key = made_store(tmp_path), tmp_path / "gate.pub"
    key.write_text(OURS.public.text)
    wrong = []
    with serving(url, tmp_path, "--trusted-key", str(key)) as port:
        assert not allowed(port, tmp_path)
        for name, forgery in FORGERIES.items():
            sign(url, OURS)
            assert allowed(port, tmp_path), name
            forgery.act(url)
            with Client(port, tmp_path) as client:
                answer = client.post(review(pod(forgery.pod or NAMED)))[1]["response"]
            if forgery.undo is not None:
                forgery.undo(url)
            if answer["allowed"] or forgery.words not in answer["status"]["message"]:
                wrong.append(f"{name}: {answer}")
        assert wrong == []
        sign(url, OURS)
        with Client(port, tmp_path) as client:
            assert many(client, 1000).wrong == ()


def allowed(port: int, folder: Path) -> bool:
    with Client(port, folder) as client:
        status, document = client.post(review(pod(NAMED)))
    assert status == 200
    return document["response"]["allowed"]
