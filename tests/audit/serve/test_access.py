"""Who may ask, and with what: tokens, hosts, types and sizes of bodies."""

from __future__ import annotations

import contextlib
import socket

import httpx2
import pytest

from tests.audit.serve.server import TOKEN

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serve")]
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
BODY = {"prompt": "abc", "max_tokens": 4}


def post(server, **options):
    given = {"json": BODY, "headers": HEADERS, "timeout": 60}
    return httpx2.post(f"{server.url}/completions", **(given | options))


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ä"])
@pytest.mark.parametrize("path", ["completions", "chat/completions", "models"])
def test_routes_need_the_token(script, given, path):
    headers = {} if given is None else {"Authorization": given.encode()}
    method = "GET" if path == "models" else "POST"
    answer = httpx2.request(method, f"{script.url}/{path}", json=BODY, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert TOKEN not in answer.text


def test_counts_need_no_token_and_name_no_text(script):
    assert post(script).status_code == 200
    assert httpx2.get(f"{script.root}/health").status_code == 200
    assert httpx2.get(f"{script.root}/version").json()["version"].startswith("specaudit ")
    assert "vllm:prompt_tokens_total" in httpx2.get(f"{script.root}/metrics").text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
@pytest.mark.parametrize("path", ["/v1/completions", "/metrics", "/health"])
def test_a_foreign_name_that_resolves_to_loopback_reaches_nothing(script, host, path):
    method = "POST" if path.startswith("/v1") else "GET"
    answer = httpx2.request(method, script.root + path, json=BODY, headers=HEADERS | {"Host": host})
    assert answer.status_code in (400, 421)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_a_browser_may_send_for_another_site_is_refused(script, kind):
    answer = post(script, json=None, content=b'{"prompt": "abc"}', headers=HEADERS | {"Content-Type": kind})
    assert answer.status_code == 415


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"prompt": NaN}', b'{"a":' * 2000])
def test_a_body_that_is_no_object_is_refused(script, content):
    answer = post(script, json=None, content=content, headers=HEADERS | {"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_too_large_is_refused(script):
    answer = post(script, json={"prompt": "a" * (5 * 2**20)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(("token", "status"), [("", b"401"), (f"Authorization: Bearer {TOKEN}\r\n", b"413")])
def test_the_rest_of_a_refused_body_is_not_read(script, token, status):
    """Chunks of a few bytes cost most; ten minutes of them would follow."""
    host, port = script.root.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{token}"
    with socket.create_connection((host, int(port)), timeout=30) as stream:
        stream.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        first = b"%x\r\n%b\r\n" % (5 * 2**20, b" " * (5 * 2**20))
        with contextlib.suppress(OSError):
            stream.sendall(first)
            for _ in range(600):
                stream.sendall(b"1\r\n \r\n" * 1000)
        # a reader sees the refusal and then the end
        with contextlib.suppress(ConnectionResetError):
            answer = b""
            while piece := stream.recv(2**16):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b"connection: close" in answer.lower()
    assert post(script).status_code == 200


def test_other_routes_and_methods_have_refusals_in_the_same_shape(script):
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/health", 405),
    ):
        answer = httpx2.request(method, script.root + path, headers=HEADERS)
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_what_cannot_serve_is_one_line(tmp_path):
    from tests.audit.invoke import invoke

    short = tmp_path / "token"
    short.write_text("abc")
    short.chmod(0o600)
    open_to_all = tmp_path / "open"
    open_to_all.write_text("a-token-of-many-characters")
    open_to_all.chmod(0o640)
    cases = [
        (("scripted:1", "--host", "0.0.0.0"), "for this machine"),
        (("scripted:1", "--token-file", str(short)), "openssl rand"),
        (("scripted:1", "--token-file", str(short), "--no-token"), "exclude each other"),
        (("scripted:1", "--token-file", str(open_to_all)), "other users can read this token; run: chmod 600"),
        (("scripted:1", "--context", "99999999"), "name at most that"),
        (("scripted:1", "--arm", "greedy"), "is no suite"),
        (("quickstart",), "name one with --arm"),
        (("quickstart", "--arm", "nothing"), "no arm 'nothing'"),
        (("quickstart", "--arm", "greedy", "--draft", "bundled:draft"), "belong to a model"),
        (("transformers/greedy", "--arm", "draft-model"), "takes no requests while it runs"),
        (("bundled:nothing",), "bundled:nothing"),
        (("scripted:1", "--proposer", "nothing"), "nothing"),
    ]
    for arguments, line in cases:
        result = invoke("serve", *arguments, "--port", "0", "--store", str(tmp_path / "s.db"))
        assert result.exit_code == 2, (arguments, result.stderr)
        assert line in " ".join(result.stderr.split()), arguments
        assert result.stderr.count("\n") == 1
