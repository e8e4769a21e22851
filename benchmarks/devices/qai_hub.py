"""The devices ``qai-hub:PHONE``: phones of Qualcomm AI Hub, with one profile job per file and length.

`DEVICE` is their row of the table of devices. For each file and length the service's client runs in a separate
process (`qai_hub_worker`), and one benchmark result is made of the answers.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from pocketbert.benchmarks.devices.protocol import Device
from pocketbert.benchmarks.devices.qai_hub_worker import JOB_FILE, RESPONSE_FILE, TOKEN_VARIABLE, HubJob, HubResponse
from pocketbert.benchmarks.devices.vendor_tools import only_signature, run_separately
from pocketbert.benchmarks.inputs import choose_fixed_lengths
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Measurement, Variant
from pocketbert.benchmarks.records import Placement, Profile, Protocol
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.core.devices import DEVICES, QAI_HUB
from pocketbert.core.errors import InputError, MissingBackendError, Problem, escape_line
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import Machine
from pocketbert.core.host.progress import Meter, print_note
from pocketbert.core.host.system import expand_home, version_of
from pocketbert.core.predict.inputs import Text
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.runtime.tflite import TflitePredictor

_PACKAGE = "qai-hub"
_INSTALL = "pip install qai-hub"
_SETTINGS_VARIABLE, _SETTINGS_FILE = "QAIHUB_CLIENT_INI", "~/.qai_hub/client.ini"
"""Environment variable with the path of the client's settings, which hold the token, and the path without it (qai-hub 0.56)."""
_JOB_S = 3600.0
"""A job waits for a phone to become free; after an hour it is given up."""
_WORKER = ("-P", "-m", "pocketbert.benchmarks.devices.qai_hub_worker")
_METHOD = (
    "By Qualcomm AI Hub on a phone of the service: batch 1, its own inputs, consecutive inferences of one profile job per file and "
    "length. Files did not take turns, so that no ratio is formed."
)


def _qai_hub_missing() -> str:
    """Return what this machine lacks to use Qualcomm AI Hub, its client or a token; empty if nothing."""
    missing = [] if importlib.util.find_spec("qai_hub") else [f"{_PACKAGE} is not installed ({_INSTALL})"]
    file = os.environ.get(_SETTINGS_VARIABLE) or _SETTINGS_FILE
    try:
        has_file = expand_home(file, _SETTINGS_VARIABLE).is_file()
    except InputError:  # no home folder is known
        has_file = False
    if not os.environ.get(TOKEN_VARIABLE) and not has_file:
        where = f"neither {TOKEN_VARIABLE} nor {escape_line(file)}"
        missing.append(f"there is no token: {where} (export {TOKEN_VARIABLE}=…)")
    return "; ".join(missing)


def _qai_hub_refusal(format: Format, runtime: Runtime | None) -> str:
    """Return why files of this format and runtime cannot be profiled by the service; empty if they can."""
    if format not in (Format.ONNX, Format.TFLITE):
        return f"{FORMATS[format].title} does not run on phones with Android"
    if runtime is not None and runtime.own_engine is not None:
        return f"the service does not run {runtime.own_engine}"
    return ""


def _connect_qai_hub(argument: str) -> _HubPhone:
    """Return the service for one phone of Qualcomm AI Hub; nothing is sent yet.

    Args:
        argument: Name of the phone as ``qai-hub list-devices`` prints it.

    Raises:
        MissingBackendError: If the client is not installed.
    """
    if importlib.util.find_spec("qai_hub") is None:
        raise MissingBackendError(f"{QAI_HUB}:{argument}: {_PACKAGE}", f"{_INSTALL} (and set {TOKEN_VARIABLE})")
    return _HubPhone(argument)


