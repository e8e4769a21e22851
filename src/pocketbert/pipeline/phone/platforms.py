"""Pack what an app of one platform needs of an artefact folder: `pocketbert pack --for android|ios|web|web-demo|server`.

A class per platform chooses the files (`AppPlatform.choose`), and `write_pack` writes them into a folder that verifies without
the one it was made from. `earlier_pack` and `is_packed` find out what an earlier command left there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pocketbert.core.artefacts import (
    ARTEFACTS_FILE,
    Artefacts,
    FileRecord,
    Kind,
    ModelRecord,
    list_changed_files,
    read_artefacts,
    write_artefacts,
)
from pocketbert.core.artefacts.folder import choose_file, requested_scheme
from pocketbert.core.compare.golden import (
    GOLDEN_FILE,
    GOLDEN_TOKENS_FILE,
    LEAST_GOLDEN_ROWS,
    SIMULATED_FILE,
    read_golden,
    read_simulated,
    write_golden,
    write_simulated,
)
from pocketbert.core.disk.files import copy_path
from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, Problem, first_line, suggest_allowed
from pocketbert.core.families.config import CONFIG_FILE
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import load_onnx
from pocketbert.core.models.tokenizers import TOKENIZER_FILES
from pocketbert.core.predict.inputs import ENTITIES_FILE
from pocketbert.core.predict.sentence_settings import LAYER_FOLDERS, MODULES_FILE, POOLING_FILE
from pocketbert.core.types import Format, Runtime, Scheme, Status
from pocketbert.pipeline.formats.onnx import TRANSFORMERS_JS_FILE
from pocketbert.pipeline.formats.snippets.parts import CHECKED_SCHEMES
from pocketbert.pipeline.gates.confidence import SELFTEST_FILE, write_selftest
from pocketbert.pipeline.phone.web_demo import write_page


@dataclass(frozen=True)
class Choice:
    """The files of an artefact folder that are packed for one platform.

    Attributes:
        models: Model files, those of the folder's default format first.
        others: The other files.
        absent: Reasons why files that an app could use are not packed, by file.
    """

    models: list[ModelRecord]
    others: list[FileRecord] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> list[FileRecord]:
        """All files."""
        return [*self.models, *self.others]


class AppPlatform(ABC):
    """A platform: names the files of an artefact folder that its apps need. There is one subclass per platform.

    Attributes:
        name: Name that ``pocketbert pack --for`` takes.
        title: Name in messages, with the article: ``an iOS app``.
        lacks: Message for a folder without a model file for the platform, and the fix.
        needed: Files that must be there in addition to the model files.
        useful: Files that are packed if the folder has them.
        folders: Folders whose files are packed if the artefact folder has them.
        takes_forms: Whether the platform can run files with inputs besides the text.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    lacks: ClassVar[tuple[str, str]]
    needed: ClassVar[tuple[str, ...]] = (CONFIG_FILE, "tokenizer.json", GOLDEN_FILE, GOLDEN_TOKENS_FILE)
    useful: ClassVar[tuple[str, ...]] = (*TOKENIZER_FILES, SIMULATED_FILE)
    folders: ClassVar[tuple[str, ...]] = ()
    takes_forms: ClassVar[bool] = False

    @abstractmethod
    def models(self, artefacts: Artefacts) -> Choice:
        """Choose the model files for this platform, and name those that an app could use and the folder lacks."""

    def path(self, artefacts: Artefacts, record: ModelRecord) -> str:
        """Return the path that a model file gets in the packed folder."""
        return record.path

    def add(self, models: list[Path], destination: Path, artefacts: Artefacts) -> dict[str, Kind]:
        """Write files for this platform that the artefact folder does not have, and return their kinds by name."""
        return {}

    def choose(self, folder: Path, artefacts: Artefacts) -> Choice:
        """Choose the files of an artefact folder that an app needs, and check that they exist and are unchanged.

        Raises:
            InputError: If the folder has no model file for the platform that passed its gates, a file is missing or changed,
                there are too few golden rows, or the files take more inputs than the app makes.
        """
        if artefacts.form is not None and not self.takes_forms:
            what = f"its files have the form '{artefacts.form}', with inputs that {self.title} does not make."
            raise InputError(Problem(str(folder), what, "Export the model again with --form text."))
        passed = [r for r in artefacts.files if not (isinstance(r, ModelRecord) and r.status is Status.FAILED)]
        choice = self.models(artefacts.model_copy(update={"files": passed}))
        if not choice.models:
            raise InputError(Problem(str(folder), *self.lacks))
        by_path = {r.path: r for r in artefacts.files}
        below = [r for r in artefacts.files if r.path.partition("/")[0] in self.folders]
        named = [by_path[name] for name in (*self.needed, *self.useful) if name in by_path]
        choice = Choice(choice.models, [*named, *below], choice.absent)
        problems = [
            Problem(str(folder / name), what, "Copy the folder again.")
            for name, what in self._find_damage(folder, artefacts, choice)
        ]
        if problems:
            raise InputError(problems)
        read_golden(folder / GOLDEN_FILE, LEAST_GOLDEN_ROWS)
        return choice

    def _find_damage(self, folder: Path, artefacts: Artefacts, choice: Choice) -> Iterator[tuple[str, str]]:
        """Yield path and fault of each needed file that is not listed, and of each chosen file that is missing or changed."""
        listed = {r.path for r in choice.others}
        yield from ((name, "is missing; an app needs it.") for name in self.needed if name not in listed)
        yield from ((r.path, "listed, but not there.") for r in choice.files if not (folder / r.path).exists())
        changed = list_changed_files(folder, artefacts.model_copy(update={"files": choice.files}))
        yield from ((name, "changed since it was packed: its sha256 is not the listed one.") for name in changed)


