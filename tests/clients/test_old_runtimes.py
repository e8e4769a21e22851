"""Files and toolkit on TFLite runtimes that miscompute the default int8 file: tflite-runtime 2.14, TensorFlow 2.16."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

import pocketbert
from pocketbert import ExportOptions, api
from pocketbert.core.compare.evaluate import logit_scale, rms_error, worst_difference
from pocketbert.core.compare.golden import read_golden
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.files import quantize
from pocketbert.quantize.table import Plan
from pocketbert.runtime.tflite import TflitePredictor
from support.client_environments import uv

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {
    "tflite-2.14": ("tflite-runtime==2.14.0", "tflite_runtime", "2.14.0"),
    "tensorflow-2.16": ("tensorflow-cpu==2.16.2", "tensorflow", "2.16.2"),
}
LABELS = ("negative", "neutral", "positive")
LENGTH = 48
FP32, INT8, OLD = "tflite/model.tflite", "tflite/model_int8.tflite", "tflite/model_int8_tflite216.tflite"
EXACT = 1e-4
"""Of the spread: what fp32, and weights turned into fp32, may differ by."""


@pytest.fixture(scope="module")
def phone(
    make_tokenizer: Callable[..., None],
    make_classifier: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with the fp32 file, the default int8 file and the one for old runtimes."""
    base = tmp_path_factory.mktemp("old-runtimes")
    source = base / "model"
    size = {"hidden_size": 96, "intermediate_size": 384, "num_attention_heads": 4}
    make_classifier("bert", 4, LABELS, **size).save_pretrained(source)
    make_tokenizer(source)
    return api.export(str(source), base / "phone", ExportOptions(max_length=LENGTH, runtimes=["tflite216"]))


@pytest.fixture(scope="module")
def others(phone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Scheme, Path]:
    """The forms that only store small numbers and compute in fp32."""
    folder = tmp_path_factory.mktemp("other-forms")
    out = {s: folder / f"{s}.tflite" for s in (Scheme.W8, Scheme.FP16)}
    for scheme, path in out.items():
        quantize(phone / FP32, path, Plan(Format.TFLITE, scheme))
    return out


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def python(engine: str, environment: Callable[..., Path]) -> Path:
    """An environment with one old engine and what the core of our wheel requires."""
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return environment(engine, [ENGINES[engine][0], "numpy<2", *core])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, unpacked, without its dependencies; built from a copy so that the checkout stays clean."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout
    for name in filter(lambda n: (ROOT / n).is_file(), listed.splitlines()):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    tool = uv()
    run(tool, "build", "-q", "--wheel", "--out-dir", folder / "dist", source, cwd=folder)
    [wheel] = (folder / "dist").glob("*.whl")
    run(
        tool,
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--python",
        sys.executable,
        "--target",
        folder,
        wheel,
        cwd=folder,
    )
    return folder


@pytest.fixture(scope="module")
def encoded(phone: Path) -> list[Encoded]:
    tokenizer = TextTokenizer(phone, LENGTH)
    return [e for e in tokenizer.encode(list(SENTENCES)) if len(e) <= LENGTH]


