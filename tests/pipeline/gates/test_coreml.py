"""The gates against Core ML packages broken on purpose: verify exits 3 and names package and gate, pack writes nothing."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")

from pocketbert import api
from pocketbert.core.disk.files import path_bytes, sha256_path
from pocketbert.core.packages.coreml import MODEL, WEIGHT_FILE

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]

FP16, W8 = "coreml/Model.mlpackage", "coreml/Model_w8.mlpackage"
FILES = (FP16, W8)
CLASSES = 3


def source(run: Path, file: str) -> Path:
    """Where a package of the artefact folder lies in the run folder."""
    return run / ("coreml" if file == FP16 else "coreml-w8") / Path(file).name


class Package:
    """A package in memory: the whole program as objects of coremltools, and the bytes of its weight file."""

    def __init__(self, path: Path) -> None:
        messages = importlib.import_module("coremltools.proto.Model_pb2")
        self.path = path
        self.model = messages.Model.FromString((path / "Data" / MODEL).read_bytes())
        self.weights = np.fromfile(path / "Data" / WEIGHT_FILE, np.uint8)
        function = self.model.mlProgram.functions["main"]
        self.inputs = function.inputs
        self.block = function.block_specializations[function.opset]

    def write(self) -> None:
        """Bring it to disk; what changed nothing is a mistake of the test."""
        before = sha256_path(self.path)
        (self.path / "Data" / MODEL).write_bytes(self.model.SerializeToString(deterministic=True))
        self.weights.tofile(self.path / "Data" / WEIGHT_FILE)
        assert sha256_path(self.path) != before

    def maker(self, name: str) -> Any:
        """The operation that makes a value."""
        return next(op for op in self.block.operations if any(o.name == name for o in op.outputs))

    def argument(self, operation: Any, parameter: str) -> Any:
        """The operation that makes an argument."""
        return self.maker(operation.inputs[parameter].arguments[0].name)

    def all(self, kind: str) -> list[Any]:
        """Operations of one kind, in order."""
        return [op for op in self.block.operations if op.type == kind]

    def array(self, operation: Any, parameter: str = "val") -> np.ndarray:
        """A stored array, to be changed in place: a const's, or an operand of a compressing operation's."""
        value = self._value(operation, parameter)
        if value.WhichOneof("value") == "blobFileValue":
            at = value.blobFileValue.offset
            size, start = self.weights[at + 8 : at + 24].view(np.uint64)
            raw = self.weights[int(start) : int(start + size)]
        else:
            raw = np.frombuffer(value.immediateValue.tensor.bytes.values, np.uint8).copy()
        tensor = value.type.tensorType
        dtype = {10: np.float16, 11: np.float32, 21: np.int8}[tensor.dataType]
        return raw.view(dtype).reshape([d.constant.size for d in tensor.dimensions])

    def store(self, operation: Any, array: np.ndarray, parameter: str = "val") -> None:
        """Put an array of the same type and shape in the place of a stored one."""
        value = self._value(operation, parameter)
        if value.WhichOneof("value") == "blobFileValue":
            self.array(operation, parameter)[...] = array
        else:
            value.immediateValue.tensor.bytes.values = np.ascontiguousarray(array).tobytes()

    def _value(self, operation: Any, parameter: str) -> Any:
        if parameter in operation.attributes:
            return operation.attributes[parameter]
        [binding] = operation.inputs[parameter].arguments
        return binding.value if binding.WhichOneof("binding") == "value" else self.maker(binding.name).attributes["val"]

    def insert(self, before: str, kind: str, x: str, y: float, like: Any, name: str) -> None:
        """A new operation `name` = `kind`(x, y) of the type of the value `like`, before the first one that reads `before`."""
        at = next(i for i, op in enumerate(self.block.operations) if before in reads(op))
        made = [type(self.block.operations[0])() for _ in range(2)]
        scalar, operation = made
        scalar.type = "const"
        scalar.outputs.add(name=f"{name}_y").type.tensorType.dataType = like.tensorType.dataType
        value = scalar.attributes["val"]
        value.type.CopyFrom(scalar.outputs[0].type)
        if like.tensorType.dataType == 23:  # int32
            value.immediateValue.tensor.ints.values.append(int(y))
        else:
            value.immediateValue.tensor.bytes.values = np.float16(y).tobytes()
        operation.type = kind
        operation.inputs["x"].arguments.add(name=x)
        operation.inputs["y"].arguments.add(name=f"{name}_y")
        operation.outputs.add(name=name).type.CopyFrom(like)
        rest = [type(op).FromString(op.SerializeToString()) for op in self.block.operations]
        del self.block.operations[:]
        self.block.operations.extend([*rest[:at], *made, *rest[at:]])


def reads(operation: Any) -> list[str]:
    """Names of the values that an operation reads."""
    return [b.name for a in operation.inputs.values() for b in a.arguments]


def edit(run: Path, change: Callable[[Package], None], *files: str) -> None:
    """Change packages of a run folder in place."""
    for file in files:
        package = Package(source(run, file))
        change(package)
        package.write()


def rename(package: Package) -> None:
    package.model.description.metadata.author = "written again"


def ignore_mask(package: Package) -> None:
    """As a converter folds it: the input stays, but every use of it reads ones."""
    [mask] = [i.type for i in package.inputs if i.name == "attention_mask"]
    readers = [op.outputs[0].name for op in package.block.operations if "attention_mask" in reads(op)]
    assert readers
    package.insert("attention_mask", "mul", "attention_mask", 0, mask, "nothing")
    for name in readers:
        for argument in package.maker(name).inputs.values():
            for binding in argument.arguments:
                if binding.name == "attention_mask":
                    binding.name = "ones"
    package.insert("ones", "add", "nothing", 1, mask, "ones")


def classifier(package: Package) -> tuple[Any, Any]:
    """The constants of the last layer: weight and bias."""
    last = package.all("linear")[-1]
    weight, bias = (package.argument(last, p) for p in ("weight", "bias"))
    assert package.array(weight).shape[0] == CLASSES
    return weight, bias


def swap_labels(package: Package) -> None:
    """Outputs 0 and 1 change places in the weights of the last layer."""
    for constant in classifier(package):
        package.store(constant, package.array(constant)[[1, 0, 2]])


def always_the_same(package: Package) -> None:
    """The last layer forgets everything: logits are its bias."""
    weight, _ = classifier(package)
    package.store(weight, package.array(weight) * 0)


def a_little_more(package: Package) -> None:
    """Every logit grows by a quarter: more than devices differ, less than w8 may be wrong."""
    for constant in classifier(package):
        package.store(constant, package.array(constant) * np.float16(1.25))


def words(package: Package) -> Any:
    """The operation that makes the table of words: a constant, or a compressing operation."""
    table = next(package.argument(op, "x") for op in package.all("gather") if "input_ids_to_uint16" in reads(op))
    assert table.outputs[0].type.tensorType.dimensions[0].constant.size > 100
    return table


def one_nan(package: Package) -> None:
    """One weight of the pooler, which every text passes through."""
    package.array(package.argument(package.all("linear")[-2], "weight"))[3, 5] = np.nan


def one_hidden_nan(package: Package) -> None:
    """One weight in the embedding of [MASK], a token that no text has: only reading the weights finds it."""
    package.array(words(package))[4, 0] = np.nan


def one_nan_scale(package: Package) -> None:
    """The scale of [MASK]'s row; the numbers themselves are finite, being integers."""
    scales = package.array(words(package), "scale")
    scales.reshape(-1)[4] = np.nan
    assert scales.size > 100


