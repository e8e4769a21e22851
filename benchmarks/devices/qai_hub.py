"""Measure on phones of Qualcomm AI Hub: one profile job of the service for each file and length."""

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

from pocketbert.benchmarks.devices.qai_hub_worker import JOB_FILE, TOLD_FILE, VARIABLE, HubJob, HubTold
from pocketbert.benchmarks.devices.vendor_tools import only_signature, run_separately
from pocketbert.benchmarks.inputs import fixed_shapes
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Measurement, Variant
from pocketbert.benchmarks.records import Placement, Profile, Protocol
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.core.devices import QAI_HUB
from pocketbert.core.errors import InputError, MissingBackendError, Problem, one_line
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import Machine
from pocketbert.core.host.progress import Meter, say
from pocketbert.core.host.system import expanded, version_of
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.runtime.tflite import TflitePredictor

PACKAGE = "qai-hub"
COMMAND = "pip install qai-hub"
TOKEN_FILE, USUAL_TOKEN_FILE = "QAIHUB_CLIENT_INI", "~/.qai_hub/client.ini"
"""Environment variable with the path of the client's settings, which hold the token, and where they are without it (qai-hub 0.56)."""
JOB_S = 3600.0
"""A job waits for a phone to become free; after an hour it is given up."""
WORKER = ("-P", "-m", "pocketbert.benchmarks.devices.qai_hub_worker")
_METHOD = (
    "By Qualcomm AI Hub on a phone of the service: batch 1, its own inputs, consecutive inferences of one profile job per file and "
    "length. Files did not take turns, so that no ratio is formed."
)


class HubPhone:
    """A phone of the service.

    Args:
        name: As the service lists it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def measure(self, variants: Sequence[Variant], options: BenchmarkOptions) -> BenchmarkResult:
        """Profile every file at every length.

        Raises:
            InputError: If the service profiled nothing; lists why.
        """
        began = time.monotonic()
        shapes = {v.name: fixed_shapes(options.lengths, v.file.lengths, v.max_length) for v in variants}
        cases = [(v, x) for v in variants for x in shapes[v.name]]
        told, problems = list[tuple[Variant, int, HubTold]](), list[Problem]()
        with Meter(f"{QAI_HUB}:{self.name}", len(cases)) as meter:
            for variant, length in cases:
                one = _profiled(self.name, variant, length)
                where = f"{QAI_HUB}:{self.name} {variant.name}, {length} tokens"
                if one.failed:
                    problems.append(Problem(where, f"not measured: {one.failed}."))
                else:
                    told.append((variant, length, one))
                meter.advance(note=variant.name)
        if not told:
            raise InputError(problems)
        for problem in problems:
            say(f"  {problem.where}: {problem.what}")
        return self._result(told, problems, time.monotonic() - began)

    def _result(
        self, told: Sequence[tuple[Variant, int, HubTold]], problems: Sequence[Problem], took_s: float
    ) -> BenchmarkResult:
        machine = Machine(cpu=self.name, arch="aarch64", isa=[], cores=0, system="Qualcomm AI Hub", python="")
        made = [len(one.inference_us) for _, _, one in told]
        notes = [f"{v.name}, {n} tokens: {_words(one)}" for v, n, one in told]
        return BenchmarkResult(
            machine=machine,
            versions={PACKAGE: version_of(PACKAGE) or ""},
            protocol=Protocol(
                description=_METHOD,
                baseline=told[0][0].name,
                threads=[0],
                lengths=sorted({n for _, n, _ in told}),
                texts=0,
                runs_asked=max(made),
                runs_made=(min(made), max(made)),
                repeats=1,
                burst=max(made),
                budget_s=0,
                took_s=took_s,
                shortened=False,
                notes=[*notes, *map(str, problems)],
            ),
            variants=list({v.name: v for v, _, _ in told}.values()),
            measurements=[self._measurement(machine, v, n, one) for v, n, one in told],
            comparisons=[],
            tokenizers=[],
            profiles=[_profile(v, n, one) for v, n, one in told if one.nodes],
        )

    def _measurement(self, machine: Machine, variant: Variant, length: int, told: HubTold) -> Measurement:
        samples = [round(us / 1000, 4) for us in told.inference_us]
        return Measurement(
            variant=variant.name,
            sha256=variant.sha256,
            bytes=variant.bytes,
            device=f"{QAI_HUB}:{self.name}",
            engine="Qualcomm AI Hub",
            engine_version=version_of(PACKAGE) or "",
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


def _words(told: HubTold) -> str:
    units = Counter(node.compute_unit for node in told.nodes)
    parts = [f"{count} operators on {unit}" for unit, count in units.most_common()]
    parts += [f"first load {told.load_us / 1000:.1f} ms"] if told.load_us is not None else []
    parts += ["the service told its estimate only"] if told.estimated else []
    return ", ".join([*parts, *([told.url] if told.url else [])]) or "nothing more was told"


def _profile(variant: Variant, length: int, told: HubTold) -> Profile:
    by_unit: dict[str, Counter[str]] = {}
    for node in told.nodes:
        by_unit.setdefault(node.compute_unit, Counter())[node.type] += 1
    placement = [
        Placement(provider=unit, nodes=types.total(), op_types=dict(types)) for unit, types in sorted(by_unit.items())
    ]
    return Profile(
        variant=variant.name,
        threads=0,
        length=length,
        runs=len(told.inference_us),
        ops=[],
        placement=placement,
        provenance=Provenance.MEASURED,
    )


def _profiled(phone: str, variant: Variant, length: int) -> HubTold:
    """Run the client for one file and length."""
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
        ended = run_separately([sys.executable, *WORKER, str(folder)], folder, JOB_S)
        try:
            return HubTold.model_validate_json((folder / TOLD_FILE).read_text(encoding="utf-8"))
        except OSError:
            return HubTold(failed=ended.how or "the client gave no answer")
        except ValidationError as error:
            first = error.errors()[0]
            return HubTold(failed=f"the client's answer is wrong: {'.'.join(map(str, first['loc']))}: {first['msg']}")


def connect_qai_hub(argument: str) -> HubPhone:
    """Prepare a phone of the service.

    Args:
        argument: Name of the phone, as ``qai-hub list-devices`` prints it.

    Raises:
        MissingBackendError: If the client is not installed.
    """
    if importlib.util.find_spec("qai_hub") is None:
        raise MissingBackendError(f"{QAI_HUB}:{argument}: {PACKAGE}", f"{COMMAND} (and set {VARIABLE})")
    return HubPhone(argument)


def qai_hub_missing() -> str:
    """What keeps this machine from using the service: the client, and a token in the environment or the client's file, which is not read."""
    lacking = [] if importlib.util.find_spec("qai_hub") else [f"{PACKAGE} is not installed ({COMMAND})"]
    file = os.environ.get(TOKEN_FILE) or USUAL_TOKEN_FILE
    if not os.environ.get(VARIABLE) and not _is_file(file):
        lacking.append(f"there is no token: neither {VARIABLE} nor {one_line(file)} (export {VARIABLE}=…)")
    return "; ".join(lacking)


def _is_file(name: str) -> bool:
    try:
        return expanded(name, TOKEN_FILE).is_file()
    except InputError:  # no home folder is known
        return False


def qai_hub_refusal(format: Format, runtime: Runtime | None) -> str:
    """Why files of a format, made for a runtime, are not profiled; empty where they are."""
    if format not in (Format.ONNX, Format.TFLITE):
        return f"{FORMATS[format].title} does not run on phones with Android"
    if runtime is not None and runtime.own_engine is not None:
        return f"the service does not run {runtime.own_engine}"
    return ""
