"""The device `qai-hub` against a local stand-in of the service's client: uploaded, compiled, profiled, collected, refused."""

import hashlib
import importlib.util
import json
import os
import tempfile

import pytest

from pocketbert.benchmarks.devices import qai_hub
from pocketbert.benchmarks.devices.qai_hub import DEVICE
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.types import Format, Provenance, Runtime, Scheme

PHONE = "Samsung Galaxy S24"
TOKEN = "abcdefghijklmnop0123456789ABCDEFGHIJ"
CLIENT = '''
"""As qai_hub 0.56.0: the calls that the adapter makes, and profiles of the form that its client returns."""
import json, os, types
LOG = os.environ["QAI_HUB_LOG"]
def note(**what):
    with open(LOG, "a") as log:
        log.write(json.dumps(what) + "\\n")
class ClientConfig:
    def __init__(self, api_token):
        self.api_token = api_token
class Client:
    def __init__(self, config):
        self.config = config
    def submit_compile_job(self, **what):
        print("compiling with", self.config.api_token, flush=True)  # a client that logs it
        return submit_compile_job(**what)
    def submit_profile_job(self, **what):
        import hashlib
        note(client=hashlib.sha256(self.config.api_token.encode()).hexdigest(), environment=[k for k, v in os.environ.items() if self.config.api_token in v])
        if os.environ.get("QAI_HUB_MODE") == "login":
            raise RuntimeError(f"Failed to authenticate with the token {self.config.api_token}.")
        job = submit_profile_job(**what)
        job.url += "?token=" + self.config.api_token
        job.message += self.config.api_token
        return job
class Device:
    def __init__(self, name):
        self.name = name
class Job:
    url = "https://example.invalid/jobs/1"
    def __init__(self, target=None, profile=None, message=""):
        self.target, self.profile, self.message = target, profile, message
    def get_target_model(self):
        return self.target
    def download_profile(self):
        return self.profile
    def get_status(self):
        return types.SimpleNamespace(message=self.message)
def submit_compile_job(model, device, input_specs, options):
    note(compile=os.path.basename(model), device=device.name, specs=input_specs, options=options)
    return Job(message="an operator is not supported") if os.environ.get("QAI_HUB_MODE") == "uncompiled" else Job(target="mtarget")
def submit_profile_job(model, device):
    note(profile=os.path.basename(model), device=device.name)
    mode = os.environ.get("QAI_HUB_MODE", "")
    if mode == "login":
        raise RuntimeError("Failed to authenticate with the token TOKEN. See the documentation.")
    if mode == "crash":
        os._exit(9)
    if mode == "failed":
        return Job(profile={}, message="the phone went away")
    summary = {"estimated_inference_time": 1500, "first_load_time": 1374293, "inference_memory_peak_range": (1, 2)}
    if mode == "negative":
        summary["estimated_inference_time"] = -1
    elif mode != "old":
        summary["all_inference_times"] = [2000, 1500, 1750]
    detail = [{"name": "a", "type": "FullyConnected", "compute_unit": unit, "execution_time": 3} for unit in ("NPU", "NPU", "CPU")]
    return Job(profile={"execution_summary": summary, "execution_detail": detail})
'''


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """`hub(mode)`: the client is installed; returns what it was asked for."""
    place = tmp_path / "client"
    (place / "qai_hub").mkdir(parents=True)
    (place / "qai_hub/__init__.py").write_text(CLIENT.replace("TOKEN", TOKEN))
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONPATH", f"{place}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("QAI_HUB_LOG", str(tmp_path / "log"))

    def use(mode=""):
        monkeypatch.setenv("QAI_HUB_MODE", mode)
        return lambda: [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]

    return use


@pytest.fixture
def measure(folder, texts):
    """`measure()`: the result of a small file on the phone."""
    variant = Variant.of("student", folder / "student.onnx", folder, 32, Scheme.FP32)
    options = BenchmarkOptions(devices=[f"qai-hub:{PHONE}"], lengths=["text", 16], label="")
    return lambda: benchmark([variant], texts, options)


def test_a_file_is_compiled_for_one_length_and_profiled(hub, measure):
    asked = hub()
    result = measure()
    (m,) = result.measurements
    assert (m.device, m.provenance, m.length, m.machine.cpu) == (f"qai-hub:{PHONE}", Provenance.MEASURED, 16, PHONE)
    assert (m.wall_ms, m.wall.p50, m.cold, m.cpu) == ([[2.0, 1.5, 1.75]], 1.75, None, None)
    assert result.comparisons == []
    assert [(p.provider, p.nodes) for p in result.profiles[0].placement] == [("CPU", 1), ("NPU", 2)]
    assert "2 operators on NPU, 1 operators on CPU, first load 1374.3 ms" in "\n".join(result.protocol.notes)
    compiled, profiled = asked()
    assert (compiled["compile"], compiled["device"]) == ("student.onnx", PHONE)
    assert compiled["options"] == "--target_runtime onnx"
    assert set(map(str, compiled["specs"].values())) == {"[[1, 16], 'int64']"}
    assert profiled == {"profile": "mtarget", "device": PHONE}
    assert BenchmarkResult.model_validate_json(result.model_dump_json()) == result


