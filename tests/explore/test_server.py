"""The explorer: responses, refused requests, and bad requests."""

import base64
import contextlib
import http.client
import json
import socket
import struct
import threading
import time
from urllib.parse import quote

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.products.explore.server import Explorer
from vaescope.products.explore.session import Session

G = torch.Generator().manual_seed(0)
W = torch.linalg.qr(torch.randn(16, 2, generator=G))[0]
X = torch.sigmoid(torch.randn(60, 2, generator=G) @ W.T)


def model(**change):
    """One latent in use, one that is not; images of 4 x 4."""
    known = {
        "encode": lambda x: (
            torch.stack([4 * (x.flatten(1) @ W[:, 0]), 0 * x.flatten(1)[:, 0]], 1),
            torch.tensor([0.01, 1.0]).expand(len(x), 2),
        ),
        "decode": lambda z: torch.sigmoid(z @ W.T.to(z)),
        "latent_dim": 2,
        "image_shape": (1, 4, 4),
    }
    return vs.adapters.from_callables(**known | change)


@pytest.fixture(scope="module")
def server():
    session = Session.of([model(), model(image_shape=(1, 4, 4))], X, name="</script><b>x</b>")
    with Explorer(session) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def request(server, method, path, body=None, **headers):
    return request_of_any_path(server, method, f"/{server.token}{path}", body, **headers)


