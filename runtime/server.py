"""Answer texts over HTTP (`pocketbert serve`): Starlette on uvicorn, with limits on whatever a request can make large.

1. `serve` opens the address and runs until Ctrl-C or SIGTERM; requests in flight are then finished.
2. `make_app` builds the ASGI application: /predict, /health, /metrics, /openapi.json and a page at /.
3. `_Service` answers a request to /predict: its body is read and checked (`pocketbert.runtime.server_requests`), waits for a model
   (`pocketbert.runtime.server_queue`), and is counted in the figures of /metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbert.core.errors import InputError, MissingBackendError, Problem, first_line
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.inputs import columns_of
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.runtime.server_queue import RequestQueue
from pocketbert.runtime.server_requests import RequestError, ServerOptions, read_request

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pocketbert.runtime.model import Model

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram in /metrics."""
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
"""What the page may load: nothing, and it may ask this server only."""


# --- the server ---


def serve(models: Sequence[Model], options: ServerOptions, joins: bool = False, as_json: bool = False) -> None:
    """Answer over HTTP until Ctrl-C or SIGTERM; requests in flight are finished then.

    Args:
        models: One for each thread: `pocketbert.runtime.model.load_callers`.
        options: Address and limits.
        joins: Whether requests that wait together are computed in one call: `pocketbert.runtime.server_queue.try_joining`.
        as_json: Whether the line that is printed when the server listens is JSON.

    Raises:
        InputError: If the address cannot be opened.
        MissingBackendError: If starlette or uvicorn is not installed.
    """
    require_server_packages()
    import uvicorn

    sock = _open_socket(options)
    connections: set[Any] = set()
    config = uvicorn.Config(
        make_app(models, options, joins, connections),
        http=_make_connection_class(options.read_seconds),
        timeout_graceful_shutdown=int(options.stop_seconds),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
    )
    server = uvicorn.Server(config)
    server.server_state.connections = connections
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url, file = f"http://{shown}:{port}/", models[0].file
    print(
        json.dumps({"url": url, "file": file}) if as_json else f"{models[0].folder}/{file} answers at {url}", flush=True
    )
    server.run(sockets=[sock])


def require_server_packages() -> None:
    """Raise MissingBackendError with the command that installs the HTTP server, if it is not installed."""
    for name in ("starlette", "uvicorn"):
        if version_of(name) is None:
            raise MissingBackendError(f"the library '{name}'", "pip install 'pocketbert[serve]'")