class _HubPhone:
    """A phone of Qualcomm AI Hub.

    Args:
        name: Name of the phone as the service lists it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def measure(
        self, variants: Sequence[Variant], texts: Sequence[Text], options: BenchmarkOptions
    ) -> list[BenchmarkResult]:
        """Run a profile job for each file and length, on inputs of the service; return the times as one result.

        Jobs that failed are printed, and named in the notes of the result.

        Raises:
            InputError: If the service profiled nothing, with the reasons.
        """
        began = time.monotonic()
        shapes = {v.name: choose_fixed_lengths(options.lengths, v.file.lengths, v.max_length) for v in variants}
        cases = [(variant, length) for variant in variants for length in shapes[variant.name]]
        profiled, problems = list[tuple[Variant, int, HubResponse]](), list[Problem]()
        with Meter(f"{QAI_HUB}:{self.name}", len(cases)) as meter:
            for variant, length in cases:
                response = _run_job(self.name, variant, length)
                if response.failed:
                    where = f"{QAI_HUB}:{self.name} {variant.name}, {length} tokens"
                    problems.append(Problem(where, f"not measured: {response.failed}."))
                else:
                    profiled.append((variant, length, response))
                meter.advance(note=variant.name)
        if not profiled:
            raise InputError(problems)
        for problem in problems:
            print_note(f"  {problem.where}: {problem.what}")
        machine = Machine(cpu=self.name, arch="aarch64", isa=[], cores=0, system="Qualcomm AI Hub", python="")
        runs = [len(response.inference_us) for _, _, response in profiled]
        notes = [f"{variant.name}, {length} tokens: {_note(response)}" for variant, length, response in profiled]
        session = BenchmarkResult(
            machine=machine,
            versions={_PACKAGE: version_of(_PACKAGE) or ""},
            protocol=Protocol(
                description=_METHOD,
                baseline=profiled[0][0].name,
                threads=[0],
                lengths=sorted({length for _, length, _ in profiled}),
                texts=0,
                runs_asked=max(runs),
                runs_made=(min(runs), max(runs)),
                repeats=1,
                burst=max(runs),
                budget_s=0,
                took_s=time.monotonic() - began,
                shortened=False,
                notes=[*notes, *map(str, problems)],
            ),
            variants=list({variant.name: variant for variant, _, _ in profiled}.values()),
            measurements=[_measurement(machine, *case) for case in profiled],
            comparisons=[],
            tokenizers=[],
            profiles=[_profile(*case) for case in profiled if case[2].nodes],
        )
        return [session]


def _run_job(phone: str, variant: Variant, length: int) -> HubResponse:
    """Profile one file at one length in a process of its own; return the service's answer, or why the job failed."""
    with tempfile.TemporaryDirectory(prefix="pocketbert-qai-hub-") as name:
        folder, model, specs = Path(name), Path(variant.path).resolve(), dict[str, tuple[tuple[int, ...], str]]()
        if variant.format is Format.TFLITE:
            key = TflitePredictor(model, 1).signature_keys[length]
            (folder / "model.tflite").write_bytes(only_signature(model.read_bytes(), key)[0])
            model = folder / "model.tflite"
        else:
            inputs = variant.file.open(1).signature.inputs
            specs = {tensor.name: ((1, length), str(tensor.dtype)) for tensor in inputs}
        job = HubJob(model=str(model), phone=phone, specs=specs)
        (folder / JOB_FILE).write_text(job.model_dump_json(), encoding="utf-8")
        end = run_separately([sys.executable, *_WORKER, str(folder)], folder, _JOB_S)
        try:
            return HubResponse.model_validate_json((folder / RESPONSE_FILE).read_text(encoding="utf-8"))
        except OSError:
            return HubResponse(failed=end.problem or "the client gave no answer")
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            return HubResponse(failed=f"the client's answer is wrong: {place}: {first['msg']}")


def _measurement(machine: Machine, variant: Variant, length: int, response: HubResponse) -> Measurement:
    """Build the measurement record of one file and length from the inference times that the service reports."""
    samples = [round(us / 1000, 4) for us in response.inference_us]
    return Measurement(
        variant=variant.name,
        sha256=variant.sha256,
        bytes=variant.bytes,
        device=f"{QAI_HUB}:{machine.cpu}",
        engine="Qualcomm AI Hub",
        engine_version=version_of(_PACKAGE) or "",
        provenance=Provenance.MEASURED,
        machine=machine,
        threads=0,
        length=length,
        tokens_mean=length,
        load=Load(before=None, after=None, others=None),
        wall=Statistics.of(samples),
        wall_interval=None,
        cpu=None,
        cold=None,
        warmup_runs=0,
        warmup_stable=True,
        wall_ms=[samples],
        cpu_ms=[],
    )


def _profile(variant: Variant, length: int, response: HubResponse) -> Profile:
    """Build the placement record of one file and length: how many operators run on each unit, without times."""
    op_types_by_unit: dict[str, Counter[str]] = {}
    for node in response.nodes:
        op_types_by_unit.setdefault(node.compute_unit, Counter())[node.type] += 1
    return Profile(
        variant=variant.name,
        threads=0,
        length=length,
        runs=len(response.inference_us),
        ops=[],
        placement=[
            Placement(provider=unit, nodes=op_types.total(), op_types=dict(op_types))
            for unit, op_types in sorted(op_types_by_unit.items())
        ],
        provenance=Provenance.MEASURED,
    )


def _note(response: HubResponse) -> str:
    """Return a note on the service's job: operators per computing unit, load time, and a link."""
    units = Counter(node.compute_unit for node in response.nodes)
    parts = [f"{count} operators on {unit}" for unit, count in units.most_common()]
    parts += [f"first load {response.load_us / 1000:.1f} ms"] if response.load_us is not None else []
    parts += ["the service told its estimate only"] if response.estimated else []
    parts += [response.url] if response.url else []
    return ", ".join(parts) or "nothing more was told"


DEVICE = Device(DEVICES[QAI_HUB], service=_connect_qai_hub, missing=_qai_hub_missing, refusal=_qai_hub_refusal)
"""The row of the table of devices."""
