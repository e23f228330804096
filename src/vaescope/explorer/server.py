"""The explorer's server: 127.0.0.1 only, three addresses, JSON in and out, no path and no code from the browser.

Python's own server is enough for one person at one machine; nothing has to be installed for it.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vaescope.errors import InputError
from vaescope.explorer.session import Session
from vaescope.report.page import render

HOST = "127.0.0.1"
LARGEST = 2**20  # bytes of a request


class Explorer(ThreadingHTTPServer):
    """Serves one session until it is closed."""

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0) -> None:
        if not 0 <= port <= 65535:
            raise InputError(f"a port is a number from 0 to 65535, got {port}; leave --port out.")
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise InputError(f"port {port} cannot be used: {error.strerror}; leave --port out.") from None
        self.session = session
        self.lock = threading.Lock()  # networks are asked one at a time

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    @property
    def names(self) -> set[str]:
        """The names under which a browser on this machine may ask."""
        return {f"{host}:{self.port}" for host in (HOST, "localhost")}


def serve(session: Session, *, port: int = 0, ready: Callable[[str], None] | None = None) -> None:
    """Serve until interrupted; `ready` is told the address."""
    with Explorer(session, port) as server:
        if ready is not None:
            ready(server.address)
        server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    server: Explorer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave together: apart, the second waits 40 ms for an acknowledgement of the first
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if not self._allowed():
            return
        if self.path != "/":
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is nothing here."})
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
        asked = {"/decode": ("decode", "z"), "/sample": ("sample", "sample")}.get(self.path)
        if asked is None:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is nothing here."})
            return
        try:
            body = self._body()
            method, key = asked
            with self.server.lock:
                found = getattr(self.server.session, method)(body.get("member"), body.get(key))
        except InputError as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        except Exception as error:  # of a model: the page says so and stays
            reason = (str(error).splitlines() or [""])[0][:200]
            told = f"the model failed: {type(error).__name__}: {reason}"
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": told})
            return
        self._answer(HTTPStatus.OK, found)

    def _allowed(self) -> bool:
        """Asked under this machine's own name, and by this page if by any: other sites cannot read or steer it."""
        origin = self.headers.get("Origin")
        here = {f"http://{name}" for name in self.server.names}
        if self.headers.get("Host") in self.server.names and (origin is None or origin in here):
            return True
        self.close_connection = True
        self._answer(HTTPStatus.FORBIDDEN, {"error": "only this machine's own browser may ask."})
        return False

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or len(length) > 9 or int(length) > LARGEST:
            self.close_connection = True
            raise InputError("a request needs a length, and not too large a one.")
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

    def _answer(self, status: HTTPStatus, data: dict[str, Any]) -> None:
        self._send(status, json.dumps(data).encode(), "application/json", {})

    def _send(self, status: HTTPStatus, content: bytes, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
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

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on the terminal."""
