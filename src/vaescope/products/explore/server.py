"""The explorer's server: 127.0.0.1 only, three routes, JSON in and out, no paths and no code from the browser.

Other users of the machine can connect too, so every route starts with a random token, which the address contains.
Python's own HTTP server is enough for one user on one machine and adds no dependency.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vaescope.core.errors import InputError, first_line
from vaescope.products.explore.session import Session
from vaescope.report.page import render

HOST = "127.0.0.1"


class Explorer(ThreadingHTTPServer):
    """Serves one session until it is closed."""

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0) -> None:
        if not 0 <= port <= 65535:
            raise InputError(f"port must be from 0 to 65535, got {port}; omit it for a free port.")
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise InputError(f"port {port} cannot be used: {error.strerror}; omit it for a free port.") from None
        self.session = session
        self.token = secrets.token_urlsafe(24)
        self.lock = threading.Lock()  # networks are called one at a time

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """Of the page, with the token that only its reader has."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    @property
    def hosts(self) -> set[str]:
        """Host headers of requests from this machine."""
        return {f"{host}:{self.port}" for host in (HOST, "localhost")}

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection after its answer, reading what the client still sends.

        A socket that is closed with unread input is reset, and the client may lose the answer.
        """
        if isinstance(request, socket.socket):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_WR)
                request.settimeout(2)
                for _ in range(64):
                    if not request.recv(2**16):
                        break
        self.close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that closes its connection, or stops sending, is no error of the server."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def serve(session: Session, *, port: int = 0, ready: Callable[[str], None] | None = None) -> None:
    """Serve until interrupted.

    Args:
        session: the models to explore.
        port: on 127.0.0.1; 0 for a free one.
        ready: called with the address, which contains the token, when the server is ready.
    """
    with Explorer(session, port) as server:
        if ready is not None:
            ready(server.address)
        server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    server: Explorer
    largest_request = 2**20  # bytes
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # send head and body together: separately, the body waits 40 ms for the acknowledgement of the head
    disable_nagle_algorithm = True

    timeout = 60  # seconds without a byte, after which a connection is closed

    def do_GET(self) -> None:
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what follows is not a request
        route = self._route()
        if route is None:
            return
        if route != "":
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "this page does not exist."})
            return
        nonce = secrets.token_urlsafe(16)
        page = render("explorer.html", session=self.server.session.state(), nonce=nonce).encode()
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._send(HTTPStatus.OK, page, "text/html; charset=utf-8", {"Content-Security-Policy": policy})

    def do_POST(self) -> None:
        route = self._route()
        if route is None:
            return
        session = self.server.session
        try:
            content = self._content()
            called = {"decode": (session.decode, "z"), "sample": (session.sample, "sample")}.get(route)
            if called is None:
                self._send_json(HTTPStatus.NOT_FOUND, {"error": "this page does not exist."})
                return
            body = self._json(content)
        except InputError as error:
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        method, key = called
        try:
            with self.server.lock:
                found = method(body.get("member"), body.get(key))
        except InputError as error:
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except Exception as error:  # of a model: the page shows it and keeps working
            message = f"the model failed: {type(error).__name__}: {first_line(error)}"
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": message})
        else:
            self._send_json(HTTPStatus.OK, found)

    def _route(self) -> str | None:
        """The path behind the token; None, and the request refused, for another site or without the token.

        The host name is of this machine, so that no other site can resolve to it, and the page is the explorer's own.
        """
        origin, own_origins = self.headers.get("Origin"), {f"http://{host}" for host in self.server.hosts}
        token, slash, route = self.path.removeprefix("/").partition("/")
        if self.headers.get("Host") not in self.server.hosts or (origin is not None and origin not in own_origins):
            refusal = "only requests from this machine are allowed."
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()) or not slash:
            refusal = "the token is missing or wrong; open the address that was printed when the explorer started."
        else:
            return route
        self.close_connection = True
        self._send_json(HTTPStatus.FORBIDDEN, {"error": refusal})
        return None

    def _content(self) -> bytes:
        """The whole body, whatever becomes of it: the rest would be taken for the next request."""
        lengths = self.headers.get_all("Content-Length", [])
        length = lengths[0] if len(set(lengths)) == 1 else ""
        valid = length.isascii() and length.isdigit() and len(length) <= 9 and int(length) <= self.largest_request
        if not valid or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise InputError(f"a request needs a Content-Length of at most {self.largest_request} bytes.")
        return self.rfile.read(int(length))

    def _json(self, content: bytes) -> dict[str, object]:
        if self.headers.get_content_type() != "application/json":
            raise InputError("a request must be JSON.")
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            raise InputError("a request must be JSON.") from None
        if not isinstance(body, dict):
            raise InputError("a request must be a JSON object.")
        return body

    def _send_json(self, status: HTTPStatus, data: Mapping[str, object]) -> None:
        self._send(status, json.dumps(data).encode(), "application/json", {})

    def _send(self, status: HTTPStatus, content: bytes, content_type: str, more: dict[str, str]) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        if self.close_connection:
            more = more | {"Connection": "close"}
        for name, value in (headers | more).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
