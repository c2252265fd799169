"""Who gets a page: only a browser that opened the printed address, from this machine, to read."""

from __future__ import annotations

import pytest

from audit.view.access import HEADERS, new_access
from tests.audit.store.build import made_store
from tests.audit.view.asking import ACCESS, COOKIE, Asking

REFUSED = {
    "no cookie": ({"cookie": None}, 403),
    "another cookie": ({"cookie": f"{ACCESS.cookie}=guess"}, 403),
    "the token as a cookie": ({"cookie": f"{ACCESS.cookie}={ACCESS.token}"}, 403),
    "a cookie of another port": ({"cookie": COOKIE.replace("8765", "8766")}, 403),
    "a cookie that is none": ({"cookie": ';;=,"; \\777'}, 403),
    "a foreign name": ({"host": "evil.example:8765"}, 421),
    "another port": ({"host": "127.0.0.1:80"}, 421),
    "no host": ({"host": ""}, 421),
    "writing": ({"method": "POST"}, 405),
    "deleting": ({"method": "DELETE"}, 405),
}


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    return Asking(made_store(tmp_path_factory.mktemp("view")))


def test_what_is_refused(ask):
    answers = {name: ask.get("/", **given) for name, (given, _) in REFUSED.items()}
    assert {name: answer.status_code for name, answer in answers.items()} == {
        name: status for name, (_, status) in REFUSED.items()
    }
    assert [name for name, answer in answers.items() if "smoke" in answer.text] == []


@pytest.mark.medium
def test_every_answer_has_the_headers(ask):
    paths = ("/", "/static/style.css", "/nothing", "/?since=x", "/open?token=x", f"/open?token={ACCESS.token}")
    lacking = [
        (path, name) for path in paths for name, value in HEADERS.items() if ask.get(path).headers.get(name) != value
    ]
    assert lacking == []
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_the_token_is_exchanged_once_for_a_cookie_that_scripts_and_other_sites_lack(ask):
    ask = Asking(ask.store)
    answer = ask.get(f"/open?token={ACCESS.token}", cookie=None)
    assert answer.status_code == 200
    parts = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {COOKIE.lower(), "httponly", "samesite=strict", "path=/"} <= parts
    assert ACCESS.token not in answer.text
    assert ask.get("/", cookie=answer.headers["set-cookie"].partition(";")[0]).status_code == 200
    again = ask.get(f"/open?token={ACCESS.token}", cookie=None)
    assert (again.status_code, "set-cookie" in again.headers) == (403, False)
    assert "opened before" in again.text
    # whoever has the cookie may use the address as often as they like
    assert ask.get(f"/open?token={ACCESS.token}").status_code == 200
    for path in ("/open", "/open?token=", "/open?token=the-toke", "/open?token=%00%ff"):
        refused = ask.get(path, cookie=None)
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False), path


def test_secrets_are_long_and_new_every_time():
    first, second = new_access(1), new_access(1)
    assert len({first.token, first.session, second.token, second.session}) == 4
    assert min(map(len, (first.token, first.session))) >= 43
    assert first.address == f"http://127.0.0.1:1/open?token={first.token}"
