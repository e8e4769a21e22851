"""Compute the requests of the HTTP server: they wait in one queue, and the thread of each model takes the next one and computes it.

Requests that wait together become one call only where `try_joining` has found that answers stay the same and that it is faster:
dynamic int8 takes its ranges from all rows of a batch, so that an answer would depend on other people's texts.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbert.core.errors import Problem, first_line
from pocketbert.core.heads.question_answering import QuestionAnsweringHead
from pocketbert.core.predict.answers import answer_fields
from pocketbert.core.predict.predictor import Batching, run_rows
from pocketbert.runtime.server_requests import ReceivedRequest, RequestError, ServerOptions

if TYPE_CHECKING:
    from starlette.requests import Request

    from pocketbert.core.predict.inputs import Encoded
    from pocketbert.core.predict.predictor import Matrix
    from pocketbert.runtime.model import AnyText, Model

_TOKENS_PER_BYTE = 4
"""Most tokens that the windows of a request may have for each byte that a body may have: usual windows read a token at most twice."""
_JOINED_TEXTS = 32
"""Most texts of requests that are joined: larger batches gain nothing on a CPU."""
_TRIED_LENGTHS, _TRIED_ROWS, _TRIED_BATCHES = (8, 24), 16, (2, 5, 16)
_LEAST_GAIN = 1.15
"""How much faster per text a batch has to be than single texts."""


@dataclass(eq=False)
class _Call:
    """A request in the queue, and the future of its answers as JSON objects."""

    received: ReceivedRequest
    answers: asyncio.Future[list[dict[str, Any]]]


class RequestQueue:
    """The requests that wait, and the threads that compute them: one for each model.

    The threads take requests themselves; over the event loop, a core would be idle between two of them until the loop has time.

    Args:
        models: One for each thread.
        options: Limits.
        joins: Whether requests that wait together are computed in one call.
    """

    def __init__(self, models: Sequence[Model], options: ServerOptions, joins: bool) -> None:
        self.models, self.options, self.joins = models, options, joins
        self.in_flight = self.joined = 0
        self._stopped = False
        self._waiting: deque[_Call] = deque()
        self._changed = threading.Condition()
        """Held while the fields above are read and changed together; notified when a request arrives and when the server stops."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start one thread for each model, and tell them to stop at the end of the `async with` block, without waiting for them.

        The server leaves the block only when no request is left.
        """
        loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(len(self.models), "predict")
        for model in self.models:
            threads.submit(self._work, model, loop)
        try:
            yield
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            threads.shutdown(wait=False)

    def refuse_if_full(self) -> None:
        """Raise RequestError: 429 if as many requests are in flight as the limit allows, 503 if the server is stopping."""
        if self._stopped:
            raise RequestError(503, Problem("server", "is stopping.", "Ask another one."))
        if self.in_flight >= self.options.requests:
            what = f"{self.in_flight} are being answered or wait; the limit is {self.options.requests}."
            fix = "Try again after a second, or start the server with a larger --max-requests."
            raise RequestError(429, Problem("requests", what, fix))

    async def answer(self, received: ReceivedRequest, request: Request) -> list[dict[str, Any]]:
        """Wait until a request is computed, and return its answers; it leaves the queue if the client goes away.

        Raises:
            RequestError: 429 if too many requests are in flight, 503 if the server is stopping, 499 if the client closed the
                connection, 422 if a context would be read in too many windows.
            InputError: If the model refuses a text.
        """
        self.refuse_if_full()
        call = _Call(received, asyncio.get_running_loop().create_future())
        closed = asyncio.ensure_future(_wait_until_closed(request))
        with self._changed:
            self.in_flight += 1
            self._waiting.append(call)
            self._changed.notify()
        try:
            awaited: list[asyncio.Future[Any]] = [call.answers, closed]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not call.answers.done():
                raise RequestError(499, Problem("client", "closed the connection."))
            return call.answers.result()
        finally:
            closed.cancel()
            call.answers.cancel()
            with self._changed:
                self.in_flight -= 1
                with contextlib.suppress(ValueError):  # it has been taken
                    self._waiting.remove(call)

    def _work(self, model: Model, loop: asyncio.AbstractEventLoop) -> None:
        """Compute the requests of the queue with one model until the server stops; the loop hands the answers over."""
        while calls := self._take_calls():
            outcomes = _predict(model, [call.received for call in calls], self.options.body_bytes * _TOKENS_PER_BYTE)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for them
                loop.call_soon_threadsafe(_hand_over, calls, outcomes)

    def _take_calls(self) -> list[_Call]:
        """Wait for a request; return it with those of the same prompt that are to be computed together with it; none if the server stops."""
        with self._changed:
            while not self._waiting and not self._stopped:
                self._changed.wait()
                # --join-ms: while others are being computed, more will come; another thread may take it meanwhile, or its client may go
                seconds = self.options.join_ms / 1000 if self.joins else 0.0
                self._changed.wait_for(lambda: self._stopped or len(self._waiting) >= self.in_flight, seconds)
            if self._stopped:
                return []
            calls = [self._waiting.popleft()]
            prompt, texts = calls[0].received.prompt, len(calls[0].received.texts)
            while self.joins and self._waiting and self._waiting[0].received.prompt == prompt:
                texts += len(self._waiting[0].received.texts)
                if texts > _JOINED_TEXTS:
                    break
                calls.append(self._waiting.popleft())
            self.joined += len(calls) if len(calls) > 1 else 0
            if self._waiting:  # this thread may have been told of a request that it leaves to another one
                self._changed.notify()
            return calls


def _hand_over(calls: Sequence[_Call], outcomes: Sequence[list[dict[str, Any]] | Exception]) -> None:
    """Give their answers, or the error, to the requests whose clients still wait."""
    for call, outcome in zip(calls, outcomes, strict=True):
        if call.answers.done():
            continue  # its client has gone
        if isinstance(outcome, Exception):
            call.answers.set_exception(outcome)
        else:
            call.answers.set_result(outcome)


def _predict(
    model: Model, requests: Sequence[ReceivedRequest], most_tokens: int
) -> list[list[dict[str, Any]] | Exception]:
    """Compute requests of one prompt in one call; return the answers to each request, or the exception that it raised.

    If the call fails, each request is computed by itself, so that none fails because of another one.
    """
    try:
        _check_windows(model, [text for one in requests for text in one.texts], most_tokens)
        answers = iter(model.predict([text for one in requests for text in one.texts], prompt=requests[0].prompt))
        return [
            [answer_fields(answer, one.top) for _, answer in zip(one.texts, answers, strict=False)] for one in requests
        ]
    except BaseException as error:  # a panic in the tokenizer's Rust code is no Exception, and must not end the thread
        failure = error if isinstance(error, Exception) else RuntimeError(first_line(error))
        return [failure] if len(requests) == 1 else [_predict(model, [one], most_tokens)[0] for one in requests]


def _check_windows(model: Model, texts: Sequence[AnyText], most_tokens: int) -> None:
    """Refuse questions that leave so little room for their contexts that these would be read in too many windows to hold in memory.

    A context is taken to have a token for each character. Texts of other tasks than question-answering are not checked.

    Raises:
        RequestError: 422 if the windows of all texts have more tokens than `most_tokens`.
    """
    head, longest, tokens = model.head, model.max_length, 0
    for number, text in enumerate(texts, 1):
        if isinstance(text, str) or not isinstance(head, QuestionAnsweringHead):
            return
        question, context = text
        room = longest - len(model.tokenizer.encode([(question, "")])[0].ids)
        if room < 1:
            continue  # `Model.predict` raises the error
        step = room - min(head.settings.stride, room - 1)
        tokens += longest * (1 + max(0, len(context) - room) // step)
        if tokens > most_tokens:
            what = f"its context and those before it are read in windows of about {tokens:,} tokens in all; the limit is {most_tokens:,}."
            fix = "Shorten its question or context, send fewer texts, or start the server with a larger --max-body-mb."
            raise RequestError(422, Problem(f"text {number}", what, fix))


async def _wait_until_closed(request: Request) -> None:
    """Wait until the client has closed the connection, whose request has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def try_joining(model: Model) -> bool:
    """Return whether texts of several requests may be computed in one batch, and whether this is worth it.

    Rows of random token ids are run alone and in batches: all numbers must be equal, and batches must be at least 15 % faster per
    text. That is so for most fp32 files, and not for files with dynamic int8. Without a trial it is False for the engine `fastest`,
    engines that compute row by row, and models with inputs besides the text.
    """
    predictor, tokenizer = model.predictor, model.tokenizer
    takes_turns = hasattr(predictor, "answered")  # the engine `fastest`
    if getattr(predictor, "computes_rows_apart", False) or tokenizer.reader is not None or takes_turns:
        return False
    draws, gains = np.random.default_rng(0), []
    for length in _TRIED_LENGTHS:
        frame = tokenizer.frame(length)
        is_text = frame.places.parts >= 0 if frame.places is not None else np.ones(len(frame), bool)
        ids = draws.integers(0, tokenizer.largest_id + 1, (_TRIED_ROWS, len(frame)))
        rows = [replace(frame, ids=np.where(is_text, drawn, frame.ids)) for drawn in ids]
        alone_s, alone = _time_batches(model, rows, 1)
        for batch in _TRIED_BATCHES:
            seconds, outputs = _time_batches(model, rows, batch)
            if not all(np.array_equal(a, b) for a, b in zip(alone, outputs, strict=True)):
                return False
        gains.append(alone_s / seconds)
    return float(np.mean(gains)) >= _LEAST_GAIN


def _time_batches(model: Model, rows: Sequence[Encoded], batch: int) -> tuple[float, list[Matrix]]:
    """Run tokenized rows in batches of a size; return the best of three times in seconds, and the outputs."""
    times = []
    outputs: list[Matrix] = []
    for _ in range(3):
        began = time.perf_counter()
        outputs = run_rows(model.predictor, model.tokenizer, rows, model.head.task, Batching(rows=batch))
        times.append(time.perf_counter() - began)
    return min(times), outputs
