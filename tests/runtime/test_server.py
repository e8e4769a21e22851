"""`pocketbert serve`: answers over a real socket are those of `predict`, limits hold, and no client disturbs another one."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pocketbert
from pocketbert import ExportOptions, api
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format
from pocketbert.runtime.model import load, load_callers
from pocketbert.runtime.server import serve
from pocketbert.runtime.server_queue import try_joining
from pocketbert.runtime.server_requests import ServerOptions
from support.clients import LONG_QUESTION, MASKED, ODD_TEXTS, QUESTIONS, TEXTS, write_model
from support.commands import command, one_core

_SLOW = """
import sys, time
from pocketbert.runtime.model import load_callers
from pocketbert.runtime.server import serve
from pocketbert.runtime.server_requests import ServerOptions
models = load_callers(sys.argv[1], callers=1)
answer = models[0].predict
def slowly(texts, **more):
    time.sleep(float(sys.argv[2]))
    if "fail" in texts: raise RuntimeError("out of luck")
    if "panic" in texts: raise BaseException("out of luck")  # as a library in Rust does
    return answer(texts, **more)
models[0].predict = slowly
serve(models, ServerOptions(port=0, requests=3, read_seconds=1, body_bytes=1000, texts=4, characters=50, connections=30))
"""
"""A server with small limits, whose model takes as long as it is told."""


class Server:
    """A server in a process of its own."""

    def __init__(self, argv: list[str]) -> None:
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", json.loads(line)["url"] if line.startswith("{") else line)
        assert found, (line, self.process.stderr and self.process.stderr.read())
        self.port = int(found[1])

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        """Send a request; return the status and the content, parsed where it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        raw = answer.read()
        connection.close()
        return answer.status, json.loads(raw) if "json" in answer.headers["content-type"] else raw.decode()

    def ask(self, texts: Any, **more: Any) -> Any:
        """Return the answers to texts."""
        status, content = self.send("POST", "/predict", json.dumps({"texts": texts, **more}).encode())
        assert status == 200, content
        return content["answers"]

    def connect(self, raw: bytes) -> socket.socket:
        """Open a connection and send the beginning of a request."""
        opened = socket.create_connection(("127.0.0.1", self.port), 30)
        opened.sendall(raw)
        return opened


@contextmanager
def serving(*argv: object, code: str = "") -> Iterator[Server]:
    own = [sys.executable, "-c", code, *map(str, argv)] if code else command("serve", *argv, "--port", 0)
    server = Server(one_core(own))
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="module")
def slow(packed: Path) -> Iterator[Server]:
    with serving(packed, 0.2, code=_SLOW) as server:
        yield server


def expected(model: Any, texts: Any, top: int = 1) -> Any:
    """The answers of `predict`, as JSON."""
    plain = [t["text"] if isinstance(t, dict) else t for t in texts]
    texts = [tuple(t) if isinstance(t, list) else t for t in plain]
    return json.loads(json.dumps([{**a.fields(top), "truncated": a.truncated} for a in model.predict(texts)]))


# answers


def test_answers_are_those_of_predict_also_of_many_clients_at_once(packed: Path) -> None:
    model, texts = pocketbert.load(packed, "fp32"), [*TEXTS, *ODD_TEXTS, *MASKED] * 3
    with serving(packed, "--scheme", "fp32", "--workers", 3, "--join-ms", 2) as server:
        assert server.ask(texts, top=2) == expected(model, texts, 2)
        with ThreadPoolExecutor(12) as clients:
            answers = [*clients.map(lambda text: server.ask([text]), texts)]
        assert answers == [expected(model, [text]) for text in texts]
        status, figures = server.send("GET", "/metrics")
        assert status == 200
        assert f"pocketbert_texts_total {2 * len(texts)}\n" in figures
        assert f'pocketbert_requests_total{{status="200"}} {1 + len(texts)}\n' in figures
        joined = int(re.findall(r"^pocketbert_joined_requests_total (\d+)$", figures, re.MULTILINE)[0])
        assert joined == 0 or try_joining(model)
        _, health = server.send("GET", "/health")
        assert (health["status"], health["file"], health["labels"]) == ("ok", model.file, 3)


CASES: dict[TaskName, Any] = {
    TaskName.MULTI_LABEL: [*TEXTS, {"text": TEXTS[0]}],
    TaskName.TOKEN_CLASSIFICATION: [*TEXTS, *ODD_TEXTS],
    TaskName.QUESTION_ANSWERING: [*map(list, QUESTIONS), list(LONG_QUESTION)],
    TaskName.MULTIPLE_CHOICE: [["set an alarm for", ["half past six", "the light", "a film"]]] * 2,
    TaskName.FEATURE_EXTRACTION: TEXTS,
    TaskName.FILL_MASK: MASKED,
}


