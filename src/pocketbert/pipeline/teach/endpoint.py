"""A language model behind an address that speaks OpenAI's chat protocol, as a teacher of labels.

The model is shown the labels as lettered choices and answers with a letter. If the server gives log-probabilities,
those of the letters are the answer. Else several samples vote. Answers are cached by their content in a file beside the
output, so that nothing is asked, or paid, twice. Texts are sent to the address that the user names, and nowhere else.
"""

from __future__ import annotations

import json
import math
import os
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from pocketbert.core.disk.files import sha256_json
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.host.progress import print_note
from pocketbert.pipeline.options import TeachOptions
from pocketbert.pipeline.teach.answering import AnswerForm, Array, AskedRow

_TRIES = 6
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_TIMEOUT_S = 120.0
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
        InputError: If the address is not a web address, there are too many labels, or the prompt has no place for the
            text.
    """
    assert options.endpoint is not None
    assert options.prompt is not None
    address, problems = urlsplit(options.endpoint), []
    if address.scheme not in ("http", "https") or not address.hostname:
        problems.append(
            Problem("--endpoint", f"'{options.endpoint}' is no address.", "Such as http://localhost:8000/v1")
        )
    if len(options.labels) > len(ascii_uppercase):
        what = f"{len(options.labels)} labels; a language model chooses among at most {len(ascii_uppercase)}."
        problems.append(Problem("--zero-shot", what, "Ask in several commands, or take a model of inference (-m)."))
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
        self._letters = ascii_uppercase[: len(self.names)]
        self._cache = _read_cache(cache)
        self._next_time, self._requests, self._cached = 0.0, 0, 0
        self._tokens = [0, 0]
        self._has_logprobs = True

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
        """Return the probability of each label for each row; see `Teacher.answer`.

        Raises:
            MachineError: If the server does not answer.
            InputError: If the server refuses the request, or answers with no label.
        """
        return [self._answer(row) for row in rows]

    def _answer(self, row: AskedRow) -> Array:
        """Ask about one row and return the probability of each label.

        They are the server's probabilities of the letters or, if it gives none, the shares of the letters in several
        samples.
        """
        if self._has_logprobs:
            more = {"logprobs": True, "top_logprobs": _TOP_LOGPROBS, "temperature": 0, "max_tokens": 1}
            choice = self._ask(row, more, 0)
            found = self._read_logprobs(choice)
            if found is not None:
                return found
            self._has_logprobs = False
            print_note(f"{self.title} gives no log-probabilities: {self._options.samples} samples of each text vote")
        votes: Counter[int] = Counter()
        for number in range(self._options.samples):
            choice = self._ask(row, {"temperature": 1, "max_tokens": 4}, number)
            letter = _first_letter(str((choice.get("message") or {}).get("content") or ""), self._letters)
            if letter is not None:
                votes[letter] += 1
        if not votes:
            what = f"answers with none of the letters {self._letters[0]} to {self._letters[-1]}, such as for {row.text[:60]!r}."
            raise InputError(Problem(self.title, what, "Let the prompt ask for the letter of a label alone."))
        counts = np.array([votes[i] for i in range(len(self.names))], np.float64)
        return np.asarray(counts / counts.sum())

    def _read_logprobs(self, choice: Mapping[str, Any]) -> Array | None:
        """Return the probabilities of the letters as first token, scaled to 1 in all; None if there are none."""
        content = (choice.get("logprobs") or {}).get("content") or []
        likely = content[0].get("top_logprobs") or [] if content else []
        p = np.zeros(len(self.names))
        for entry in likely:
            letter = _first_letter(str(entry.get("token", "")), self._letters)
            if letter is not None:
                p[letter] += math.exp(min(0.0, float(entry.get("logprob", -math.inf))))
        return np.asarray(p / p.sum()) if p.sum() > 0 else None

    def _ask(self, row: AskedRow, more: Mapping[str, Any], number: int) -> Mapping[str, Any]:
        """Return the server's choice (message and log-probabilities) for a row, from the cache if it was asked before.

        A new choice is added to the cache and its file.

        Args:
            row: The row.
            more: Settings of the request.
            number: Number of the sample; another sample is asked for anew.
        """
        named = [f"{letter}. {label}" for letter, label in zip(self._letters, self._options.labels, strict=True)]
        described = [
            line if text == label else f"{line}: {text}"
            for line, (label, text) in zip(named, self._options.labels.items(), strict=True)
        ]
        filled = self._prompt.replace("{labels}", "\n".join(described)).replace("{pair}", row.pair or "")
        body = {
            "model": self._options.endpoint_model,
            "messages": [{"role": "user", "content": filled.replace("{text}", row.text)}],
            **more,
        }
        key = sha256_json([self._url, body, number])
        if key in self._cache:
            self._cached += 1
            return self._cache[key]
        answer = self._send(body)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise InputError(
                Problem(self._url, "answers without choices.", "Is it a server of OpenAI's chat protocol?")
            )
        usage = answer.get("usage") or {}
        for i, name in enumerate(("prompt_tokens", "completion_tokens")):
            self._tokens[i] += int(usage.get(name) or 0)
        choice = {k: choices[0].get(k) for k in ("message", "logprobs")}
        self._cache[key] = choice
        _append_line(self._cache_file, json.dumps([key, choice], ensure_ascii=False).encode())
        return choice

    def _send(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return the parsed answer. After errors that pass, the request is sent again.

        Requests are not sent more often than the limit allows.

        Raises:
            MachineError: If the server cannot be reached, or is busy all the time.
            InputError: If the server refuses the request.
        """
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self._options.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        wait, reason = _FIRST_WAIT_S, ""
        for _ in range(_TRIES):
            self._keep_rate()
            request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)  # noqa: S310 - http and https only
            self._requests += 1
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
                wait = _read_wait(error.headers.get("Retry-After"), wait)
            except (OSError, ValueError) as error:
                reason = str(error) or type(error).__name__
            time.sleep(min(wait, _LONGEST_WAIT_S))
            wait = min(2 * wait, _LONGEST_WAIT_S)
        raise MachineError(
            f"{self._url} does not answer after {_TRIES} tries ({reason}). Run the same command again to go on."
        )

    def _keep_rate(self) -> None:
        """Wait until the next request may be sent."""
        if self._options.per_minute is None:
            return
        time.sleep(max(0.0, self._next_time - time.monotonic()))
        self._next_time = max(self._next_time, time.monotonic()) + 60 / self._options.per_minute


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key would go to an address that the user has not named."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that a redirect is an error with its status."""