def request_of_any_path(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"} if content is not None else {}
    connection.request(method, path, content, kind | {k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    found = response.status, response.read(), dict(response.getheaders())
    connection.close()
    return found


def test_the_page_is_self_contained(server):
    status, page, headers = request(server, "GET", "/")
    text = page.decode()
    assert status == 200
    assert "</script><b>" not in text
    assert "&lt;/script&gt;&lt;b&gt;" in text
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    nonce = policy.split("nonce-")[1].split("'")[0]
    assert text.count(f'nonce="{nonce}"') == 3
    assert "http" not in text.replace("https", "http").split("<body>")[1].split("<script")[0]


def test_a_code_is_decoded(server):
    status, content, _ = request(server, "POST", "/decode", {"member": 0, "z": [1.0, -0.5]})
    found = json.loads(content)
    assert status == 200
    pixels = np.frombuffer(base64.b64decode(found["pixels"]), dtype=np.uint8).reshape(4, 4, 3)
    expected = (255 * torch.sigmoid(torch.tensor([1.0, -0.5]) @ W.T)).round().reshape(4, 4)
    np.testing.assert_allclose(pixels[..., 0], expected.numpy(), atol=1)


def test_a_sample_has_its_code(server):
    status, content, _ = request(server, "POST", "/sample", {"member": 1, "sample": 3})
    found = json.loads(content)
    assert status == 200
    assert len(found["z"]) == 2
    assert found["x"]["width"] == 4


def test_latents_are_ordered_by_kl(server):
    state = server.session.state()["members"][0]
    assert [latent["kind"] for latent in state["latents"]] == ["active", "passive"]
    assert len(state["points"]) == 60


def test_outputs_that_are_not_images_are_numbers():
    session = Session.of([model(image_shape=None)], X)
    assert len(session.decode(0, [0.0, 0.0])["values"]) == 16


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/decode")])
def test_other_hosts_and_origins_are_refused(server, method, path, headers):
    body = {"member": 0, "z": [0.0, 0.0]} if method == "POST" else None
    assert request(server, method, path, body, **headers)[0] == 403


def test_the_page_itself_is_allowed(server):
    for host in server.hosts:
        body = {"member": 0, "z": [0.0, 0.0]}
        assert request(server, "POST", "/decode", body, Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("path", ["/etc/passwd", "/../../etc/passwd", "/?x=1", "/decode/../..", "/explorer.html"])
def test_other_paths_do_not_exist(server, path):
    assert request(server, "GET", path)[0] == 404
    assert request(server, "POST", path, {})[0] == 404


@pytest.mark.parametrize("prefix", ["", "/", "/{}x", "/x{}", "/%00", "/é"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/decode"), ("POST", "/sample"), ("POST", "/no")])
def test_nothing_is_served_without_the_token(server, prefix, method, path):
    body = {"member": 0, "z": [0.0, 0.0], "sample": 0} if method == "POST" else None
    status, content, headers = request_of_any_path(
        server, method, quote(prefix.format(server.token), "/%") + path, body
    )
    assert (status, headers["Connection"]) == (403, "close")
    assert "the token is missing or wrong; open the address" in json.loads(content)["error"]
    assert server.token in server.address
    with Explorer(server.session) as other:
        assert server.token != other.token


def converse(server, *parts, pause=0.0):
    """All that the server answers to raw requests on one connection, in which {} is the token."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        for part in parts:
            client.sendall(part.format(server.token).encode())
            time.sleep(pause)
        with contextlib.suppress(OSError):  # the server may have closed the connection already
            client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(2**16), b"")).decode()


@pytest.mark.parametrize(
    "head",
    ["POST /{}/no HTTP/1.1\r\n", "POST /{}/decode HTTP/1.1\r\nContent-Type: text/plain\r\n", "GET /{}/ HTTP/1.1\r\n"],
)
def test_a_body_is_not_taken_for_the_next_request(server, head):
    host = f"Host: localhost:{server.port}\r\n"
    inner = f"GET /{server.token}/inner HTTP/1.1\r\n{host}\r\n"
    answer = converse(server, head + host + f"Content-Length: {len(inner)}\r\n\r\n", inner)
    assert answer.count("HTTP/1.1 ") == 1
    chunked = converse(server, head + host + "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n", inner)
    assert chunked.count("HTTP/1.1 ") == 1
    both = converse(server, head + host + f"Content-Length: 0\r\nContent-Length: {len(inner)}\r\n\r\n", inner)
    assert both.count("HTTP/1.1 ") == 1


def test_an_answer_reaches_a_client_that_still_sends(server):
    refused = f"POST /no HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Length: 8\r\n\r\n"
    answer = converse(server, refused, "1234", "5678", pause=0.1)
    assert answer.startswith("HTTP/1.1 403")


def test_clients_that_reset_or_stall_leave_no_traceback_and_no_thread(server, capsys, monkeypatch):
    head = f"POST /{server.token}/decode HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Length: 100\r\n\r\n"
    monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.2)
    running = threading.active_count()
    for sent in (b"", b"GET", head.encode(), f"GET /{server.token}/ HTTP/1.1\r\n\r\n".encode()):
        client = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        client.sendall(sent)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        client.close()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as stalled:
        stalled.sendall(head.encode())
        assert stalled.recv(10) == b""  # closed by the server
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(5)
    assert threading.active_count() <= running
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[1, 2]",
        b"[" * 100_000,
        {},
        {"member": 9, "z": [0.0, 0.0]},
        {"member": True, "z": [0.0, 0.0]},
        {"member": 0, "z": [0.0]},
        {"member": 0, "z": "00"},
        {"member": 0, "z": [0.0, None]},
        b'{"member": 0, "z": [0.0, NaN]}',
        b'{"member": 0, "z": [0.0, 1e999]}',
        {"member": "__class__", "z": [0.0, 0.0]},
    ],
)
def test_bad_requests_are_explained(server, body):
    status, content, _ = request(server, "POST", "/decode", body)
    assert status == 400
    assert json.loads(content)["error"].endswith(".")


def test_requests_of_another_type_or_size_are_refused(server):
    assert request(server, "POST", "/decode", b"{}", Content_Type="text/plain")[0] == 400
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest("POST", f"/{server.token}/decode")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(10**9))
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


def test_it_listens_on_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"
    with pytest.raises(InputError, match="cannot be used"):
        Explorer(server.session, server.port)


@pytest.mark.parametrize(
    ("models", "message"),
    [([], "got an empty list"), ([model(decode=None)], "the explorer needs models with a decoder")],
)
def test_what_cannot_be_explored_is_explained(models, message):
    with pytest.raises(InputError, match=message):
        Session.of(models, X)


def test_a_model_that_fails_is_explained():
    broken = model(decode=lambda z: {}["w"])
    with Explorer(Session.of([broken], X)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        status, answer, _ = request(running, "POST", "/decode", {"member": 0, "z": [0.0, 0.0]})
        running.shutdown()
    assert status == 400
    assert "decode failed" in json.loads(answer)["error"]


def test_numbers_out_of_range_are_refused(server):
    for z in ("[1e999, 0]", "[1" + 400 * "0" + ", 0]", "[NaN, 0]"):
        status, answer, _ = request(server, "POST", "/decode", f'{{"member": 0, "z": {z}}}'.encode())
        assert status == 400
        assert "finite numbers" in json.loads(answer)["error"]
    status, _, _ = request(server, "POST", "/decode", b"{}", Content_Length="9" * 5000)
    assert status == 400


def test_a_single_model_is_accepted_and_ports_are_checked():
    assert len(Session.of(model(), X).models) == 1
    with pytest.raises(InputError, match="port must be from 0 to 65535, got 99999"):
        Explorer(Session.of(model(), X), 99999)


def test_images_have_the_range_of_the_samples():
    between = model(decode=lambda z: torch.tanh(z @ W.T.to(z)))
    session = Session.of(between, 2 * X - 1)
    dark, middle = (
        np.frombuffer(base64.b64decode(session.to_data(torch.full((16,), v).double())["pixels"]), np.uint8)
        for v in (-0.9, -0.2)
    )
    assert dark.max() < middle.min()