OPERATORS_FILE = "required_operators.config"
"""Lists what a build of ONNX Runtime must contain to run the packed files, and no more."""
_LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED")
"""An operator can disappear, and a fused one appear, at each of these; above, operators depend on the processor."""
_HEADER = (
    "# Operators that ONNX Runtime {version} needs for {files}, before and after its graph optimizations.\n"
    "# A smaller library: build.py --include_ops_by_config required_operators.config (see ONNX Runtime's documentation).\n"
)


def _missing_reader() -> str | None:
    """Return why the operators of ONNX files cannot be listed on this machine; None if they can be."""
    return None if version_of("onnx") else "onnx is not installed here; pip install 'pocketbert[onnx]', then pack again"


def _write_required_operators(files: Sequence[Path], destination: Path) -> None:
    """Write the operators of ONNX files to a config file for ONNX Runtime's reduced build.

    Source: onnxruntime.ai, "Reduced operator config file": lines ``domain;opset;operator,operator``. ONNX Runtime fuses
    operators when it opens an ``.onnx`` file, so that the operators after each level of optimization are listed too.

    Args:
        files: The ONNX files.
        destination: Path of the config file.

    Raises:
        InputError: If ONNX Runtime refuses a file.
    """
    operators: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    with temporary_folder(destination.parent) as folder:
        for file in files:
            for graph in _optimized(file, folder):
                for domain, opset, name in _operators(graph):
                    operators[domain, opset].add(name)
    lines = [f"{domain};{opset};{','.join(sorted(names))}\n" for (domain, opset), names in sorted(operators.items())]
    header = _HEADER.format(version=version_of("onnxruntime"), files=", ".join(file.name for file in files))
    destination.write_text(header + "".join(lines), encoding="utf-8")


def _optimized(file: Path, folder: Path) -> Iterator[Any]:
    """Yield an ONNX model as it is in its file, and as ONNX Runtime rewrites it at each optimization level."""
    import onnxruntime

    yield load_onnx(file)[0]
    for level in _LEVELS:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors come as exceptions
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        try:
            onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library's own exception classes are private
            first = first_line(error)
            raise InputError(Problem(str(file), f"ONNX Runtime refuses the file: {first}")) from error
        yield load_onnx(folder / "optimized.onnx")[0]


