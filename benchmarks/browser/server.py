"""The local server of the page: one address with a one-time token, the pinned libraries, and the files of the plan.

`serve` starts it for the time of a ``with`` block. Nothing is looked up by a path from outside: an address that is not in its table is
not found. Posts are bounded, and checked by the records of `pocketbert.benchmarks.browser.posts`.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import math
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError

from pocketbert.benchmarks.browser.libraries import WebLibrary
from pocketbert.benchmarks.browser.phones import Phones
from pocketbert.benchmarks.browser.posts import AnswersPost, CasePost, JoinPost, StatePost
from pocketbert.core.errors import InputError, MissingBackendError, Problem

LAN = "lan"
"""Value of ``--host`` for the address that this machine has in its network."""
_PAGE_FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "runner.html": ("runner.html", "text/html; charset=utf-8"),
    "runner.js": ("runner.js", "text/javascript; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
}
_LIBRARY_TYPES = {"js": "text/javascript", "mjs": "text/javascript", "wasm": "application/wasm"}
_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",  # these two make the page isolated, without which there are no threads
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'self' blob: data:; script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'; form-action 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}
_MOST_POST = 16 << 20
"""Bytes of a post: the outputs of a few long rows of vectors are the largest."""
_READ_S = 60.0
"""Seconds that a request, with its post, may take to arrive; a connection without one is closed then."""
_MOST_CONNECTIONS = 256
"""Each has a thread. 32 browsers open six of them each."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Content:
    """Something that the server sends: bytes that a function returns, or a file on disk."""

    kind: str
    read: Callable[[], bytes] | None = None
    path: Path | None = None


@dataclass(frozen=True)
class Address:
    """The address of the page.

    Attributes:
        url: The whole address, with the secret token.
        port: The port.
        secure: Whether a browser on another machine regards the page as a secure context.
    """

    url: str
    port: int
    secure: bool