@pytest.mark.parametrize(
    ("task", "format"),
    [
        (TaskName.QUESTION_ANSWERING, Format.ONNX),
        *(pytest.param(task, Format.TFLITE, marks=pytest.mark.slow) for task in CASES),
        pytest.param(TaskName.MULTIPLE_CHOICE, Format.ONNX, marks=pytest.mark.slow),
        pytest.param(TaskName.MULTI_LABEL, Format.COREML, marks=pytest.mark.slow),
    ],
)
def test_every_task_and_format(task: TaskName, format: Format, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_model(task, tmp_path / "model")
    api.export(tmp_path / "model", tmp_path / "phone", ExportOptions(formats=[format], task=task, lengths=[16, 48]))
    model = load(tmp_path / "phone")
    with serving(tmp_path / "phone", "--workers", 2) as server, ThreadPoolExecutor(4) as clients:
        assert server.ask(CASES[task]) == expected(model, CASES[task])
        for text, answer in zip(CASES[task], clients.map(lambda t: server.ask([t]), CASES[task]), strict=True):
            assert answer == expected(model, [text])
        if task is TaskName.QUESTION_ANSWERING:  # windows that move on by one token
            texts = [["who", "a " * 9990]] * 20
            status, content = server.send("POST", "/predict", json.dumps({"texts": texts}).encode())
            assert status == 422
            assert "read in windows of about" in content["errors"][0]["what"]


# what is refused


REFUSED: list[tuple[bytes, int, str]] = [
    (b"{", 400, "not valid JSON"),
    (b"[" * 900, 400, "not valid JSON"),
    (b'{"texts": ["\xff\xfe"]}', 400, "not UTF-8: byte 0xff at position 12"),
    (b'{"texts": ["\\ud800"]}', 400, "half of a surrogate pair"),
    (b'["a"]', 422, "is a list, not an object"),
    (b"{}", 422, "texts is missing"),
    (b'{"texts": []}', 422, "not a list with at least one text"),
    (b'{"text": ["a"]}', 422, "did you mean 'texts'"),
    (b'{"texts": ["a", 7]}', 422, "text 2 is int"),
    (b'{"texts": [["a", "b", "c"]]}', 422, "text 1 is list"),
    (b'{"texts": [["a"]]}', 422, "text 1 is list"),
    (b'{"texts": [{"text": "a", "txt": 1}]}', 422, "unknown key 'txt'"),
    (b'{"texts": [{"label": "a"}]}', 422, "unknown key 'label'"),
    (b'{"texts": ["a"], "top": true}', 422, "no whole number from 1 to 100"),
    (b'{"texts": ["a"], "prompt": "x"}', 422, "prompt"),
    (b'{"texts": ["a", "b", "c", "d", "e"]}', 422, "5 texts; the limit is 4. Send them in several requests"),
    (b'{"texts": ["a", "%s"]}' % (b"x" * 51), 422, "text 2 51 characters; the limit is 50. Send a shorter"),
    (b'{"texts": ["%s"]}' % (b"x" * 2000), 413, "2,015 bytes; the limit is 1,000. Send fewer"),
]


@pytest.mark.parametrize(("body", "status", "message"), REFUSED)
def test_a_wrong_body_is_refused_with_value_limit_and_fix(slow: Server, body: bytes, status: int, message: str) -> None:
    code, content = slow.send("POST", "/predict", body)
    assert code == status
    said = " ".join(f"{e['where']} {e['what']} {e['fix']}" for e in content["errors"])
    assert message in said


def test_other_paths_methods_and_types_are_refused_and_a_failure_of_the_model_is_one_answer(slow: Server) -> None:
    assert slow.send("GET", "/predict")[0] == 405
    assert slow.send("GET", "/../etc/passwd")[0] == 404
    assert slow.send("POST", "/predict", b'{"texts": ["a"]}', **{"Content-Type": "text/plain"})[0] == 415
    assert slow.send("POST", "/predict", b"x", **{"Content-Encoding": "gzip"})[0] == 415
    for text in ("fail", "panic"):
        status, content = slow.send("POST", "/predict", json.dumps({"texts": [text]}).encode())
        assert (status, content["errors"][0]["what"]) == (500, "RuntimeError: out of luck.")
    assert len(slow.ask(["fine"])) == 1


def test_more_requests_than_the_limit_get_429_and_a_client_that_leaves_frees_its_place(slow: Server) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n"
    gone = [slow.connect(head + b'{"texts": ["a"]}') for _ in range(3)]
    wait_for(slow, "pocketbert_requests_in_flight 3\n")
    status, content = slow.send("POST", "/predict", b'{"texts": ["a"]}')
    assert status == 429
    assert content["errors"][0]["what"] == "3 are being answered or wait; the limit is 3."
    for client in gone:
        client.close()
    wait_for(slow, "pocketbert_requests_in_flight 0\n")
    assert len(slow.ask(["a"])) == 1


def test_slow_clients_are_cut_off_and_hold_no_place(slow: Server) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 16\r\n"
    in_head, in_body, silent = slow.connect(head), slow.connect(head + b'\r\n{"te'), slow.connect(b"")
    huge = slow.connect(head.replace(b"16", b"99999999999") + b"\r\n")
    chunked = slow.connect(head.replace(b"Content-Length: 16", b"Transfer-Encoding: chunked") + b"\r\n")
    chunked.sendall(b"7d0\r\n" + b"x" * 2000 + b"\r\n")
    assert len(slow.ask(["a"])) == 1
    assert b"413" in huge.recv(100)
    assert b"413" in chunked.recv(100)
    assert b"408" in in_body.recv(100)
    assert in_head.recv(100) == silent.recv(100) == b""  # closed
    many = [slow.connect(b"") for _ in range(31)]
    assert slow.send("POST", "/predict", b'{"texts": ["a"]}')[0] == 503
    for client in [*many, huge, chunked, in_body]:
        client.close()
    deadline = time.monotonic() + 30
    while slow.send("POST", "/predict", b'{"texts": ["a"]}')[0] == 503 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(slow.ask(["a"])) == 1


def wait_for(server: Server, figure: str) -> None:
    deadline = time.monotonic() + 30
    while figure not in server.send("GET", "/metrics")[1]:
        assert time.monotonic() < deadline, figure
        time.sleep(0.01)


# the process


def test_sigterm_lets_requests_in_flight_be_answered(packed: Path) -> None:
    with serving(packed, 1.0, code=_SLOW) as server, ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(server.ask, [text]) for text in ("no", "yes")]
        wait_for(server, "pocketbert_requests_in_flight 2\n")
        server.process.send_signal(signal.SIGTERM)
        assert [a.result() for a in answers] == [expected(load(packed), [text]) for text in ("no", "yes")]
        assert server.process.wait(30) == -signal.SIGTERM