def _open_socket(options: ServerOptions) -> socket.socket:
    """Return a listening socket at the server's address; raise InputError if it cannot be opened."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        sock = socket.create_server((options.host, options.port), family=family, backlog=1024)
        # asyncio sets it only where the socket names its protocol; without it the second packet of an answer waits 40 ms for the client
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except (OSError, OverflowError) as error:
        what = f"cannot be opened: {getattr(error, 'strerror', None) or error}."
        fix = "Choose another --port (0 takes a free one) or --host."
        raise InputError(Problem(f"{options.host}:{options.port}", what, fix)) from error


def _make_connection_class(read_seconds: float) -> type[asyncio.Protocol]:
    """Make uvicorn's class of HTTP/1.1 connections, with a limit on the time until a request's head has arrived."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """A connection that is closed if its first request, or a request that has begun to arrive, does not arrive in time."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Take a connection, and await its first request."""
            super().connection_made(transport)
            self._timer = self.loop.call_later(read_seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            """Take bytes; the time runs while they are not yet a request that is being answered."""
            super().data_received(data)
            answering = self.cycle is not None and not self.cycle.response_complete
            if answering and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            elif not answering and self._timer is None:
                self._timer = self.loop.call_later(read_seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget the connection."""
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

    return Connection


# --- the application ---


def make_app(
    models: Sequence[Model], options: ServerOptions, joins: bool = False, connections: set[Any] | None = None
) -> Starlette:
    """Build the ASGI application that answers with models.

    Args:
        models: One for each thread, of the same folder: `pocketbert.runtime.model.load_callers`.
        options: Limits.
        joins: Whether requests that wait together are computed in one call: `pocketbert.runtime.server_queue.try_joining`.
        connections: The server's open connections, which the limit counts.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    service = _Service(models, options, joins, set() if connections is None else connections)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with service.queue.running():
            yield

    routes = [
        Route("/predict", service.predict, methods=["POST"]),
        Route("/health", service.health),
        Route("/metrics", service.metrics),
        Route("/openapi.json", service.openapi),
        *(Route(path, service.page) for path in ("/", "/docs")),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refuse_path})
    names = {name.lower() for name in options.names}
    if names or options.host in ("localhost", "::1") or options.host.startswith("127."):
        app.add_middleware(partial(_refuse_other_names, names=_OWN_NAMES | names))
    return app


def _refuse_other_names(app: ASGIApp, names: frozenset[str]) -> ASGIApp:
    """Return an ASGI application that refuses requests to a host of another name, and gives the rest to `app`.

    A page of another site reaches a server on this machine by a name of its own that it makes resolve to 127.0.0.1 (DNS
    rebinding); the browser then lets it read the answers, and sends its name as the host.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        """Give a request to `app` if its host has one of the names, else answer it with 421."""
        host = next((value.decode("latin-1") for key, value in scope.get("headers", ()) if key == b"host"), "")
        name = re.sub(r":\d*$", "", host).lower()
        if scope["type"] != "http" or not host or name in names:
            await app(scope, receive, send)
            return
        allowed = ", ".join(sorted(names))
        problem = Problem(
            "Host", f"{host!r:.80}; allowed: {allowed}.", "Start the server with --name NAME for another one."
        )
        await _error_response(RequestError(421, problem))(scope, receive, send)

    return answer


class _Service:
    """The functions that answer requests to the server's paths, such as /predict.

    Args:
        models: One for each thread.
        options: Limits.
        joins: Whether requests that wait together are computed in one call.
        connections: The server's open connections.
    """

    def __init__(self, models: Sequence[Model], options: ServerOptions, joins: bool, connections: set[Any]) -> None:
        self.model, self.options, self.connections = models[0], options, connections
        self.queue = RequestQueue(models, options, joins)
        self._figures = _Figures(self.queue)

    async def predict(self, request: Request) -> Response:
        """Answer the texts of a request with JSON, or with its errors and their status, and count it in the figures."""
        from starlette.responses import JSONResponse

        began, answers = time.perf_counter(), list[dict[str, Any]]()
        try:
            if len(self.connections) > self.options.connections:
                what = f"{len(self.connections):,} are open; the limit is {self.options.connections:,}."
                raise RequestError(503, Problem("connections", what, "Close some, or try again later."))
            self.queue.refuse_if_full()
            raw = await _read_body(request, self.options)
            began = time.perf_counter()
            answers = await self.queue.answer(read_request(raw, self.model, self.options), request)
            response: Response = JSONResponse({"answers": answers})
        except RequestError as error:
            response = _error_response(error)
        except InputError as error:
            response = _error_response(RequestError(422, error.problems))
        except asyncio.CancelledError:  # the time to finish it after SIGTERM is over
            response = _error_response(RequestError(503, Problem("server", "is stopping.", "Ask another one.")))
        except Exception as error:
            logging.getLogger("pocketbert").exception("/predict failed")
            problem = Problem("server", f"{type(error).__name__}: {first_line(error)}.", "Look at the server's output.")
            response = _error_response(RequestError(500, problem))
        self._figures.add(response.status_code, time.perf_counter() - began, answers)
        return response

    async def health(self, request: Request) -> Response:
        """Return task, file, engine, number of labels and longest input of the model that answers."""
        from starlette.responses import JSONResponse

        model = self.model
        about = {"status": "ok", "task": model.task, "file": model.file, "engine": model.predictor.engine}
        return JSONResponse({**about, "labels": len(model.labels), "max_length": model.max_length})

    async def metrics(self, request: Request) -> Response:
        """Return the figures in Prometheus' text format."""
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(self._figures.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI description of this server, as JSON."""
        from starlette.responses import JSONResponse

        return JSONResponse(_describe_api(self.model, self.options))

    async def page(self, request: Request) -> Response:
        """Return the page that shows the description; it asks no other host for anything."""
        from starlette.responses import HTMLResponse

        page = (files("pocketbert.runtime") / "page" / "index.html").read_text(encoding="utf-8")
        return HTMLResponse(page, headers={"Content-Security-Policy": _PAGE_POLICY})


async def _refuse_path(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown path, or with a method that its path does not have."""
    status = getattr(error, "status_code", 404)
    what = (
        f"{getattr(error, 'detail', 'not found')}; there are GET /, /health, /metrics, /openapi.json and POST /predict."
    )
    response = _error_response(RequestError(status, Problem(f"{request.method} {request.url.path}"[:200], what)))
    response.headers.update(getattr(error, "headers", None) or {})  # 405 names the methods that are allowed
    return response


def _error_response(error: RequestError) -> Response:
    """Return the answer to a request that failed: ``{"errors": [{"where", "what", "fix"}]}``."""
    from starlette.responses import JSONResponse

    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    errors = [{"where": p.where, "what": p.what, "fix": p.fix} for p in error.problems]
    return JSONResponse({"errors": errors}, error.status, headers)


async def _read_body(request: Request, options: ServerOptions) -> bytes:
    """Read the body of a request.

    Raises:
        RequestError: 415 if it is no JSON by its headers, 413 if it is too large, 408 if it does not arrive in time, 499 if
            the client closed the connection.
    """
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json" or "content-encoding" in request.headers:
        # the page of another site may send plain text to this machine, but not this type
        raise RequestError(415, Problem("Content-Type", f"{kind!r:.80}.", "Send application/json, not compressed."))
    fix = "Send fewer texts at once, or start the server with a larger --max-body-mb."
    limit = f"bytes; the limit is {options.body_bytes:,}."
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and len(length) < 20 and int(length) > options.body_bytes:
        raise RequestError(413, Problem("body", f"{int(length):,} {limit}", fix))
    raw = bytearray()
    try:
        async with asyncio.timeout(options.read_seconds):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > options.body_bytes:
                    raise RequestError(413, Problem("body", f"at least {len(raw):,} {limit}", fix))
    except TimeoutError:
        what = f"only {len(raw):,} bytes arrived; the limit is {options.read_seconds:g} s."
        raise RequestError(408, Problem("body", what, "Send the whole request at once.")) from None
    except Exception as error:
        if type(error).__name__ != "ClientDisconnect":
            raise
        raise RequestError(499, Problem("client", "closed the connection.")) from error
    return bytes(raw)


def _describe_api(model: Model, options: ServerOptions) -> dict[str, Any]:
    """Return the OpenAPI description, with an example that the model's task takes."""
    template = (files("pocketbert.runtime") / "page" / "openapi.json").read_text(encoding="utf-8")
    description: dict[str, Any] = json.loads(template)
    task = model.head.task
    example: Any = "wake me at six"
    if task.labels is LabelKind.CHOICE:
        example = ["What is wet?", ["water", "sand"]]
    elif task.pairs_only:
        example = ["Who sleeps?", "The cat sleeps on the sofa."]
    elif task.name is TaskName.FILL_MASK:
        example = f"the cat {model.tokenizer.mask_token} on the sofa"
    if model.tokenizer.reader is not None and task.labels is not LabelKind.CHOICE:
        text: Any = example if isinstance(example, str) else tuple(example)
        columns = columns_of(model.tokenizer.reader.with_sample_columns(text)) or {}
        parts = [example] if isinstance(example, str) else example
        example = {**dict(zip(("text", "text_pair"), parts, strict=False)), **columns}
    description["info"]["version"] = version_of("pocketbert") or "0"
    description["info"]["title"] = f"{model.folder.resolve().name}: {task.name}"
    asked = description["components"]["schemas"]["Texts"]
    asked["example"] = {"texts": [example]}
    asked["properties"]["texts"]["maxItems"] = options.texts
    return description


# --- figures ---


class _Figures:
    """Counters and histograms for /metrics, in Prometheus' text format.

    Args:
        queue: The queue, for the requests in flight.
    """

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._statuses: Counter[int] = Counter()
        self._texts = self._truncated = self._rows = 0
        self._seconds, self._sum = [0] * (len(_SECONDS) + 1), 0.0

    def add(self, status: int, seconds: float, answers: Sequence[dict[str, Any]]) -> None:
        """Count a request to /predict with its status and answers; if it was answered, also its seconds.

        The seconds run from the last byte of the request to its answer.
        """
        self._statuses[status] += 1
        self._texts += len(answers)
        self._truncated += sum(bool(answer["truncated"]) for answer in answers)
        if status == 200:
            self._seconds[int(np.searchsorted(_SECONDS, seconds))] += 1
            self._sum += seconds

    def text(self) -> str:
        """Return all figures as text."""
        model = self._queue.models[0]
        about = {
            "version": version_of("pocketbert") or "",
            "task": model.task,
            "file": model.file,
            "engine": model.predictor.engine,
        }
        labels = ",".join(f"{name}={json.dumps(str(value), ensure_ascii=False)}" for name, value in about.items())
        counts = np.cumsum(self._seconds)
        buckets = [(f'{{le="{bound}"}}', int(n)) for bound, n in zip([*_SECONDS, "+Inf"], counts, strict=True)]
        blocks: list[tuple[str, str, str, Sequence[tuple[str, float]]]] = [
            ("info", "gauge", "The model that answers.", [(f"{{{labels}}}", 1)]),
            (
                "requests_total",
                "counter",
                "Requests to /predict by status.",
                [(f'{{status="{status}"}}', n) for status, n in sorted(self._statuses.items())],
            ),
            ("texts_total", "counter", "Texts that were answered.", [("", self._texts)]),
            ("truncated_texts_total", "counter", "Texts of which the end was not read.", [("", self._truncated)]),
            ("joined_requests_total", "counter", "Requests computed together with others.", [("", self._queue.joined)]),
            ("requests_in_flight", "gauge", "Requests that are computed or wait.", [("", self._queue.in_flight)]),
            (
                "request_seconds",
                "histogram",
                "From the last byte of a request to its answer.",
                [
                    *((f"_bucket{name}", n) for name, n in buckets),
                    ("_sum", round(self._sum, 6)),
                    ("_count", int(counts[-1])),
                ],
            ),
        ]
        lines = []
        for name, kind, meaning, values in blocks:
            lines += [f"# HELP pocketbert_{name} {meaning}", f"# TYPE pocketbert_{name} {kind}"]
            lines += [f"pocketbert_{name}{suffix} {value}" for suffix, value in values]
        return "\n".join(lines) + "\n"