def too_large(package: Package) -> None:
    """The pooler's sums pass fp16's end; tanh makes 1 of infinity, so that no answer shows it."""
    weight = package.argument(package.all("linear")[-2], "weight")
    if weight.type == "const":
        value = package.array(weight)
        value[...] = np.where(value < 0, -60000, 60000)
    else:  # compressed: 255 steps at most, which fp16 still holds
        package.array(weight, "scale")[...] = 250


def other_names(package: Package) -> None:
    """The label names inside change places; the graph stays."""
    [classify] = package.all("classify")
    values = [
        v.immediateValue.tensor.strings
        for v in classify.inputs["classes"].arguments[0].value.immediateValue.list.values
    ]
    names = [v.values[0] for v in values]
    for value, name in zip(values, (names[1], names[0], names[2]), strict=True):
        value.values[0] = name


def turned_probabilities(package: Package) -> None:
    """The classifier reads the softmax of the negative logits; the logits themselves stay right."""
    softmax = package.all("softmax")[-1]
    logits, name = softmax.inputs["x"].arguments[0].name, softmax.outputs[0].name
    like = type(softmax.outputs[0].type).FromString(softmax.outputs[0].type.SerializeToString())
    package.insert(logits, "mul", logits, -1, like, "turned")
    package.maker(name).inputs["x"].arguments[0].name = "turned"


