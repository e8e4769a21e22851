"""The command `serve`: answer texts over HTTP with a model of an artefact folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import RESULTS, add

_MIB = 1 << 20


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add(app, serve, RESULTS)


def serve(
    model: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Open this artefact folder, or that of this run folder.")
    ],
    host: Annotated[
        str, typer.Option("--host", help="Listen at this address; 0.0.0.0 is reached from other machines.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Listen at this port; 0 takes a free one.")
    ] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help="Answer requests to a host of this name too, such as the one that a proxy forwards; may be repeated. Default: at "
            "an address of this machine only its own names, at others any.",
        ),
    ] = None,
    scheme: options.Scheme = None,
    format: options.Format = None,
    engine: options.Engine = None,
    model_file: options.ModelFile = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            help="Compute this number of requests at the same time; default: one for each core with ONNX Runtime, else one.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Use this number of threads in all; default: all cores."),
    ] = None,
    join_ms: Annotated[
        float,
        typer.Option(
            "--join-ms",
            min=0,
            max=1000,
            help="Wait this long for requests to be computed together; default: those that wait anyway. Files whose answers would "
            "change, such as int8, are never computed so.",
        ),
    ] = 0.0,
    max_body_mb: Annotated[
        float, typer.Option("--max-body-mb", min=0.001, max=1024, help="Refuse larger requests with status 413.")
    ] = 1.0,
    max_texts: Annotated[
        int, typer.Option("--max-texts", min=1, help="Refuse requests with more texts with status 422.")
    ] = 256,
    max_characters: Annotated[
        int, typer.Option("--max-characters", min=1, help="Refuse longer texts with status 422.")
    ] = 20_000,
    max_requests: Annotated[
        int, typer.Option("--max-requests", min=1, help="Refuse requests with status 429 while this number is in work.")
    ] = 64,
    stop_seconds: Annotated[
        float,
        typer.Option("--stop-seconds", min=1, max=86_400, help="After SIGTERM, finish requests for at most this time."),
    ] = 30.0,
    json: Annotated[
        bool, typer.Option("--json", help="Print the address and the model's file as one JSON object, when it listens.")
    ] = False,
) -> None:
    """Answer texts over HTTP, at POST /predict.

    GET / is a page that describes it, /openapi.json the same for tools, /health and /metrics (Prometheus) are for the
    operator. It needs pip install 'pocketbert[serve]'. Ctrl-C and SIGTERM let it finish the requests in flight.
    """
    from pocketbert.core.host.progress import print_note
    from pocketbert.runtime.model import load_callers
    from pocketbert.runtime.server import require_server_packages, serve
    from pocketbert.runtime.server_queue import try_joining
    from pocketbert.runtime.server_requests import ServerOptions

    require_server_packages()
    models = load_callers(model, scheme, threads, workers, format=format, engine=engine, file=model_file)
    if models[0].choice:
        print_note(models[0].choice)
    joins = try_joining(models[0])
    together = "those that wait are computed together" if joins else "each is computed by itself"
    print_note(f"{len(models)} request{'s' if len(models) > 1 else ''} at the same time; {together}")
    settings = ServerOptions(
        host=host,
        port=port,
        names=tuple(name or ()),
        body_bytes=int(max_body_mb * _MIB),
        texts=max_texts,
        characters=max_characters,
        requests=max_requests,
        join_ms=join_ms,
        stop_seconds=stop_seconds,
    )
    serve(models, settings, joins, as_json=json)