def _operators(model: Any) -> Iterator[tuple[str, int, str]]:
    """Yield domain, operator set and name of every operator in a model, those in subgraphs and functions too."""
    sets = {entry.domain or "ai.onnx": int(entry.version) for entry in model.opset_import}
    functions = {(f.domain or "ai.onnx", f.name) for f in model.functions}
    for node in _nodes([*model.graph.node, *(n for f in model.functions for n in f.node)]):
        domain = node.domain or "ai.onnx"
        if (domain, node.op_type) not in functions:
            yield domain, sets.get(domain, 1), node.op_type


def _nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the given ONNX nodes and all nodes of the subgraphs inside them."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                pending += graph.node


_FORMATS = (Format.ONNX, Format.TFLITE)


class Android(AppPlatform):
    """Android: an ONNX and a TFLite file with the scheme of the default file, which `android_demo` opens.

    TFLite up to 2.16 computes the default int8 file wrongly, so the file that is made for it is packed too.
    """

    name = "android"
    title = "the Android app"
    lacks = (
        "has neither an ONNX nor a TFLite file that passed its gates; Android apps run these.",
        "Export again with --format onnx,tflite.",
    )
    useful = ()

    def models(self, artefacts: Artefacts) -> Choice:
        """Choose an ONNX and a TFLite file, as far as the folder has them, of the default file's scheme or another one (see `choose_file`).

        If the TFLite file is int8, the file made for TFLite 2.16 is added. A note names files for accelerators, which are left out.
        """
        wanted = requested_scheme(artefacts.default_model()) if artefacts.models() else Scheme.FP32
        absent, models = dict[str, str](), list[ModelRecord]()
        for format in _FORMATS:
            of_format = [r for r in artefacts.models() if r.format is format]
            plain = [r for r in of_format if r.plain]
            if not plain:
                absent[f"{format}/"] = f"the folder has no {FORMATS[format].title} file"
                continue
            models.append(choose_file(plain, wanted))
            if format is Format.TFLITE and models[-1].scheme is Scheme.INT8:
                old = [r for r in of_format if r.client is None and r.runtime is Runtime.TFLITE_2_16]
                models += old
                if not old:
                    absent[f"tflite/model_int8_{Runtime.TFLITE_2_16}.tflite"] = (
                        "TFLite up to 2.16 has no int8 file here; 'pocketbert quantize -m FOLDER -o NEW --runtime "
                        f"{Runtime.TFLITE_2_16}' adds it. LiteRT needs none"
                    )
        for record in (r for r in artefacts.models() if r.runtime is not None and r.runtime.accelerator):
            print_note(
                f"left out: {record.path}, made for {record.runtime}; copy it into the app if that opens it there"
            )
        why = _missing_reader() if any(r.format is Format.ONNX for r in models) else None
        return Choice(models, absent={**absent, **({OPERATORS_FILE: why} if why else {})})

    def add(self, models: list[Path], destination: Path, artefacts: Artefacts) -> dict[str, Kind]:
        """Write the list of operators for ONNX Runtime's reduced build, if the package `onnx` is installed."""
        onnx = [path for path in models if path.suffix == FORMATS[Format.ONNX].suffix]
        if not onnx or _missing_reader():
            return {}
        _write_required_operators(onnx, destination / OPERATORS_FILE)
        return {OPERATORS_FILE: Kind.CONFIG}


class Ios(AppPlatform):
    """iOS: one Core ML package, the tokenizer's files, and its sources in Swift if the folder has them."""

    name = "ios"
    title = "an iOS app"
    lacks = (
        "has no Core ML package that passed its gates; iOS apps run these.",
        "Export again with --format coreml.",
    )
    folders = ("ios",)
    takes_forms = True

    def models(self, artefacts: Artefacts) -> Choice:
        """Choose the Core ML package of the default file's scheme; see `choose_file` if there is none of it."""
        packages = [r for r in artefacts.models() if r.format is Format.COREML and r.plain]
        return Choice([choose_file(packages, requested_scheme(artefacts.default_model()))] if packages else [])