def one_rank_more(package: Package) -> None:
    """An operation declares a result of one more dimension than it makes; the MIL loader of a device refuses that."""
    tensor = package.all("tanh")[-1].outputs[0].type.tensorType
    tensor.dimensions.add().constant.size = 1
    tensor.rank += 1


# The run folder.


def test_a_good_run_passes_and_packs_the_same_bytes(
    cli: Cli, coreml_copy: Path, finished_coreml: Path, kit: Any, tmp_path: Path
) -> None:
    edit(coreml_copy, rename, *FILES)  # the other tests fail because of what they change, not of being written again
    verified = cli("verify", "-m", coreml_copy)
    assert verified.exit_code == 0, verified.output
    for file in FILES:
        shutil.rmtree(source(coreml_copy, file))
        shutil.copytree(source(finished_coreml, file), source(coreml_copy, file))
    assert cli("pack", "-m", coreml_copy, "-o", tmp_path / "early").exit_code == 3  # others than were verified
    assert cli("verify", "-m", coreml_copy).exit_code == 0
    packed = cli("pack", "-m", coreml_copy, "-o", tmp_path / "again")
    assert packed.exit_code == 0, packed.output
    before, after = (kit.tree(f) for f in (finished_coreml / "phone", tmp_path / "again"))
    assert set(after) == set(before)
    # these two name the cores, of which the finished run was given one
    assert [n for n in before if after[n] != before[n] and n not in ("artifacts.json", "README.md")] == []
    assert cli("verify", "-m", tmp_path / "again").exit_code == 0


def test_mask_ignored(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, ignore_mask, *FILES)
    failed = refused(coreml_copy, *(f"{f} padding" for f in FILES))
    assert {f.split()[0] for f in failed} == set(FILES)
    assert not {f"{f} weights" for f in FILES} & set(failed)


def test_two_labels_swapped(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, swap_labels, FP16)
    failed = refused(coreml_copy, *(f"{FP16} {g}" for g in ("golden", "reference", "drop")))
    assert {f.split()[0] for f in failed} == {FP16}
    assert {f"{FP16} weights", f"{FP16} padding", f"{FP16} metadata"}.isdisjoint(failed)


def test_two_labels_swapped_in_w8_and_a_constant_answer(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, swap_labels, W8)
    edit(coreml_copy, always_the_same, FP16)
    failed = refused(
        coreml_copy,
        *(f"{W8} {g}" for g in ("golden", "reference")),
        *(f"{FP16} {g}" for g in ("chance", "drop", "golden")),
    )
    assert {f.split()[0] for f in failed} == set(FILES)


def test_label_names_inside_that_changed_places(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, other_names, *FILES)
    assert refused(coreml_copy, f"{FP16} metadata") == [f"{f} metadata" for f in FILES]


def test_a_classifier_that_reads_other_probabilities(cli: Cli, coreml_copy: Path) -> None:
    edit(coreml_copy, turned_probabilities, FP16)
    result = cli("verify", "-m", coreml_copy)
    assert result.exit_code == 3
    assert f"{FP16}: gate 'classifier' failed:" in result.stderr


