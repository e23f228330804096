"""The explorer's server: 127.0.0.1 only, three routes, JSON in and out, no paths and no code from the browser.

Python's own HTTP server is enough for one user on one machine and adds no dependency.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vaescope.core.errors import InputError
from vaescope.products.explore.session import Session
from vaescope.report.page import render

HOST = "127.0.0.1"
LARGEST_REQUEST = 2**20  # bytes
NOT_FOUND = "this page does not exist."


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
        self.lock = threading.Lock()  # networks are called one at a time

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    @property
    def hosts(self) -> set[str]:
        """Host headers of requests from this machine."""
        return {f"{host}:{self.port}" for host in (HOST, "localhost")}


def serve(session: Session, *, port: int = 0, ready: Callable[[str], None] | None = None) -> None:
    """Serve until interrupted.

    Args:
        session: the models to explore.
        port: on 127.0.0.1; 0 for a free one.
        ready: called with the address when the server is ready.
    """
    with Explorer(session, port) as server:
        if ready is not None:
            ready(server.address)
        server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    server: Explorer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # send head and body together: separately, the body waits 40 ms for the acknowledgement of the head
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if not self._allowed():
            return
        if self.path != "/":
            self._send_json(HTTPStatus.NOT_FOUND, {"error": NOT_FOUND})
            return
        nonce = secrets.token_urlsafe(16)
        page = render("explorer.html", session=self.server.session.state(), nonce=nonce).encode()
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._send(HTTPStatus.OK, page, "text/html; charset=utf-8", {"Content-Security-Policy": policy})

    def do_POST(self) -> None:
        if not self._allowed():
            return
        session = self.server.session
        route = {"/decode": (session.decode, "z"), "/sample": (session.sample, "sample")}.get(self.path)
        if route is None:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": NOT_FOUND})
            return
        try:
            body = self._body()
            method, key = route
            with self.server.lock:
                found = method(body.get("member"), body.get(key))
        except InputError as error:
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        except Exception as error:  # of a model: the page shows it and keeps working
            reason = (str(error).splitlines() or [""])[0][:200]
            message = f"the model failed: {type(error).__name__}: {reason}"
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": message})
            return
        self._send_json(HTTPStatus.OK, found)

    def _allowed(self) -> bool:
        """Whether the request has this machine's host name and comes from this page, not from another site."""
        origin = self.headers.get("Origin")
        own_origins = {f"http://{host}" for host in self.server.hosts}
        if self.headers.get("Host") in self.server.hosts and (origin is None or origin in own_origins):
            return True
        self.close_connection = True
        self._send_json(HTTPStatus.FORBIDDEN, {"error": "only requests from this machine are allowed."})
        return False

    def _body(self) -> dict[str, object]:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or len(length) > 9 or int(length) > LARGEST_REQUEST:
            self.close_connection = True
            raise InputError(f"a request needs a Content-Length of at most {LARGEST_REQUEST} bytes.")
        if self.headers.get_content_type() != "application/json":
            self.rfile.read(int(length))
            raise InputError("a request must be JSON.")
        try:
            body = json.loads(self.rfile.read(int(length)))
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
        for name, value in (headers | more).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
