"""A language model behind an address, against a small local server that speaks OpenAI's chat protocol."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pocketbert.api import TeachOptions, teach
from pocketbert.core.errors import InputError, MachineError
from pocketbert.pipeline.teach import endpoint
from support.tiny_texts import KEYWORDS, LABELS, task_rows, write_lines

ROWS = 6
PROMPT = "Which of these is it?\n{labels}\nText: {text}\nAnswer with the letter alone."


class Server(HTTPServer):
    """Answers with the label whose keyword is in the text; what it was sent stays in `asked`.

    Attributes:
        asked: Bodies of the requests, with their headers.
        statuses: Statuses of the next answers, before it answers well.
        logprobs: Whether it gives log-probabilities.
        says: What it says instead of the letter, if anything.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.logprobs, self.says = True, ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        answer = json.dumps(self.answer(body) if status == 200 else {"error": "not now"}).encode()
        self.send_response(status)
        self.send_header("Retry-After", "0")
        if status == 302:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        self.server.asked.append({"path": self.path, "key": self.headers.get("Authorization")})
        self.send_error(404)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        text = body["messages"][0]["content"].partition("Text: ")[2]
        right = next(i for i, name in enumerate(LABELS) if any(f" {word}" in f" {text}" for word in KEYWORDS[name]))
        letter = self.server.says or "ABC"[right]
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": letter}}
        if body.get("logprobs") and self.server.logprobs:
            likely = [(" " + "ABC"[right], math.log(0.8)), ("ABC"[right - 1], math.log(0.1)), ("The", math.log(0.1))]
            choice["logprobs"] = {"content": [{"top_logprobs": [{"token": t, "logprob": p} for t, p in likely]}]}
        return {"choices": [choice], "usage": {"prompt_tokens": 50, "completion_tokens": 1}}

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "rows.jsonl", task_rows(ROWS, 1))


@pytest.fixture
def options(tmp_path: Path, server: Server) -> dict[str, Any]:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT)
    labels = {"lamp": "light", "music": "music", "timer": "time"}
    return {"endpoint": server.url, "endpoint_model": "tiny", "prompt": prompt, "labels": labels, "prices": (1.0, 2.0)}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_log_probabilities_of_the_letters_are_the_answer_and_nothing_is_asked_twice(
    tmp_path: Path, data: Path, server: Server, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    report = teach([], data, tmp_path / "out.jsonl", TeachOptions(**options))
    rows = read(report.output)
    assert all(row["teacher"][row["label"]] == pytest.approx(8 / 9, abs=1e-6) for row in rows)
    assert (report.right, report.labelled, len(server.asked)) == (1, ROWS, ROWS)
    asked = server.asked[0]
    assert (asked["path"], asked["model"], asked["key"]) == ("/v1/chat/completions", "tiny", "Bearer secret")
    assert "A. lamp: light\nB. music\nC. timer: time" in asked["messages"][0]["content"]
    assert f"{ROWS} requests" in report.notes[0]
    assert f"cost {(50 * ROWS + 2 * ROWS) / 1e6:.4f}" in report.notes[0]
    again = teach([], data, tmp_path / "out.jsonl", TeachOptions(**options, overwrite=True))
    assert (read(again.output), len(server.asked)) == (rows, ROWS)
    assert f"{ROWS} answers from out.jsonl.asked" in again.notes[0]
    assert "secret" not in (tmp_path / "out.jsonl.asked").read_text() + report.output.read_text()


def test_without_log_probabilities_samples_vote(
    tmp_path: Path, data: Path, server: Server, options: dict[str, Any]
) -> None:
    server.logprobs = False
    report = teach([], data, tmp_path / "out.jsonl", TeachOptions(**options, samples=3))
    assert all(row["teacher"][row["label"]] == 1 for row in read(report.output))
    assert len(server.asked) == 1 + 3 * ROWS
    server.says = "perhaps"
    with pytest.raises(InputError, match="answers with none of the letters A to C"):
        teach([], data, tmp_path / "other.jsonl", TeachOptions(**options, samples=1))


def test_a_busy_server_is_asked_again_and_a_refusal_ends_the_command(
    tmp_path: Path, data: Path, server: Server, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(endpoint.time, "sleep", waited.append)
    server.statuses = [429, 503]
    report = teach([], data, tmp_path / "out.jsonl", TeachOptions(**options, per_minute=600))
    assert len(server.asked) == ROWS + 2
    assert report.rows == ROWS
    assert waited[:1] == [0.0]
    server.statuses = [401]
    with pytest.raises(InputError, match="refuses the request: 401"):
        teach([], data, tmp_path / "a.jsonl", TeachOptions(**options))
    server.statuses = [500] * 6
    with pytest.raises(MachineError, match="does not answer after 6 tries"):
        teach([], data, tmp_path / "b.jsonl", TeachOptions(**options))


def test_a_redirect_is_not_followed_as_the_key_would_go_there(
    tmp_path: Path, data: Path, server: Server, options: dict[str, Any]
) -> None:
    server.statuses = [302]
    with pytest.raises(InputError, match="refuses the request: 302"):
        teach([], data, tmp_path / "out.jsonl", TeachOptions(**options))
    assert [asked["path"] for asked in server.asked] == ["/v1/chat/completions"]


def test_the_answer_behind_one_that_was_cut_off_is_kept(
    tmp_path: Path, data: Path, server: Server, options: dict[str, Any]
) -> None:
    (tmp_path / "out.jsonl.asked").write_text('["key", {"mess')
    for again in (False, True):
        teach([], data, tmp_path / "out.jsonl", TeachOptions(**options, overwrite=again))
    assert len(server.asked) == ROWS, "all answers were found again"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"endpoint": "localhost:8000"}, "is no address"),
    ({"labels": {"a": "a"}}, "names the labels that a language model chooses from"),
    ({"prompt": None}, "what is the language model asked"),
    ({"labels": {str(i): str(i) for i in range(30)}}, "chooses among at most 26"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(
    tmp_path: Path, data: Path, server: Server, options: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        teach([], data, tmp_path / "out.jsonl", TeachOptions(**{**options, **change}))
    assert message in str(caught.value)
    assert server.asked == []
