"""What the page of a browser posts: records that a server checks before anything is kept.

A browser joins (`JoinPost`), sends the outputs of each file for known inputs (`AnswersPost`), then the timings of each case
(`CasePost`), and gives signs of life (`StatePost`). Every text, number and list is bounded.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

_ShortText = Annotated[str, Field(max_length=400, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""No control characters: these texts reach a terminal."""
_Milliseconds = Annotated[float, Field(gt=0, le=1e8, allow_inf_nan=False)]
_Unit = Literal["wasm", "webgpu", "webnn"]
UNITS = get_args(_Unit)
"""The accelerators of a browser; the first one is the CPU."""
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_Number = Annotated[int, Field(ge=0, le=4096)]
_PostedLength = Annotated[int, Field(ge=1, le=65536)] | Literal["text"]


class _Post(BaseModel):
    """Base of the records that a page posts; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Facts(_Post):
    """What a browser reports about itself and its device; what it does not report is empty, 0 or None.

    Attributes:
        user_agent: The browser's user agent string.
        platform: Operating system and, if the browser reports it, model of the device.
        cores: Logical cores.
        memory_gb: Main memory in GB, rounded by the browser; None if it is not reported.
        gpu: The graphics adapter of WebGPU.
        secure: Whether the page is a secure context (https or localhost).
        isolated: Whether the page is cross-origin isolated, without which there are no threads.
        timer_us: Resolution of the browser's clock in µs.
        battery: Charge of the battery, and whether a charger is connected, in words.
        missing: What the browser cannot use, each with the reason.
    """

    user_agent: _ShortText
    platform: _ShortText
    cores: _Number
    memory_gb: Annotated[float, Field(gt=0, le=65536)] | None
    gpu: _ShortText
    secure: bool
    isolated: bool
    timer_us: Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]
    battery: _ShortText
    missing: Annotated[list[_ShortText], Field(max_length=20)]


class JoinPost(_Post):
    """A page that starts to measure, or continues after it was reloaded.

    Attributes:
        id: Number that the browser had before the page was reloaded; empty for a new one.
        earlier: Number of a browser in another tab, whose results are continued if that tab is silent; empty for none.
        name: Name of the device.
        facts: What the browser reports about itself.
    """

    id: _Id | Literal[""]
    earlier: _Id | Literal[""] = ""
    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
    facts: Facts


class _OutputPost(_Post):
    """One output of a run: float32 numbers, little-endian, in base64."""

    shape: Annotated[list[_Number], Field(max_length=4)]
    data: Annotated[str, Field(max_length=8 << 20)]

    def array(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the numbers as an array; raise ValueError if there are more or fewer than the shape needs."""
        try:
            return np.frombuffer(base64.b64decode(self.data, validate=True), "<f4").reshape(self.shape)
        except binascii.Error as error:
            raise ValueError("data is not base64") from error


class AnswersPost(_Post):
    """The outputs of a file for the checked inputs.

    Attributes:
        id: Number of the browser.
        file: Number of the file.
        unit: The accelerator, such as ``webgpu``.
        outputs: The outputs of each checked input, by name.
    """

    id: _Id
    file: _Number
    unit: _Unit
    outputs: Annotated[list[dict[_ShortText, _OutputPost]], Field(max_length=64)]


class _CellPost(_Post):
    """The timings of a case at one length and idle time; each is of `calls` inferences together."""

    length: _PostedLength
    gap_ms: Annotated[float, Field(ge=0, le=1e5, allow_inf_nan=False)]
    wall_ms: Annotated[list[_Milliseconds], Field(min_length=1, max_length=100_000)]
    calls: Annotated[int, Field(ge=1, le=100_000)]
    warmup_runs: Annotated[int, Field(ge=0, le=100_000)]
    warmup_stable: bool


class CasePost(_Post):
    """The timings of one file on one accelerator, in one repeat and with one number of threads.

    Attributes:
        id: Number of the browser.
        file: Number of the file.
        unit: The accelerator, such as ``webgpu``.
        threads: Number of threads.
        repeat: Number of the repeat.
        load_ms: Time from the file's bytes to a model that can run.
        first_ms: Time of the first inference.
        hidden: Whether the page was hidden during the case.
        battery: Charge of the battery, and whether a charger is connected, in words.
        cells: The timings at each length and idle time.
    """

    id: _Id
    file: _Number
    unit: _Unit
    threads: Annotated[int, Field(ge=1, le=4096)]
    repeat: _Number
    load_ms: _Milliseconds
    first_ms: _Milliseconds
    hidden: bool
    battery: _ShortText
    cells: Annotated[list[_CellPost], Field(min_length=1, max_length=256)]

    @property
    def key(self) -> tuple[int, str, int, int]:
        """File, accelerator, threads and repeat."""
        return self.file, self.unit, self.threads, self.repeat


class StatePost(_Post):
    """A post that shows that the page is alive, perhaps with a remark.

    Attributes:
        id: Number of the browser.
        note: A remark for the benchmark result, such as a file that an accelerator cannot run.
        ended: Whether the page has measured everything.
    """

    id: _Id
    note: _ShortText = ""
    ended: bool = False
