"""A language model behind an address that speaks OpenAI's chat protocol, as a teacher of labels.

The model is shown the labels as choices with letters, above 26 labels with numbers, and answers with one of these
codes. If the server gives log-probabilities, those of the codes are the answer. Else several samples vote. Several texts
are asked about at the same time. Answers are cached by their content in a file beside the output, so that nothing is
asked, or paid, twice. Texts are sent to the address that the user names, and nowhere else.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from string import ascii_uppercase
from threading import Event, Lock
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from pocketbert.core.disk.files import sha256_json
from pocketbert.core.errors import InputError, MachineError, Problem, note_kept
from pocketbert.core.host.progress import print_note
from pocketbert.pipeline.options import TeachOptions
from pocketbert.pipeline.teach.answering import AnswerForm, Array, AskedRow

_TRIES = 6
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_TIMEOUT_S = 600.0
_LAST_ANSWERS_S = 5.0
"""How long answers to requests under way are waited for after an error or Ctrl-C."""
_MOST_BYTES = 1 << 22
_TOP_LOGPROBS = 20
_AGAIN = (408, 409, 429, 500, 502, 503, 504)
"""Statuses after which a request is sent again."""


def open_endpoint(options: TeachOptions, output: Path) -> EndpointTeacher:
    """Make the teacher for a language model behind an address. Nothing is sent yet.

    Args:
        options: The address, the prompt and the labels.
        output: The file of the answers. The cache is a file beside it.

    Raises:
        InputError: If the address is not a web address, or the prompt has no place for the text.
    """
    assert options.endpoint is not None
    assert options.prompt is not None
    address, problems = urlsplit(options.endpoint), []
    if address.scheme not in ("http", "https") or not address.hostname:
        what = f"'{options.endpoint}' is no address."
        problems.append(Problem("--endpoint", what, "Such as http://localhost:8000/v1"))
    prompt = options.prompt.read_text(encoding="utf-8")
    if "{text}" not in prompt:
        problems.append(Problem(str(options.prompt), "has no place for the text.", "Write {text} there, and {labels}."))
    if problems:
        raise InputError(problems)
    return EndpointTeacher(options, prompt, output.with_name(f"{output.name}.asked"))


class EndpointTeacher:
    """A language model that answers with probabilities of labels; see `Teacher`.

    Args:
        options: The address, the labels, and the limits.
        prompt: Text of the prompt, with {text} and {labels}.
        cache: File of the answers that the server gave, a line of JSON each. It is not deleted at the end.
    """

    form = AnswerForm.LABEL

    def __init__(self, options: TeachOptions, prompt: str, cache: Path) -> None:
        assert options.endpoint is not None
        self._options, self._prompt, self._cache_file = options, prompt, cache
        self._url = options.endpoint.rstrip("/") + "/chat/completions"
        self.names = tuple(options.labels)
        self.title = options.endpoint_model or options.endpoint
        self._codes = _make_codes(len(self.names))
        # a number may be several tokens, and have a token for the blank before it
        self._code_tokens = 1 if len(self._codes[0]) == 1 else len(self._codes[0]) + 1
        described = [name if text == name else f"{name}: {text}" for name, text in options.labels.items()]
        self._choices = "\n".join(f"{code}. {text}" for code, text in zip(self._codes, described, strict=True))
        self._lock, self._stopped = Lock(), Event()
        self._places = _index_lines(cache)
        self._next_time, self._requests, self._cached = 0.0, 0, 0
        self._tokens = [0, 0]
        self._has_logprobs: bool | None = None

    @property
    def notes(self) -> list[str]:
        """What was sent and what it cost, for the report."""
        read, written = self._tokens
        line = f"{self._requests:,} requests, {self._cached:,} answers from {self._cache_file.name}; {read:,} tokens read, {written:,} written"
        if len(self._options.prices) == 2:
            cost = (read * self._options.prices[0] + written * self._options.prices[1]) / 1e6
            line += f", cost {cost:.4f}"
        return [line]

    def answer(self, rows: Sequence[AskedRow]) -> list[Array]:
        """Return the probability of each label for each row; see `Teacher.answer`. Rows with equal prompts are asked about once.

        Raises:
            MachineError: If the server does not answer.
            InputError: If the server refuses the request, or answers with no label.
        """
        prompts = [self._fill_prompt(row) for row in rows]
        asked = dict(zip(prompts, rows, strict=True))
        # whether the server gives log-probabilities is found out by the first row alone, whatever threads do
        alone = 1 if self._has_logprobs is None else 0
        answers = dict[str, Array]()
        for part in ([*asked][:alone], [*asked][alone:]):
            answers |= zip(part, self._ask_together([(prompt, asked[prompt]) for prompt in part]), strict=True)
        return [answers[prompt] for prompt in prompts]

    def _fill_prompt(self, row: AskedRow) -> str:
        """Return the prompt about a row."""
        filled = self._prompt.replace("{labels}", self._choices).replace("{pair}", row.pair or "")
        return filled.replace("{text}", row.text)

    def _ask_together(self, asked: Sequence[tuple[str, AskedRow]]) -> list[Array]:
        """Ask about rows, several at the same time, and return the probabilities of each, in their order.

        After an error or Ctrl-C nothing more is sent, and what is answered within `_LAST_ANSWERS_S` is still cached.
        """
        pool, futures = ThreadPoolExecutor(self._options.parallel, "ask"), list[Future[Array]]()
        try:
            for prompt, row in asked:
                futures.append(pool.submit(self._answer, prompt, row))
            wait(futures, return_when=FIRST_EXCEPTION)
            return [future.result() for future in futures if future.done()]
        except BaseException as error:
            self._stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            wait([future for future in futures if not future.cancelled()], _LAST_ANSWERS_S)
            if self._places:
                note_kept(error, self._cache_file)
            raise
        finally:
            pool.shutdown(wait=False)

    def _answer(self, prompt: str, row: AskedRow) -> Array:
        """Ask about one row and return the probability of each label.

        They are the server's probabilities of the codes or, if it gives none, the shares of the codes in several
        samples. If the first row is answered without log-probabilities, no other row is asked for them.
        """
        if self._has_logprobs is not False:
            more = {"logprobs": True, "top_logprobs": _TOP_LOGPROBS, "temperature": 0, "max_tokens": self._code_tokens}
            tokens = (self._ask(prompt, more, 0).get("logprobs") or {}).get("content") or []
            if self._has_logprobs is None:
                self._has_logprobs = any(token.get("top_logprobs") for token in tokens)
                if not self._has_logprobs:
                    who = f"{self._options.samples} samples of each text"
                    print_note(f"{self.title} gives no log-probabilities: {who} vote")
            found = self._read_logprobs(tokens[: self._code_tokens])
            if found is not None:
                return found
        votes = np.zeros(len(self.names))
        for number in range(self._options.samples):
            choice = self._ask(prompt, {"temperature": 1, "max_tokens": 3 + len(self._codes[0])}, number)
            votes[self._match_codes(str((choice.get("message") or {}).get("content") or ""))] += 1
        if not votes.any():
            kind = "letter" if self._code_tokens == 1 else "number"
            what = f"answers with none of the {kind}s {self._codes[0]} to {self._codes[-1]}, such as for {row.text[:60]!r}."
            raise InputError(Problem(self.title, what, f"Let the prompt ask for the {kind} of a label alone."))
        return np.asarray(votes / votes.sum())

    def _read_logprobs(self, tokens: Sequence[Mapping[str, Any]]) -> Array | None:
        """Return the probabilities of the codes in the tokens of an answer, scaled to 1 in all; None if there are none.

        A letter is the first token. The digits of a number may be several tokens, and the server gives the alternatives to each token
        of its answer only: if an alternative begins several numbers, each of these gets an equal part of its probability.
        """
        p, before, sure = np.zeros(len(self.names)), "", 1.0
        for place, token in enumerate(tokens):
            chosen = before + str(token.get("token", ""))
            is_last = place + 1 == len(tokens) or bool(self._match_codes(chosen))
            for entry in token.get("top_logprobs") or []:
                text = before + str(entry.get("token", ""))
                codes = self._match_codes(text, begun=True)
                # the numbers that begin with the answer so far are parted by its next token
                if codes and (is_last or text != chosen):
                    p[codes] += sure * math.exp(min(0.0, float(entry.get("logprob", -math.inf)))) / len(codes)
            if is_last:
                break
            before, sure = chosen, sure * math.exp(min(0.0, float(token.get("logprob") or 0.0)))
        return np.asarray(p / p.sum()) if p.sum() > 0 else None

    def _match_codes(self, text: str, begun: bool = False) -> list[int]:
        """Return the index of the code that a text begins with, in a list that is empty if it begins with something else.

        Blanks, quotes and brackets before the code are skipped. With `begun`, a text that is the beginning of codes gives the indices
        of these.
        """
        start = text.strip().lstrip("(['\"*").strip()
        word = re.split(r"[\W_]", start, maxsplit=1)[0]
        return [i for i, code in enumerate(self._codes) if code == word or (begun and start and code.startswith(start))]

    def _ask(self, prompt: str, more: Mapping[str, Any], number: int) -> Mapping[str, Any]:
        """Return the server's choice (message and log-probabilities) for a prompt, from the cache if it was asked before.

        A new choice is added to the file of the cache.

        Args:
            prompt: The prompt.
            more: Settings of the request.
            number: Number of the sample; another sample is asked for anew.
        """
        body = {"model": self._options.endpoint_model, "messages": [{"role": "user", "content": prompt}], **more}
        key = sha256_json([self._url, body, number])
        with self._lock:
            place = self._places.get(_shorten_key(key))
            if place is not None:
                self._cached += 1
                return _read_line(self._cache_file, place)
        answer = self._send(body)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            fix = "Is it a server of OpenAI's chat protocol?"
            raise InputError(Problem(self._url, "answers without choices.", fix))
        usage = answer.get("usage") or {}
        choice = {k: choices[0].get(k) for k in ("message", "logprobs")}
        line = json.dumps([key, choice], ensure_ascii=False).encode()
        with self._lock:
            for i, name in enumerate(("prompt_tokens", "completion_tokens")):
                self._tokens[i] += int(usage.get(name) or 0)
            self._places[_shorten_key(key)] = _append_line(self._cache_file, line)
        return choice

    def _send(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return the parsed answer. After errors that pass, the request is sent again.

        All threads together send no more often than the limit allows.

        Raises:
            MachineError: If the server cannot be reached, or is busy all the time.
            InputError: If the server refuses the request.
        """
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self._options.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        pause, reason = _FIRST_WAIT_S, ""
        for _ in range(_TRIES):
            self._await_turn()
            request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)  # noqa: S310 - http and https only
            try:
                with _OPENER.open(request, timeout=_TIMEOUT_S) as response:
                    answer = json.loads(response.read(_MOST_BYTES))
                    return answer if isinstance(answer, dict) else {}
            except urllib.error.HTTPError as error:
                text = error.read(2000).decode(errors="replace").strip()
                reason = f"{error.code} {error.reason}: {text[:200]}"
                if error.code not in _AGAIN:
                    fix = f"Check --endpoint, --endpoint-model and the key in {self._options.key_variable}."
                    raise InputError(Problem(self._url, f"refuses the request: {reason}.", fix)) from error
                pause = _read_wait(error.headers.get("Retry-After"), pause)
            except (OSError, ValueError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
            self._pause(min(pause, _LONGEST_WAIT_S) * random.uniform(1, 1.4))  # noqa: S311 - else all threads come again at once
            pause = min(2 * pause, _LONGEST_WAIT_S)
        raise MachineError(
            f"{self._url} does not answer after {_TRIES} tries ({reason}). Run the same command again to go on; --parallel 1 or "
            "--per-minute asks a busy server less."
        )

    def _await_turn(self) -> None:
        """Count a request, and wait until it may be sent; the threads take turns."""
        with self._lock:
            now = time.monotonic()
            turn = max(self._next_time, now)
            self._next_time = turn + 60 / (self._options.per_minute or math.inf)
            self._requests += 1
        self._pause(turn - now)

    def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until the command ends; the thread then ends with CancelledError."""
        if self._stopped.wait(seconds):
            raise CancelledError


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key would go to an address that the user has not named."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that a redirect is an error with its status."""


_OPENER = urllib.request.build_opener(_NoRedirects)


def _make_codes(count: int) -> list[str]:
    """Return a short text for each label by which a model names it: letters, or numbers if there are more than 26 labels.

    The numbers begin at 10, 100, ..., so that all have the same length without zeros in front, and none is the beginning of another.
    """
    if count <= len(ascii_uppercase):
        return [*ascii_uppercase[:count]]
    first = 10
    while count > 9 * first:
        first *= 10
    return [str(first + i) for i in range(count)]


def _shorten_key(key: str) -> int:
    """Return the first 64 bits of a digest: with its place in the file, an answer then takes about 120 bytes of memory."""
    return int(key[:16], 16)


def _append_line(path: Path, line: bytes) -> int:
    """Append a line to a file, and return its place there, in bytes. If a kill has cut off the last line, a line break is written first."""
    with path.open("a+b") as stream:
        place = stream.seek(0, os.SEEK_END)
        if place:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
                place += 1
        stream.write(line + b"\n")
    return place


def _read_line(path: Path, place: int) -> Mapping[str, Any]:
    """Return the answer in the line at a place of the cache."""
    with path.open("rb") as stream:
        stream.seek(place)
        choice: Mapping[str, Any] = json.loads(stream.readline())[1]
    return choice


def _index_lines(path: Path) -> dict[int, int]:
    """Return the places of the answers of earlier requests, by the digest of what was asked. A line that was cut off is left out."""
    places, place = dict[int, int](), 0
    if path.is_file():
        with path.open("rb") as stream:
            for line in stream:
                with suppress(ValueError):
                    key, _ = json.loads(line)
                    places[_shorten_key(str(key))] = place
                place += len(line)
    return places


def _read_wait(header: str | None, usual: float) -> float:
    """Return the seconds that a server asks to wait; `usual` if its header does not say."""
    try:
        return max(0.0, float(header)) if header is not None else usual
    except ValueError:
        return usual