class Server(AppPlatform):
    """A server: one file for `pocketbert.load`, `pocketbert predict` or ONNX Runtime."""

    name = "server"
    title = "a server"
    lacks = (
        "has neither an ONNX nor a TFLite file that passed its gates; servers run these.",
        "Export again with --format onnx.",
    )
    useful = (*AppPlatform.useful, MODULES_FILE, POOLING_FILE, ENTITIES_FILE)
    folders = LAYER_FOLDERS
    takes_forms = True

    def models(self, artefacts: Artefacts) -> Choice:
        """Choose the default file; if that is a Core ML package, choose an ONNX or TFLite file, of its scheme if there is one."""
        if not artefacts.models():
            return Choice([])
        default = artefacts.default_model()
        if default.format is not Format.COREML:
            return Choice([default])
        files = [r for format in _FORMATS for r in artefacts.models() if r.format is format and r.plain]
        return Choice([choose_file(files, requested_scheme(default))] if files else [])


class Web(AppPlatform):
    """The web: one ONNX file under the name that transformers.js asks for, `onnx/model_quantized.onnx` for int8."""

    name = "web"
    title = "transformers.js"
    lacks = (
        "has no ONNX file in fp32 or int8 that passed its gates; transformers.js runs these.",
        "Export again with --format onnx.",
    )
    useful = (*AppPlatform.useful, MODULES_FILE, POOLING_FILE)
    folders = LAYER_FOLDERS

    def models(self, artefacts: Artefacts) -> Choice:
        """Choose the ONNX file in int8, else the one in fp32, since browsers ask for no other scheme by default."""
        files = [r for r in artefacts.models() if r.format is Format.ONNX and r.plain and r.scheme in CHECKED_SCHEMES]
        return Choice([choose_file(files, Scheme.INT8)] if files else [])

    def path(self, artefacts: Artefacts, record: ModelRecord) -> str:
        """Return the path in the packed folder. For the int8 file it is the one that transformers.js asks for."""
        return TRANSFORMERS_JS_FILE if record.scheme is Scheme.INT8 else record.path


class WebDemo(AppPlatform):
    """A static page in which every ONNX and TFLite file of the folder answers what is typed."""

    name = "web-demo"
    title = "a web page"
    lacks = (
        "has neither an ONNX nor a TFLite file that passed its gates; browsers run these.",
        "Export again with --format onnx,tflite.",
    )
    useful = (SIMULATED_FILE,)

    def models(self, artefacts: Artefacts) -> Choice:
        """Choose all ONNX and TFLite files that are not made for one client or runtime, the default file first."""
        plain = [r for format in _FORMATS for r in artefacts.models() if r.format is format and r.plain]
        return Choice(sorted(plain, key=lambda r: r is not artefacts.default_model()))

    def add(self, models: list[Path], destination: Path, artefacts: Artefacts) -> dict[str, Kind]:
        """Write the page, the JavaScript runtime and the engines."""
        return write_page(models, destination, artefacts)


PLATFORMS: dict[str, AppPlatform] = {p.name: p for p in (Android(), Ios(), Web(), WebDemo(), Server())}


def platform_named(name: str) -> AppPlatform:
    """Return the platform with a name such as ``android``.

    Raises:
        InputError: If there is no platform of this name.
    """
    if name not in PLATFORMS:
        raise InputError(Problem("--for", f"'{name}' is not a platform; {suggest_allowed(name, [*PLATFORMS])}."))
    return PLATFORMS[name]


_REWRITTEN = (GOLDEN_FILE, SIMULATED_FILE)
"""Files with entries by model file: the entries of files that are not packed are left out."""