def test_a_tflite_file_is_reduced_to_one_length(hub, texts, files):
    asked = hub()
    options = BenchmarkOptions(devices=[f"qai-hub:{PHONE}"], lengths=[16], label="")
    assert benchmark(files[1:], texts, options).measurements[0].length == 16
    assert [one["profile"] for one in asked()] == ["model.tflite"]  # which the service need not compile


def test_an_older_profile_has_an_estimate_only(hub, measure):
    hub("old")
    result = measure()
    assert result.measurements[0].wall_ms == [[1.5]]
    assert "the service told its estimate only" in result.protocol.notes[0]


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("uncompiled", "the service does not compile it: an operator is not supported"),
        ("failed", "the service does not profile it: the phone went away"),
        ("login", "RuntimeError: Failed to authenticate with the token …"),
        ("crash", "the process ended with status 9"),
        ("negative", "inference_us"),
    ],
)
def test_what_is_not_measured_is_told_without_the_token(hub, measure, mode, why):
    hub(mode)
    with pytest.raises(InputError) as caught:
        measure()
    assert why in str(caught.value)
    assert TOKEN not in str(caught.value)


# the names of tests are in the environment, so that they must not hold the token
@pytest.mark.parametrize(
    ("token", "mode"), [(TOKEN, ""), ("short7token", "login"), ("short7token", "failed")], ids=["ok", "login", "failed"]
)
def test_a_token_of_the_environment_reaches_the_client_and_nothing_else(
    hub, phone, pocketbert, monkeypatch, tmp_path, token, mode
):
    asked, kept, run = hub(mode), {}, qai_hub.run_separately

    def run_and_keep(command, folder, limit_s):
        ended = run(command, folder, limit_s)
        kept.update({f"{folder}/{p.name}": p.read_text() for p in folder.glob("*.json")})
        return ended

    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("QAI_HUB_API_TOKEN", f"{token}\n")
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    monkeypatch.setattr(qai_hub, "run_separately", run_and_keep)
    command = ("benchmark", "-m", phone, "--device", f"qai-hub:{PHONE}", "--lengths", 16, "-o", work / "out.json")
    done = pocketbert(*command)
    assert done.exit_code == (0 if mode == "" else 2), done.output
    assert token not in done.output
    assert token not in repr(done.exception)
    assert kept
    assert all(token not in text for text in kept.values())  # what the two processes tell each other
    assert not [p for p in work.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]
    assert [p.name for p in work.iterdir()] == (["out.json"] if mode == "" else [])
    told = [one for one in asked() if "client" in one]
    assert {one["client"] for one in told} == {hashlib.sha256(token.encode()).hexdigest()}
    assert all(one["environment"] == [] for one in told)  # nothing that the client starts gets it


def test_what_is_missing(monkeypatch, tmp_path, pocketbert):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("QAIHUB_CLIENT_INI", raising=False)
    monkeypatch.delenv("QAI_HUB_API_TOKEN", raising=False)
    found = {"qai_hub": None}
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: found[name] if name in found else real(name, *more)
    )
    with pytest.raises(MissingBackendError, match="pip install qai-hub .and set QAI_HUB_API_TOKEN"):
        DEVICE.service(PHONE)
    no_token = "there is no token: neither QAI_HUB_API_TOKEN nor ~/.qai_hub/client.ini (export QAI_HUB_API_TOKEN=…)"
    assert DEVICE.missing() == f"qai-hub is not installed (pip install qai-hub); {no_token}"
    assert "qai-hub:PHONE" in pocketbert("devices").stdout
    found["qai_hub"] = object()
    assert DEVICE.missing() == no_token
    settings = tmp_path / ".qai_hub" / "client.ini"
    settings.parent.mkdir()
    settings.write_text("[api]\napi_token = secret\n")
    settings.chmod(0)  # it is not opened
    assert DEVICE.missing() == ""
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(tmp_path / "other.ini"))
    assert "other.ini" in DEVICE.missing()
    monkeypatch.setenv("QAI_HUB_API_TOKEN", "secret")
    assert DEVICE.missing() == ""


def test_files_that_it_does_not_run():
    assert DEVICE.refusal(Format.COREML, None) == "Core ML does not run on phones with Android"
    assert DEVICE.refusal(Format.ONNX, Runtime.OPENVINO) == "the service does not run openvino"
    assert DEVICE.refusal(Format.TFLITE, None) == ""