_OPENER = urllib.request.build_opener(_NoRedirects)


def _append_line(path: Path, line: bytes) -> None:
    """Append a line to a file. If a kill has cut off the last line, a line break is written first."""
    with path.open("a+b") as stream:
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            line = line if stream.read(1) == b"\n" else b"\n" + line
        stream.write(line + b"\n")


def _read_cache(path: Path) -> dict[str, Mapping[str, Any]]:
    """Read the answers of earlier requests, by the digest of what was asked. A line that was cut off is left out."""
    cache: dict[str, Mapping[str, Any]] = {}
    if path.is_file():
        with path.open("rb") as stream:
            for line in stream:
                try:
                    key, choice = json.loads(line)
                except ValueError:
                    continue
                cache[str(key)] = choice
    return cache


def _first_letter(text: str, letters: str) -> int | None:
    """Return the index of the letter that a text begins with; None if it begins with a word or with another letter.

    Blanks, quotes and brackets before the letter are skipped.
    """
    start = text.strip().lstrip("(['\"*").strip()
    is_alone = len(start) == 1 or (len(start) > 1 and not start[1].isalnum())
    return letters.index(start[0]) if is_alone and start[0] in letters else None


def _read_wait(header: str | None, usual: float) -> float:
    """Return the seconds that a server asks to wait; `usual` if its header does not say."""
    try:
        return max(0.0, float(header)) if header is not None else usual
    except ValueError:
        return usual