def earlier_pack(platform: AppPlatform, output: Path) -> Artefacts | None:
    """Read the artifacts.json that an earlier pack for this platform left in `output`; None if there is none.

    Raises:
        InputError: If something else wrote the artifacts.json there, or it cannot be read.
    """
    path = output / ARTEFACTS_FILE
    if not path.exists() and not path.is_symlink():
        return None
    try:
        earlier = read_artefacts(output)
    except InputError:
        earlier = None
    if earlier is None or earlier.packed_for != platform.name:
        what = (
            f"holds a {ARTEFACTS_FILE} that 'pocketbert pack --for {platform.name}' did not write; nothing was written."
        )
        raise InputError(Problem(str(output), what, "Choose a new folder with -o/--output."))
    return earlier


def is_packed(platform: AppPlatform, output: Path, earlier: Artefacts, artefacts: Artefacts, choice: Choice) -> bool:
    """Return whether `output` holds a pack of the same artefact folder with the model files of `choice`, and no file of it has changed."""
    same = earlier.made_from == artefacts.made_from and earlier.absent == choice.absent
    packed = [(r.path, r.sha256) for r in earlier.models()]
    if not same or sorted(packed) != sorted((platform.path(artefacts, r), r.sha256) for r in choice.models):
        return False
    return all((output / r.path).exists() for r in earlier.files) and not list_changed_files(output, earlier)


def write_pack(platform: AppPlatform, folder: Path, artefacts: Artefacts, choice: Choice, destination: Path) -> None:
    """Write a platform's pack: the chosen files, golden rows, the platform's own files, and ``artifacts.json``.

    Golden rows are recorded inputs with the outputs that each model file must give.

    Args:
        platform: The platform of the app.
        folder: The artefact folder.
        artefacts: Content of the folder's ``artifacts.json``.
        choice: The files to pack.
        destination: Empty folder to write into.
    """
    names = {r.path: platform.path(artefacts, r) for r in choice.models}
    for record in choice.files:
        if record.path not in _REWRITTEN:
            target = destination / names.get(record.path, record.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_path(folder / record.path, target)
    _write_golden(folder, names, destination)
    kinds = {GOLDEN_FILE: Kind.GOLDEN}
    if any(r.path == SIMULATED_FILE for r in choice.others):
        _write_simulated(folder, names, destination)
        kinds[SIMULATED_FILE] = Kind.FIGURES
    default = next((r for r in choice.models if r.default), choice.models[0])
    models = [r.model_copy(update={"path": names[r.path], "default": r is default}) for r in choice.models]
    write_selftest(destination, artefacts.model_copy(update={"files": models}))
    kinds[SELFTEST_FILE] = Kind.GOLDEN
    kinds |= platform.add([destination / r.path for r in models], destination, artefacts)
    others = [r for r in choice.others if r.path not in _REWRITTEN]
    written = [FileRecord.of(destination, name, kind) for name, kind in kinds.items()]
    files = sorted([*models, *others, *written], key=lambda r: r.path)
    update = {"files": files, "absent": choice.absent, "packed_for": platform.name}
    write_artefacts(destination, artefacts.model_copy(update=update))


def _write_golden(folder: Path, names: dict[str, str], destination: Path) -> None:
    """Copy the folder's golden rows, with outputs and tolerances of the packed model files only.

    `names` maps the paths of the packed files to their new paths.
    """
    rows = [
        row.model_copy(
            update={
                "outputs": {names[p]: v for p, v in row.outputs.items() if p in names},
                "tolerance": {names[p]: v for p, v in row.tolerance.items() if p in names},
            }
        )
        for row in read_golden(folder / GOLDEN_FILE)
    ]
    write_golden(destination / GOLDEN_FILE, rows)


def _write_simulated(folder: Path, names: dict[str, str], destination: Path) -> None:
    """Copy the folder's simulated errors and ranges of the packed model files only.

    `names` maps the paths of the packed files to their new paths.
    """
    simulated = read_simulated(folder)
    errors = {names[p]: e for p, e in simulated.errors.items() if p in names}
    ranges = {names[p]: r for p, r in simulated.ranges.items() if p in names}
    write_simulated(destination, simulated.model_copy(update={"errors": errors, "ranges": ranges}))