def test_the_command_answers_the_names_of_its_proxies_and_stops_in_order(packed: Path, cli: Callable[..., Any]) -> None:
    with serving(packed, "--json", "--name", "models.example", "--name", "second.example") as server:
        names = ("Models.example", "second.example:80", "localhost", "other.example")
        assert [server.send("GET", "/health", Host=name)[0] for name in names] == [200, 200, 200, 421]
        taken = cli("serve", packed, "--port", server.port)
        assert taken.exit_code == 2
        assert "Choose another --port" in taken.stderr
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 143


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *[(name, 200) for name in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:1")],
        *[
            (name, 421)
            for name in ("evil.example", "evil.example:8", "localhost.evil.example", "127.0.0.1.evil.example")
        ],
    ],
)
def test_only_hosts_of_this_machines_names_are_answered(slow: Server, host: str, status: int) -> None:
    got, content = slow.send("GET", "/health", Host=host)
    assert got == status, content
    if status == 421:
        assert content["errors"][0]["where"] == "Host"
        assert "--name NAME" in content["errors"][0]["fix"]


def test_the_page_and_the_description_ask_no_other_host(slow: Server) -> None:
    status, page = slow.send("GET", "/")
    assert status == 200
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", page)
    _, description = slow.send("GET", "/openapi.json")
    assert {*description["paths"]} == {"/predict", "/health", "/metrics"}
    assert description["components"]["schemas"]["Texts"]["properties"]["texts"]["maxItems"] == 4
    assert len(slow.ask(**description["components"]["schemas"]["Texts"]["example"])) == 1


def test_the_packets_of_an_answer_do_not_wait_for_each_other(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []

    def answer_one(server: Any, sockets: list[socket.socket]) -> None:
        with sockets[0] as listening, socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
            with accepted:
                waits.append(not accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr("uvicorn.Server.run", answer_one)
    serve(load_callers(packed, callers=1), ServerOptions(port=0), joins=False)
    assert waits == [False]


def test_without_the_extra_the_error_is_its_command(cli: Callable[..., Any], packed: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("pocketbert.runtime.server.version_of", lambda name: None)
    failed = cli("serve", packed)
    assert failed.exit_code == 4
    assert "pip install 'pocketbert[serve]'" in failed.stderr