class _Server(ThreadingHTTPServer):
    """An HTTP server with tables of what it sends and accepts; it closes slow connections, and all at the end.

    Attributes:
        token: Secret first part of the path of every address.
        contents: What is sent, by the part of the address after the token.
        posts: For each address that accepts posts, the class of the post and the function that takes it.
        waiting: The open connections, each with the time since which the server waits for a request; infinity while it
            answers.
    """

    daemon_threads = True
    token: str
    contents: Mapping[str, _Content]
    posts: Mapping[str, tuple[type[BaseModel], Callable[[Any], dict[str, Any]]]]
    waiting: dict[socket.socket, float]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether to accept a connection: no, if too many are open."""
        if len(self.waiting) >= _MOST_CONNECTIONS:
            return False
        self.waiting[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.waiting.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that have not sent a request in time; called several times a second."""
        self.end_connections(time.monotonic() - _READ_S)

    def end_connections(self, since: float = math.inf) -> None:
        """Close the connections that have been waiting for a request since `since` or longer; by default all."""
        for connection, moment in list(self.waiting.items()):
            if moment <= since:
                with contextlib.suppress(OSError):  # the thread that reads it finds its end, and closes it
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections that a browser closes, for which Python would print a traceback."""


class _Server6(_Server):
    """The server for an IPv6 address."""

    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    """Handles the requests of one connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "PocketBERT"
    sys_version = ""
    timeout: ClassVar[float] = _READ_S

    def handle_one_request(self) -> None:
        """Wait for a request, and answer it."""
        self.server.waiting[self.connection] = time.monotonic()
        super().handle_one_request()

    def do_GET(self) -> None:
        """Send what the server's table has for the requested address."""
        self.server.waiting[self.connection] = math.inf
        content = self._lookup(self.server.contents)
        if content is None:
            return
        if content.path is None:
            body = content.read() if content.read else b""
            self._begin(HTTPStatus.OK, content.kind, len(body))
            self.wfile.write(body)
            return
        try:
            stream = content.path.open("rb")
        except OSError:
            self._fail(HTTPStatus.NOT_FOUND, "the file is gone")
            return
        with stream:
            left = content.path.stat().st_size
            self._begin(HTTPStatus.OK, content.kind, left)
            while left and (chunk := stream.read(min(_CHUNK, left))):
                self.wfile.write(chunk)
                left -= len(chunk)

    def do_POST(self) -> None:
        """Check the size and content of a post, pass it to its function, and send what that returns."""
        post = self._lookup(self.server.posts)
        if post is None:
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or len(length) > 15:
            self._fail(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
            return
        if int(length) > _MOST_POST:
            self._fail(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {_MOST_POST >> 20} MiB")
            return
        record, accept = post
        try:
            body = self.rfile.read(int(length))
            self.server.waiting[self.connection] = math.inf
            parsed = record.model_validate_json(body)
            answer = accept(parsed)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            self._fail(HTTPStatus.BAD_REQUEST, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        except (InputError, ValueError) as error:
            self._fail(HTTPStatus.BAD_REQUEST, str(error))
        else:
            reply = json.dumps(answer).encode()
            self._begin(HTTPStatus.OK, "application/json", len(reply))
            self.wfile.write(reply)

    def _lookup(self, table: Mapping[str, Any]) -> Any:
        """Return the table's entry for the requested address; if there is none, send an error and return None."""
        token, slash, rest = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.server.token.encode()) or rest not in table:
            self._fail(HTTPStatus.NOT_FOUND, "not found")
            return None
        return table[rest]

    def _begin(self, status: HTTPStatus, kind: str, length: int) -> None:
        """Send the status and the headers of a response."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        # what a page has fetched is kept by the browser for the next frame, unless it is the page itself or an answer
        kept = kind in ("application/wasm", "application/octet-stream")
        self.send_header("Cache-Control", "private, max-age=86400, immutable" if kept else "no-store")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def _fail(self, status: HTTPStatus, why: str) -> None:
        """Send an error as text, and close the connection, because the rest of a refused post is not read."""
        body = f"{why[:500]}\n".encode(errors="replace")
        self.close_connection = True
        self._begin(status, "text/plain; charset=utf-8", len(body))
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because addresses contain the secret token."""


@contextlib.contextmanager
def serve(phones: Phones, libraries: Mapping[str, WebLibrary], host: str, https: bool) -> Iterator[Address]:
    """Serve the page, the libraries and the files of a plan until the block ends.

    Args:
        phones: The browsers, which receive the posts; its plan names the files.
        libraries: The libraries by short name.
        host: Address of this machine to listen on; ``lan`` for its address in the local network.
        https: Whether to serve over TLS, with a certificate that is made now and not stored.

    Yields:
        The address of the page.

    Raises:
        InputError: If this machine has no such address, or it means all network interfaces.
        MissingBackendError: If `https` is asked for and there is no ``openssl``, or it makes no certificate.
    """
    address = _find_address(host)
    with contextlib.ExitStack() as stack:
        try:
            server = (_Server6 if ":" in address else _Server)((address, 0), _Handler)
        except OSError as error:
            raise InputError(
                Problem("--host", f"{host}: this machine cannot listen there ({error}).", _HOST_FIX)
            ) from error
        stack.callback(server.server_close)
        server.waiting = {}
        stack.callback(server.end_connections)  # pages keep theirs open, and the threads of these would go on answering
        server.token = secrets.token_urlsafe(12)
        server.contents = _contents(phones, libraries)
        server.posts = {
            "join": (JoinPost, phones.join),
            "answers": (AnswersPost, phones.answers),
            "case": (CasePost, phones.case),
            "state": (StatePost, phones.note),
        }
        if https:
            server.socket = _secure_context(address).wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        port = server.server_address[1]
        where = f"[{address}]" if ":" in address else address
        url = f"{'https' if https else 'http'}://{where}:{port}/{server.token}/"
        yield Address(url, port, https or ipaddress.ip_address(address).is_loopback)


_HOST_FIX = f"Name one address of this machine, or --host {LAN}"


def _find_address(host: str) -> str:
    """Return the one IP address that a host name stands for; raise InputError if it means all interfaces, or none."""
    if host == LAN:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing: the system only chooses the interface
            return str(probe.getsockname()[0])
        raise InputError(
            Problem("--host", "this machine is in no network.", "Connect it, or use a cable and adb reverse")
        )
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise InputError(Problem("--host", f"'{host}' is no address ({error}).", _HOST_FIX)) from error
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        raise InputError(Problem("--host", f"{host} stands for all interfaces; one is served.", _HOST_FIX))
    return address


def _contents(phones: Phones, libraries: Mapping[str, WebLibrary]) -> dict[str, _Content]:
    """Return everything that the server sends, by the part of the address after the token."""
    page = files("pocketbert.benchmarks.browser") / "page"
    contents = {address: _Content(kind, (page / name).read_bytes) for address, (name, kind) in _PAGE_FILES.items()}
    contents["plan"] = _Content("application/json", lambda: phones.plan.content)
    for library in libraries.values():
        for name in library.files:
            kind = _LIBRARY_TYPES[name.rpartition(".")[2]]
            contents[f"lib/{library.short_name}/{name}"] = _Content(kind, partial(library.read, name))
    for number, planned in enumerate(phones.plan.files):
        path = planned.variant.path.resolve()
        contents[f"file/{number}"] = _Content("application/octet-stream", path=path)
    return contents


_CERTIFICATE = """[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = PocketBERT benchmark
[extensions]
subjectAltName = IP:{address}
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth
"""


def _secure_context(address: str) -> ssl.SSLContext:
    """Make a self-signed certificate with ``openssl``, and return the TLS settings that use it; no file stays."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise MissingBackendError(
            "openssl, which makes the certificate of --https,", "sudo apt-get install openssl (macOS has it)"
        )
    with tempfile.TemporaryDirectory(prefix="pocketbert-certificate-") as name:
        folder = Path(name)
        (folder / "settings").write_text(_CERTIFICATE.format(address=address), encoding="ascii")
        command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config", "settings"]
        command += ["-keyout", "key.pem", "-out", "certificate.pem"]
        made = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if made.returncode:
            last = (made.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise MissingBackendError(f"openssl made no certificate ({last}): a version that can", "a newer openssl")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context