def test_one_nan_weight_and_one_nan_scale(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, one_nan, FP16)
    edit(coreml_copy, one_nan_scale, W8)
    failed = refused(coreml_copy, f"{FP16} weights", f"{FP16} finite", f"{W8} weights")
    assert [f for f in failed if f.startswith(W8) and "drop" not in f] == [f"{W8} weights"]


def test_sums_that_fp16_cannot_hold(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, too_large, *FILES)
    failed = refused(coreml_copy, *(f"{f} overflow" for f in FILES))
    assert not {f"{f} {g}" for f in FILES for g in ("finite", "weights")} & set(failed)


def test_one_hidden_nan_weight_and_answers_beyond_the_golden_tolerance(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, one_hidden_nan, FP16)
    edit(coreml_copy, a_little_more, W8)
    # one gate for each: no other reads the weights, none is that strict
    assert refused(coreml_copy, f"{W8} golden") == [f"{FP16} weights", f"{W8} golden"]


def test_packages_in_each_others_place(refused: Refused, coreml_copy: Path) -> None:
    first, second = (source(coreml_copy, f) for f in FILES)
    first.rename(coreml_copy / "other")
    second.rename(first)
    (coreml_copy / "other").rename(second)
    failed = refused(coreml_copy, f"{FP16} types", f"{W8} types")
    # both answer well: only what is stored in them tells them apart
    assert set(failed) == {f"{FP16} types", f"{W8} types"}