@pytest.fixture(scope="module")
def raw(
    phone: Path, others: dict[Scheme, Path], encoded: list[Encoded], python: Path, ask: Callable[..., Any]
) -> Callable[[Path], tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """`raw(file)`: logits of the old engine's own interpreter, and LiteRT's."""
    tokenizer = TextTokenizer(phone, LENGTH)
    batch = tokenizer.pad(encoded, LENGTH)
    rows = [{n: v[i].tolist() for n, v in batch.items()} for i in range(len(encoded))]
    files = [*(phone / f for f in (FP32, INT8, OLD)), *others.values()]
    question = {"verb": "raw", "files": list(map(str, files)), "rows": rows, "signature": f"seq_{LENGTH}"}
    answers = ask(python, "old_runtime_client.py", question)

    def logits(file: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        assert not isinstance(answers[str(file)], str), answers[str(file)]
        own = np.asarray(TflitePredictor(file, 1).run(batch)["logits"], np.float32)
        return np.array(answers[str(file)], np.float32), own

    return logits


def run(*argv: str | Path, cwd: Path, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(a) for a in argv], cwd=cwd, capture_output=True, text=True, env={**own, **more}, check=False
    )
    assert done.returncode == code, f"exit {done.returncode} of {argv}\n{done.stdout}\n{done.stderr}"
    return done


def recorded(phone: Path, file: str) -> float:
    """Largest difference that the folder allows a right engine."""
    return min(r.tolerance[file] for r in read_golden(phone / "golden.jsonl") if file in r.tolerance)


# The engines themselves.


def test_fp32_is_right(raw: Callable[..., Any], phone: Path) -> None:
    theirs, ours = raw(phone / FP32)
    assert worst_difference(theirs, ours) < EXACT * logit_scale(ours)
    assert len(set(theirs.argmax(-1))) > 1  # else equal labels would prove nothing


@pytest.mark.parametrize("scheme", [Scheme.W8, Scheme.FP16])
def test_weights_turned_into_fp32_are_right(
    scheme: Scheme, raw: Callable[..., Any], others: dict[Scheme, Path]
) -> None:
    theirs, ours = raw(others[scheme])
    assert worst_difference(theirs, ours) < EXACT * logit_scale(ours)


def test_the_trap_the_default_int8_file_is_accepted_and_answered_wrongly(raw: Callable[..., Any], phone: Path) -> None:
    theirs, ours = raw(phone / INT8)  # neither an error nor NaN
    assert np.isfinite(theirs).all()
    wrong = np.abs(theirs - ours).max(-1) > recorded(phone, INT8)
    assert wrong.mean() > 0.9, wrong
    assert worst_difference(theirs, ours) > 5 * recorded(phone, INT8)
    assert (theirs.argmax(-1) == ours.argmax(-1)).mean() < 0.9


def test_the_file_for_old_runtimes_is_right_and_as_accurate_as_the_default(
    raw: Callable[..., Any], phone: Path
) -> None:
    theirs, ours = raw(phone / OLD)
    apart, margin = np.abs(theirs - ours).max(-1), np.sort(ours, -1)[:, -1] - np.sort(ours, -1)[:, -2]
    # the same but for roundings of activations that fall to the other side, which a random model makes much of
    assert np.median(apart) < EXACT * logit_scale(ours)
    assert apart.max() < recorded(phone, OLD)
    sure = margin > recorded(phone, OLD)
    assert sure.mean() > 0.5
    assert (theirs.argmax(-1) == ours.argmax(-1))[sure].all()
    _, large = raw(phone / FP32)
    _, default = raw(phone / INT8)
    assert rms_error(theirs, large) < 1.25 * rms_error(default, large)


# The toolkit on them.


@pytest.fixture(scope="module")
def toolkit(
    phone: Path, python: Path, site: Path, ask: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """What `pocketbert.load(folder, file=…).predict` answers there, by file."""
    question = {
        "verb": "toolkit",
        "site": str(site),
        "folder": str(phone),
        "texts": list(SENTENCES),
        "files": [FP32, OLD, INT8, "onnx/model.onnx"],
    }
    before = os.environ.get("POCKETBERT_CACHE")
    os.environ["POCKETBERT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    try:
        return ask(python, "old_runtime_client.py", question)
    finally:
        os.environ.update({} if before is None else {"POCKETBERT_CACHE": before})


def here(phone: Path, file: str, texts: Sequence[str] = SENTENCES) -> NDArray[np.float64]:
    return np.array([list(p.scores.values()) for p in pocketbert.load(phone, file=file).predict(list(texts))])


def test_the_toolkit_runs_there_with_numpy_1(toolkit: Any, site: Path) -> None:
    assert toolkit["numpy"].startswith("1.")
    assert Path(toolkit["package"]).is_relative_to(site)


def test_the_toolkit_gives_its_own_predictions_there(toolkit: Any, phone: Path) -> None:
    np.testing.assert_allclose(toolkit["onnx/model.onnx"], here(phone, "onnx/model.onnx"), atol=1e-6)
    np.testing.assert_allclose(toolkit[FP32], here(phone, FP32), atol=1e-5)
    theirs, ours = np.array(toolkit[OLD]), here(phone, OLD)
    np.testing.assert_allclose(theirs, ours, atol=0.05)
    sure = np.sort(ours, -1)[:, -1] - np.sort(ours, -1)[:, -2] > 0.1
    assert sure.sum() > 10
    assert (theirs.argmax(-1) == ours.argmax(-1))[sure].all()


def test_the_toolkit_refuses_the_default_int8_file_there(toolkit: Any, engine: str) -> None:
    kind, message, code = toolkit[INT8]
    _, name, version = ENGINES[engine]
    assert (kind, code) == ("GateError", 3)
    assert f"{INT8}: {name} {version} computes this file wrongly on this machine: golden row " in message
    assert "Use the file for tflite216" in message
    assert "ai-edge-litert >= 2.3" in message


@pytest.fixture
def command(python: Path, site: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`command("predict", …, code=0)`: the command line there."""
    start = f"import sys; sys.path.insert(0, {str(site)!r}); from pocketbert.cli.main import main; main()"

    def call(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run(python, "-c", start, *arguments, cwd=tmp_path, code=code, COLUMNS="400")

    return call


def test_the_command_line_says_so_with_exit_3(
    command: Callable[..., subprocess.CompletedProcess[str]], phone: Path, engine: str
) -> None:
    texts = list(SENTENCES[:3])
    refused = command("predict", "--threads", "1", "-m", phone, "--format", "tflite", *texts, code=3)
    _, name, version = ENGINES[engine]
    assert f"{name} {version} computes this file wrongly on this machine" in " ".join(refused.stderr.split())
    assert refused.stdout == ""
    for chosen in (("--format", "tflite", "--scheme", "fp32"), ("--model-file", OLD)):
        done = command("predict", "--threads", "1", "-m", phone, *chosen, *texts)
        file = FP32 if "fp32" in chosen else OLD
        labels = [LABELS[i] for i in here(phone, file, texts).argmax(-1)]
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == labels
        greetings = ("tensorflow", "XNNPACK", "oneDNN", "INFO")
        assert not any(word in done.stderr for word in greetings), done.stderr


def test_the_fastest_engine_is_one_that_is_right(
    command: Callable[..., subprocess.CompletedProcess[str]], phone: Path
) -> None:
    done = command("predict", "--threads", "1", "-m", phone, "--engine", "fastest", *SENTENCES[:3])
    labels = [LABELS[i] for i in here(phone, "onnx/model_int8.onnx", SENTENCES[:3]).argmax(-1)]
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == labels


def test_verify_fails_there_for_the_default_int8_files_alone(
    command: Callable[..., subprocess.CompletedProcess[str]], phone: Path
) -> None:
    done = command("verify", "-m", phone, code=3)
    said = (done.stdout + done.stderr).splitlines()
    failed = {line.split()[1] for line in said if line.split()[:1] == ["FAILED"]}
    assert INT8 in failed
    assert failed <= {INT8, "tflite/mediapipe_int8.tflite"}


def test_doctor_names_the_engine(command: Callable[..., subprocess.CompletedProcess[str]], engine: str) -> None:
    [line] = [n for n in command("doctor").stdout.splitlines() if n.startswith("run TFLite files")]
    assert ENGINES[engine][0].replace("==", " ") in line
    assert "MISSING" not in line
