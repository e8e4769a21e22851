"""A language model behind an address, against a small local server that speaks OpenAI's chat protocol."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import signal
import subprocess
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pocketbert import TeachReport
from pocketbert.api import TeachOptions, teach
from pocketbert.core.errors import InputError, MachineError
from pocketbert.pipeline.teach import endpoint
from pocketbert.pipeline.teach.answering import AskedRow
from support.commands import command, one_core
from support.tiny_texts import KEYWORDS, LABELS, task_rows, write_lines

ROWS = 6
PROMPT = "Which of these is it?\n{labels}\nText: {text}\nAnswer with the letter alone."
CUT_OFF = 203
"""Status of an answer whose end the server does not send."""
GUARD_S = 60
"""Seconds after which a test that hangs fails."""


class Server(ThreadingHTTPServer):
    """Answers with the label whose keyword is in the text."""

    request_queue_size = 32
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []  # bodies of the requests, with their headers
        self.answered = Counter[str]()  # how often each content was answered well
        self.statuses: list[int] = []  # of the next answers, before it answers well
        self.logprobs = True  # whether it gives log-probabilities
        self.says = ""  # instead of the letter, if anything
        self.tokens = list[dict[str, float]]()  # probabilities by token of the answer, instead of those of the letters
        self.holding: int | None = None  # once so many were answered, no other is
        self.retry_after = 0  # seconds after which it wants to be asked again
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def take(self, request: dict[str, Any]) -> int:
        """Take a request, and return the status of its answer when it may be answered."""
        with self.changed:
            self.asked.append(request)
            status = self.statuses.pop(0) if self.statuses else 200
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.holding is None or self.answered.total() < self.holding, GUARD_S)
            if status == 200:
                self.answered[request["messages"][0]["content"]] += 1
                self.changed.notify_all()
        return status

    def release(self) -> Counter[str]:
        """Answer what is held back, and all that follows; returns what was answered before."""
        with self.changed:
            before, self.answered, self.holding = self.answered, Counter(), None
            self.changed.notify_all()
        return before

    def handle_error(self, *_: Any) -> None:
        """Print nothing where the command was killed before it was answered."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.take({"path": self.path, "key": self.headers.get("Authorization"), **body})
        answer = json.dumps(self.answer(body) if status == 200 else {"error": "not now"}).encode()
        if status == CUT_OFF:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{")
            return
        self.send_response(status)
        self.send_header("Retry-After", str(self.server.retry_after))
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
        likely = {" " + "ABC"[right]: 0.8, "ABC"[right - 1]: 0.1, "The": 0.1}
        if body.get("logprobs") and self.server.logprobs:
            tokens = (self.server.tokens or [likely])[: body["max_tokens"]]
            choice["logprobs"] = {"content": [{**listed(p)[0], "top_logprobs": listed(p)} for p in tokens]}
        return {"choices": [choice], "usage": {"prompt_tokens": 50, "completion_tokens": 1}}

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def listed(probabilities: dict[str, float]) -> list[dict[str, Any]]:
    """Tokens with log-probabilities, as the protocol lists them."""
    return [{"token": token, "logprob": math.log(p)} for token, p in probabilities.items()]


class Waits(threading.Event):
    """An event that nobody waits for; how long they would have is in `asked`."""

    asked: list[float] = []  # noqa: RUF012 - emptied by the fixture

    def wait(self, timeout: float | None = None) -> bool:
        self.asked.append(timeout or 0.0)
        return self.is_set()


class SlowNumber(float):
    """A number by which division takes so long that other threads come between."""

    def __rtruediv__(self, other: float) -> float:
        time.sleep(0.005)
        return other / float(self)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(endpoint, "Event", Waits)
    monkeypatch.setattr(Waits, "asked", [])
    return Waits.asked


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


Ask = Callable[..., TeachReport]


@pytest.fixture
def ask(tmp_path: Path, data: Path, options: dict[str, Any]) -> Ask:
    """`ask(rows=None, to="out", **changes)`: have rows labelled, those of `data` unless others are given."""

    def run(rows: list[dict[str, Any]] | None = None, to: str = "out", **changes: Any) -> TeachReport:
        if rows is not None:
            write_lines(data, rows)
        return teach([], data, tmp_path / f"{to}.jsonl", TeachOptions(**{**options, **changes}))

    return run


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_log_probabilities_of_the_letters_are_the_answer_and_nothing_is_asked_twice(
    tmp_path: Path, server: Server, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    report = ask()
    rows = read(report.output)
    assert all(row["teacher"][row["label"]] == pytest.approx(8 / 9, abs=1e-6) for row in rows)
    assert (report.right, report.labelled, len(server.asked)) == (1, ROWS, ROWS)
    asked = server.asked[0]
    assert (asked["path"], asked["model"], asked["key"]) == ("/v1/chat/completions", "tiny", "Bearer secret")
    assert "A. lamp: light\nB. music\nC. timer: time" in asked["messages"][0]["content"]
    assert f"{ROWS} requests" in report.notes[0]
    assert f"cost {(50 * ROWS + 2 * ROWS) / 1e6:.4f}" in report.notes[0]
    again = ask(overwrite=True)
    assert (read(again.output), len(server.asked)) == (rows, ROWS)
    assert f"{ROWS} answers from out.jsonl.asked" in again.notes[0]
    assert "secret" not in (tmp_path / "out.jsonl.asked").read_text() + report.output.read_text()


@pytest.mark.parametrize(
    ("labels", "said", "answer", "bad", "refusal"),
    [
        (None, "", None, "perhaps", "letters A to C"),
        (30, "12. label 2", "label 2", "1", "numbers 10 to 39"),  # 1 begins ten numbers
    ],
)
def test_without_log_probabilities_samples_vote(
    labels: int | None, said: str, answer: str | None, bad: str, refusal: str, server: Server, ask: Ask
) -> None:
    server.logprobs, server.says = False, said
    changes = {"labels": {f"label {i}": f"label {i}" for i in range(labels)}} if labels else {}
    report = ask(samples=3, **changes)
    assert all(row["teacher"][answer or row["label"]] == 1 for row in read(report.output))
    assert len(server.asked) == 1 + 3 * ROWS
    server.says = bad
    with pytest.raises(InputError, match=f"answers with none of the {refusal}"):
        ask(to="other", samples=1, **changes)


def test_a_row_without_a_letter_among_its_log_probabilities_votes_by_itself(server: Server, ask: Ask) -> None:
    server.tokens = [{"The": 1.0}]
    report = ask([{"text": "a lamp"}, {"text": "the song"}, {"text": "a bulb"}], samples=2)
    assert [max(row["teacher"], key=row["teacher"].get) for row in read(report.output)] == ["lamp", "music", "lamp"]
    assert len(server.asked) == 3 * (1 + 2)


def test_a_busy_server_is_asked_again(server: Server, ask: Ask, waits: list[float]) -> None:
    server.statuses = [429, CUT_OFF, 503]
    assert ask(per_minute=600).rows == ROWS
    assert len(server.asked) == ROWS + 3
    assert waits[:1] == [0.0]


@pytest.mark.parametrize(
    ("statuses", "error", "said"),
    [
        ([401], InputError, "refuses the request: 401"),
        ([500] * 6, MachineError, "does not answer after 6 tries"),
        ([302], InputError, "refuses the request: 302"),  # it is not followed, as the key would go there
    ],
)
def test_a_refusal_ends_the_command(
    statuses: list[int], error: type[Exception], said: str, server: Server, ask: Ask, waits: list[float]
) -> None:
    server.statuses = list(statuses)
    with pytest.raises(error, match=said):
        ask()
    assert [asked["path"] for asked in server.asked] == ["/v1/chat/completions"] * len(statuses)


def test_the_answer_behind_one_that_was_cut_off_is_kept(
    tmp_path: Path, data: Path, server: Server, options: dict[str, Any], ask: Ask
) -> None:
    (tmp_path / "out.jsonl.asked").write_text('["key", {"mess')
    teacher, row = endpoint.open_endpoint(TeachOptions(**options), tmp_path / "out.jsonl"), read(data)[0]
    one, same = (teacher.answer([AskedRow(row["text"], None)])[0].tolist() for _ in range(2))
    assert one == same
    for again in (False, True):
        ask(overwrite=again)
    assert len(server.asked) == ROWS, "all answers were found again"


def test_a_cache_of_an_earlier_version_is_read(tmp_path: Path, data: Path, server: Server, ask: Ask) -> None:
    lines = []
    for row in read(data):
        content = PROMPT.replace("{labels}", "A. lamp: light\nB. music\nC. timer: time").replace("{text}", row["text"])
        body = {"logprobs": True, "max_tokens": 1, "messages": [{"content": content, "role": "user"}], "model": "tiny"}
        body |= {"temperature": 0, "top_logprobs": 20}
        asked = json.dumps([f"{server.url}/chat/completions", body, 0], separators=(",", ":"))
        choice = {"message": {}, "logprobs": {"content": [{"top_logprobs": [{"token": "B", "logprob": -0.5}]}]}}
        lines.append(json.dumps([hashlib.sha256(asked.encode()).hexdigest(), choice]))
    (tmp_path / "out.jsonl.asked").write_text("\n".join(lines) + "\n")
    assert [row["teacher"] for row in read(ask().output)] == [{"lamp": 0, "music": 1, "timer": 0}] * ROWS
    assert server.asked == []


def test_several_requests_are_under_way_at_once_and_rows_keep_their_order(server: Server, ask: Ask) -> None:
    one = ask(task_rows(9, 1), to="one", parallel=1).output.read_bytes()
    server.asked.clear()
    server.answered.clear()
    server.holding = 1  # the first request is alone, since it shows whether there are log-probabilities
    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(ask, to="four", parallel=4)
        with server.changed:
            assert server.changed.wait_for(lambda: len(server.asked) == 1 + 4, GUARD_S)
            assert not server.changed.wait_for(lambda: len(server.asked) > 1 + 4, 0.2), "more than four are under way"
        server.release()
    assert report.result().output.read_bytes() == one
    assert "9 requests" in report.result().notes[0] and "450 tokens read" in report.result().notes[0]


def test_rows_with_one_prompt_are_asked_about_once(server: Server, ask: Ask) -> None:
    answers = [row["teacher"] for row in read(ask([*task_rows(ROWS, 1), *task_rows(ROWS, 1)]).output)]
    assert (answers[:ROWS], len(server.asked)) == (answers[ROWS:], ROWS)


def test_the_limit_of_requests_holds_over_all_threads(
    ask: Ask, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "time", SimpleNamespace(monotonic=lambda: 7.0))
    ask(task_rows(24, 1), per_minute=SlowNumber(600), parallel=6)
    assert sorted(waits) == pytest.approx([n / 10 for n in range(24)])


def test_answers_before_an_error_are_kept_and_nothing_is_asked_twice(server: Server, ask: Ask) -> None:
    server.statuses, server.retry_after = [200, 200, 503, 403], 60
    with pytest.raises(InputError, match="refuses the request: 403") as caught:
        ask(parallel=2)
    assert any("out.jsonl.asked" in note for note in caught.value.__notes__)
    assert 2 <= server.answered.total() <= ROWS - 2
    for thread in threading.enumerate():
        if thread.name.startswith("ask_"):
            thread.join(10)
            assert not thread.is_alive(), "it would send a request after the pause that the server asked for"
    assert ask(parallel=2).right == 1
    assert {*server.answered.values()} == {1} and server.answered.total() == ROWS


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_killed_command_has_kept_its_answers_and_does_not_wait_for_the_server(
    tmp_path: Path, server: Server, options: dict[str, Any], sent: signal.Signals, code: int, ask: Ask
) -> None:
    data, output = write_lines(tmp_path / "rows.jsonl", task_rows(30, 1)), tmp_path / "out.jsonl"
    server.holding = 10
    words = ["--endpoint", server.url, "--endpoint-model", "tiny", "--prompt", options["prompt"], "--parallel", 4]
    labels = [word for name, text in options["labels"].items() for word in ("--zero-shot", f"{name}: {text}")]
    argv = one_core(command("teach", "--data", data, "-o", output, *words, *labels))
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(argv, stderr=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        with server.changed:
            assert server.changed.wait_for(lambda: len(server.asked) == 14, GUARD_S)
        process.send_signal(sent)
        _, err = process.communicate(timeout=GUARD_S)  # the server holds four requests back, and would for longer
    assert process.returncode == code, err
    assert ("Finished work is kept; run the same command to continue." in err) is (sent is signal.SIGINT)
    before = server.release()
    with server.changed:
        assert server.changed.wait_for(lambda: server.answered.total() == 4, GUARD_S)
        server.answered.clear()
    assert (ask().right, server.answered.total()) == (1, 20)
    assert not {*before} & {*server.answered}


def test_answers_stay_in_the_file_and_not_in_memory(tmp_path: Path, server: Server, options: dict[str, Any]) -> None:
    rows = [AskedRow(row["text"], None) for row in task_rows(40, 1)]
    server.says = "A" + " " * 20_000
    given = []
    for _ in range(2):
        tracemalloc.start()
        teacher = endpoint.open_endpoint(TeachOptions(**options), tmp_path / "out.jsonl")
        given.append([answer.tolist() for answer in teacher.answer(rows)])
        server.asked.clear()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 5_000 * len(rows)
    assert given[0] == given[1]
    assert server.answered.total() == len(rows)


NUMBERS: dict[str, tuple[int, list[dict[str, float]], dict[range, float]]] = {
    "a token each": (
        30,
        [{"12": 0.6, " 17": 0.2, "The": 0.1, "9": 0.1}],
        {range(2, 3): 0.75, range(7, 8): 0.25},
    ),
    "a token per digit": (
        120,
        [{"1": 0.8, "2": 0.2}, {"0": 0.9, "1": 0.1}, {"4": 0.75, "5": 0.25}],
        {range(4, 5): 0.54, range(5, 6): 0.18, range(10, 20): 0.008, range(100, 120): 0.01},
    ),
    "a blank before": (30, [{" ": 1.0}, {"1": 1.0}, {"3": 0.5, "4": 0.5}], {range(3, 5): 0.5}),
    "one number with this digit": (
        51,
        [{"6": 0.5, "1": 0.5}, {"0": 0.8, "1": 0.2}],
        {range(50, 51): 4 / 9, range(10): 5 / 90},
    ),
    "cut off": (30, [{"1": 0.6, "2": 0.4}], {range(10): 0.06, range(10, 20): 0.04}),
    "more behind it": (30, [{"12": 0.5, "13": 0.5}, {".": 0.5, "0": 0.5}], {range(2, 4): 0.5}),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_more_labels_than_letters_have_numbers(name: str, server: Server, ask: Ask) -> None:
    count, server.tokens, expected = NUMBERS[name]
    report = ask(labels={f"label {i}": f"label {i}" for i in range(count)})
    wanted = [next((p for places, p in expected.items() if i in places), 0.0) for i in range(count)]
    assert [*read(report.output)[0]["teacher"].values()] == pytest.approx(wanted, abs=1e-6)
    first = 10 if count <= 90 else 100
    lines = [f"{first + i}. label {i}" for i in range(count)]
    assert "\n".join(["", *lines, "Text"]) in server.asked[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"endpoint": "localhost:8000"}, "is no address"),
        ({"labels": {"a": "a"}}, "names the labels that a language model chooses from"),
        ({"prompt": None}, "what is the language model asked"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(
    change: dict[str, Any], message: str, server: Server, ask: Ask
) -> None:
    with pytest.raises(InputError, match=message):
        ask(**change)
    assert server.asked == []