@pytest.fixture(scope="module")
def another_model(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artefact folder of another model with the same tokenizer and labels; read-only by convention."""
    folder = tmp_path_factory.mktemp("another")
    model = kit.write_bert(folder / "model", kit.LABELS, seed=9)
    return Path(api.export(str(model), folder / "phone", formats=["coreml"], max_length=kit.LENGTH))


def test_packages_of_another_model(refused: Refused, coreml_copy: Path, another_model: Path) -> None:
    for file in FILES:
        shutil.rmtree(source(coreml_copy, file))
        shutil.copytree(another_model / file, source(coreml_copy, file))
    failed = refused(coreml_copy, *(f"{f} {g}" for f in FILES for g in ("golden", "reference")), f"{FP16} drop")
    assert {f.split()[0] for f in failed} == set(FILES)


def truncated(path: Path) -> None:
    weights = path / "Data" / WEIGHT_FILE
    weights.write_bytes(weights.read_bytes()[:20_000])


def ranked(path: Path) -> None:
    package = Package(path)
    one_rank_more(package)
    package.write()


def no_model(path: Path) -> None:
    (path / "Data" / MODEL).write_bytes(b"\xff" * 100)


def no_weights(path: Path) -> None:
    (path / "Data" / WEIGHT_FILE).unlink()


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        (FP16, truncated, "weight.bin"),
        (W8, ranked, "tanh"),
        (FP16, no_model, "model.mlmodel: no Core ML model:"),
        (W8, no_weights, "weight.bin: file not found."),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_a_package_that_cannot_be_opened(
    cli: Cli, coreml_copy: Path, tmp_path: Path, file: str, change: Callable[[Path], None], said: str
) -> None:
    change(source(coreml_copy, file))
    verified = cli("verify", "-m", coreml_copy)
    assert verified.exit_code in (2, 3), verified.output
    errors = [line for line in verified.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, verified.stderr
    assert said in errors[0]
    assert Path(file).name in errors[0]
    assert "Traceback" not in verified.output
    (tmp_path / "out").mkdir()
    packed = cli("pack", "-m", coreml_copy, "-o", tmp_path / "out" / "packed")
    assert packed.exit_code == 3, packed.output
    assert "changed since it was verified" in packed.stderr
    assert not list((tmp_path / "out").iterdir())


def test_parity_closes_when_the_mask_is_lost_and_the_quantizer_when_it_does_nothing(
    cli: Cli, task: Any, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coremltools.optimize import coreml as compressor

    from pocketbert.export.adapters import mask_4d

    run = Path(shutil.copytree(finished, tmp_path / "run"))
    changes = [
        "export.formats=[coreml]",
        "export.coreml.shapes=fixed",
        "export.lengths=[16, 40]",
        "benchmark={threads: [1]}",
    ]
    command = ["run", task.recipe, *changes, "-o", run, "--overwrite"]
    good = mask_4d._Wrapped._run

    def forgetful(self: Any, attention_mask: Any, **inputs: Any) -> Any:
        # as a converter folds it: the input stays, and nothing depends on it
        return good(self, attention_mask * 0 + 1, **inputs)

    with monkeypatch.context() as patch:
        patch.setattr(mask_4d._Wrapped, "_run", forgetful)
        broken = cli(*command)
    assert broken.exit_code == 3, broken.output
    assert f"parity of {FP16}: differs from transformers by" in broken.stderr
    assert "The mask seems to be ignored." in broken.stderr
    mark = json.loads((run / ".stages" / "coreml.json").read_text())
    assert (mark["status"], len(mark["failures"])) == ("failed", 2)  # the prepared module and the package
    assert (run / FP16).is_dir()
    assert not (run / ".stages" / "coreml-w8.json").exists()

    with monkeypatch.context() as patch:
        patch.setattr(compressor, "linear_quantize_weights", lambda model, **_: model)
        broken = cli(*command)
    assert broken.exit_code == 3, broken.output
    assert "Model_w8.mlpackage: no matrix product has int8 weights; the quantizer did nothing" in broken.stderr
    assert json.loads((run / ".stages" / "coreml-w8.json").read_text())["status"] == "failed"
    assert cli("pack", "-m", run, "-o", tmp_path / "packed").exit_code == 3
    assert not (tmp_path / "packed").exists()

    repaired = cli(*command)
    assert repaired.exit_code == 0, repaired.output
    assert "export to Core ML: finished before, skipped" in repaired.stderr
    # nothing here can be timed, so that there is no benchmark, although the recipe asks for one
    assert not (run / "benchmark.json").exists()
    assert "`python3 coreml/benchmark_on_mac.py` measures it on a Mac" in (run / "phone" / "README.md").read_text()
    assert not (run / "phone" / "onnx").exists()
    alone = cli("benchmark", "-m", run / "phone")
    assert alone.exit_code == 2
    assert "Core ML packages are timed on a Mac" in alone.stderr


def test_a_first_file_that_takes_less_than_the_folder(cli: Cli, coreml_copy: Path) -> None:
    # as shapes: fixed makes it where data.max_length is longer than the longest of export.lengths
    def forget_the_longest(package: Package) -> None:
        for feature in package.model.description.input:
            shapes = feature.type.multiArrayType.enumeratedShapes.shapes
            kept = [list(s.shape) for s in shapes if s.shape[1] < 40]
            assert 0 < len(kept) < len(shapes)
            del shapes[len(kept) :]
            for shape, sizes in zip(shapes, kept, strict=True):
                shape.shape[:] = sizes

    edit(coreml_copy, forget_the_longest, *FILES)
    verified = cli("verify", "-m", coreml_copy)
    assert verified.exit_code == 3  # the long golden rows are recorded for the longer package
    assert "tokenizer.json: gate 'tokenizer' failed" not in verified.stderr


def relist(folder: Path, name: str) -> None:
    """Bring artifacts.json up to date, as a careless hand would, so that only the other gates are left."""
    content = json.loads((folder / "artifacts.json").read_text())
    for record in content["files"]:
        if record["path"] == name:
            record["sha256"], record["bytes"] = sha256_path(folder / name), path_bytes(folder / name)
    (folder / "artifacts.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "change", "gate"),
    [
        (FP16, ignore_mask, "padding"),
        (W8, swap_labels, "golden"),
        (FP16, one_hidden_nan, "weights"),
        (W8, other_names, "metadata"),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_a_folder_with_a_broken_package_that_is_listed(
    cli: Cli, coreml_copy: Path, file: str, change: Callable[[Package], None], gate: str
) -> None:
    phone = coreml_copy / "phone"
    package = Package(phone / file)
    change(package)
    package.write()
    relist(phone, file)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3, result.output
    assert f"{file}: gate '{gate}' failed:" in result.stderr
    assert "gate 'integrity'" not in result.stderr
