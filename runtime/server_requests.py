"""Requests of the HTTP server (`pocketbert serve`): limits, and from the bytes of a body to texts for `Model.predict`.

`ServerOptions` holds the address and the limits. `read_request` turns a body into a `ReceivedRequest`, or raises `RequestError` with
the status, the value, the limit and the fix.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pocketbert.core.disk.files import find_non_unicode
from pocketbert.core.errors import InputError, Problem, first_line, suggest_allowed
from pocketbert.core.predict.inputs import COLUMNS, with_columns
from pocketbert.runtime.model import check_texts

if TYPE_CHECKING:
    from pocketbert.runtime.model import AnyText, Model

_KEYS = ("texts", "top", "prompt")
_TEXT_KEYS = ("text", "text_pair", "choices", *COLUMNS)
_MOST_TOP = 100


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, and how much it takes.

    Attributes:
        host: Address; the default is reached from this machine only.
        port: Port; 0 for a free one.
        names: Names by which clients may call the server, besides those of this machine. Without any, a server at an address of
            this machine only is called by its own names, and another one by any.
        body_bytes: Most bytes of a request's body.
        texts: Most texts of a request; each choice of a multiple-choice question counts.
        characters: Most characters of a text with its pair or choices.
        requests: Most requests that are computed or wait; further ones get status 429.
        connections: Most open connections; requests on further ones get status 503.
        join_ms: How long a request waits for others to be computed with; 0 joins those that wait anyway.
        read_seconds: Time in which a request must arrive.
        stop_seconds: Time in which requests in flight must be finished after SIGTERM.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    body_bytes: int = 1 << 20
    texts: int = 256
    characters: int = 20_000
    requests: int = 64
    connections: int = 1000
    join_ms: float = 0.0
    read_seconds: float = 10.0
    stop_seconds: float = 30.0


class RequestError(Exception):
    """Raised for a request that is not answered.

    Attributes:
        status: HTTP status.
        problems: What is wrong, with the value, the limit and the fix.
    """

    def __init__(self, status: int, problems: Sequence[Problem] | Problem) -> None:
        self.status = status
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True)
class ReceivedRequest:
    """A request to /predict that was read and checked.

    Attributes:
        texts: The texts.
        top: Most labels, choices or tokens of each answer.
        prompt: Name of the prompt, or None for the folder's own.
    """

    texts: list[AnyText]
    top: int = 1
    prompt: str | None = None


def read_request(raw: bytes, model: Model, limits: ServerOptions) -> ReceivedRequest:
    """Read the body of a request to /predict.

    Args:
        raw: The body, JSON in UTF-8: ``{"texts": [...], "top": 1, "prompt": null}``.
        model: The model, whose task decides what a text is.
        limits: Most texts and characters.

    Raises:
        RequestError: 400 if the body is no JSON, 422 if it is not what the model takes, or more than the limits allow.
    """
    content = _parse(raw)
    if not isinstance(content, dict):
        fix = 'Send {"texts": ["..."]}.'
        raise RequestError(422, Problem("body", f"is {_kind(content)}, not an object.", fix))
    problems = [Problem(str(k), f"unknown key; {suggest_allowed(str(k), _KEYS)}.") for k in content if k not in _KEYS]
    texts, top, prompt = content.get("texts"), content.get("top", 1), content.get("prompt")
    if not isinstance(texts, list) or not texts:
        what = "is missing." if texts is None else f"is {_kind(texts)}, not a list with at least one text."
        problems.append(Problem("texts", what, 'Send {"texts": ["..."]}.'))
        texts = []
    if type(top) is not int or not 1 <= top <= _MOST_TOP:
        problems.append(Problem("top", f"{top!r:.40} is no whole number from 1 to {_MOST_TOP}."))
    if prompt is not None and not isinstance(prompt, str):
        problems.append(Problem("prompt", f"is {_kind(prompt)}, not the name of a prompt."))
    if problems:
        raise RequestError(422, problems[:20])
    try:
        received = ReceivedRequest([_read_text(t, number) for number, t in enumerate(texts, 1)], top, prompt)
        _check_amount(received.texts, limits)
        check_texts(model.head.task, received.texts)
        tokenizer = model.tokenizer.with_prompt(prompt)
        if tokenizer.reader is not None:
            tokenizer.reader.check(received.texts)
    except InputError as error:
        raise RequestError(422, error.problems) from error
    return received


def _parse(raw: bytes) -> Any:
    """Parse JSON; raise RequestError with status 400 if it is none, or has half of a surrogate pair."""
    try:
        content = json.loads(raw.decode())
        broken = next(find_non_unicode(content), None) if b"\\ud" in raw.lower() else None
    except UnicodeDecodeError as error:
        what = f"not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start:,}."
        raise RequestError(400, Problem("body", what, "Send JSON in UTF-8.")) from error
    except (ValueError, RecursionError) as error:
        raise RequestError(400, Problem("body", f"not valid JSON: {first_line(error)}.")) from error
    if broken is not None:
        what = "half of a surrogate pair, which is not Unicode text."
        raise RequestError(400, Problem(".".join(map(str, broken))[:80], what, "Remove it."))
    return content


def _read_text(value: Any, number: int) -> AnyText:
    """Return one entry of "texts" as `Model.predict` takes it: a text, a pair, or a question with its choices.

    An object has the columns that a row of a data file has.
    """
    if isinstance(value, list) and len(value) == 2:
        return value[0], value[1]
    if not isinstance(value, dict):
        return value  # type: ignore[no-any-return]  # whatever else it is, `check_texts` refuses it
    unknown = next((key for key in value if key not in _TEXT_KEYS), None)
    if unknown is not None:
        raise InputError(
            Problem(f"text {number}", f"unknown key '{unknown:.40}'; {suggest_allowed(unknown, _TEXT_KEYS)}.")
        )
    text, second = value.get("text"), value.get("choices", value.get("text_pair"))
    if not isinstance(text, str):
        raise InputError(Problem(f"text {number}", f"its key 'text' is {_kind(text)}, not text."))
    columns = {key: value[key] for key in COLUMNS if key in value}
    if second is None:
        return with_columns(text, columns or None)
    if isinstance(second, str):
        return with_columns((text, second), columns or None)
    return text, second


def _check_amount(texts: Sequence[AnyText], limits: ServerOptions) -> None:
    """Raise InputError for more texts in a request, or more characters in a text, than the limits allow."""
    rows = 0
    for number, text in enumerate(texts, 1):
        parts = [text] if isinstance(text, str) else [*text] if isinstance(text, tuple) else []
        several = parts[1] if len(parts) == 2 and isinstance(parts[1], list) else []
        rows += max(1, len(several))
        characters = sum(len(part) for part in (*parts, *several) if isinstance(part, str))
        if characters > limits.characters:
            what = f"{characters:,} characters; the limit is {limits.characters:,}."
            fix = "Send a shorter text, or start the server with a larger --max-characters."
            raise InputError(Problem(f"text {number}", what, fix))
    if rows > limits.texts:
        fix = "Send them in several requests, or start the server with a larger --max-texts."
        raise InputError(Problem("texts", f"{rows:,} texts; the limit is {limits.texts:,}.", fix))


def _kind(value: object) -> str:
    """Return the type of a JSON value in words, such as ``a list``; ``missing`` for null."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "missing" if value is None else names.get(type(value), "something else")
