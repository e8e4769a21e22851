"""The section `quantize` of a recipe: the smaller files of each format, with their schemes, runtimes and roles.

`list_choice_problems` and `list_calibration_problems` list what is wrong with a choice; `list_quantized_files` builds the files of a
command's options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from pocketbert.core.formats import FORMATS
from pocketbert.core.recipe.sections import Section, WrittenFile
from pocketbert.core.recipe.student import RecipeBudget
from pocketbert.core.types import Calibration, Format, Role, Runtime, Scheme

UNCHANGED = "none"
"""Choice of a role or a name whose weights stay as they were exported; null in a recipe."""

_Choice = Annotated[
    Scheme | Literal["none"],
    BeforeValidator(
        lambda value: UNCHANGED if value is None else value, json_schema_input_type=Scheme | Literal["none"] | None
    ),
]
"""The scheme of some weights."""


class QuantizedFile(Section):
    """One quantized file to write: by default in each format that has its scheme."""

    scheme: Scheme = Field(description="How its numbers are stored and computed.")
    runtime: Runtime | None = Field(None, description="The runtime it is made for; default any.")
    format: Format | None = Field(
        None, description="The only format that gets it; default every one that has the scheme."
    )
    roles: dict[Role, _Choice] = Field(
        {}, description="As quantize.roles, for this file only; a role that both list has the choice of this one."
    )
    names: dict[str, _Choice] = Field(
        {}, description="As quantize.names, for this file only; these count after those of all files."
    )

    @property
    def title(self) -> str:
        """Description of the file in errors, e.g. ``'a8w8' for openvino``."""
        only = f" of {self.format}" if self.format else ""
        return f"'{self.scheme}'{f' for {self.runtime}' if self.runtime else ''}{only}"

    def concerns(self, format: Format) -> bool:
        """Return whether the entry allows a file in this format."""
        return self.format in (None, format)

    def collides(self, other: QuantizedFile) -> bool:
        """Return whether two entries would write the same file in at least one format."""
        same = (self.scheme, self.runtime) == (other.scheme, other.runtime)
        return same and (self.format is other.format or None in (self.format, other.format))


def _serialize_file(file: QuantizedFile) -> object:
    """Convert an entry of `files` to its shortest form for a recipe: the scheme alone if nothing else is set."""
    own = {"scheme": file.scheme, "runtime": file.runtime, "format": file.format}
    entry: dict[str, object] = {key: value.value for key, value in own.items() if value is not None}
    entry |= {"roles": {r.value: str(c) for r, c in file.roles.items()}} if file.roles else {}
    entry |= {"names": {n: str(c) for n, c in file.names.items()}} if file.names else {}
    return entry["scheme"] if len(entry) == 1 else entry


_Entry = Annotated[
    QuantizedFile,
    BeforeValidator(
        lambda value: {"scheme": value} if isinstance(value, str) else value,
        json_schema_input_type=Scheme | QuantizedFile,
    ),
    PlainSerializer(_serialize_file),
]


class QuantizeSection(Section):
    """Which quantized files are written, and how."""

    scheme: Scheme = Field(
        Scheme.INT8,
        description="Short form of files with one entry: int8 (in Core ML: w8), small, w4, a8w8 and others, see "
        "docs/lab/quantization.md; fp32 leaves the files as they are exported.",
    )
    files: list[_Entry] | None = Field(
        None,
        min_length=1,
        description="Smaller files, each a scheme or {scheme, runtime, format}; the first scheme is the default "
        "file's. For runtimes: {scheme: int8, runtime: tflite216} for TFLite up to 2.16; {scheme: a8w8, runtime: "
        "openvino} for OpenVINO on a computer, calibrated on training texts; {scheme: fp16, runtime: gpu} for the GPU "
        "of a phone; {scheme: a16w8, runtime: npu} for a neural processor and {scheme: a16w8, runtime: qnn} for that "
        "of a Snapdragon, calibrated too.",
    )
    roles: dict[Role, _Choice] = Field(
        {},
        description="Scheme of each role, null to leave it as it was exported: {ffn_down: null, embedding: w4}. Roles "
        "that are not listed have the scheme of the file, but for ffn_down in a8w8 of TFLite (int8) and Core ML (w8).",
    )
    names: dict[str, _Choice] = Field(
        {},
        description="The same by path of a module, with * and ?; a name counts before a role, a later name before an "
        "earlier "
        'one: {"encoder.layer.2.*": null}.',
    )
    calibration: Calibration = Field(
        Calibration.MINMAX,
        description="How a8w8 and a16w8 choose the range of an activation from its numbers on the training texts: "
        "minmax, from the smallest to the largest; mse, with the least mean squared error of rounding; percentile, "
        "without the furthest 0.01 %.",
    )
    budget: RecipeBudget | None = Field(
        None,
        description="Limits inside which `run` chooses the best file of each format: data.train ranks candidates, a "
        "share of data.eval decides. files then lists the schemes to consider; default all.",
    )

    @property
    def chosen(self) -> dict[str, str]:
        """Schemes chosen for single roles (kinds of weights) and for named modules, as text; empty if none are."""
        return {**{r.value: str(c) for r, c in self.roles.items()}, **{n: str(c) for n, c in self.names.items()}}

    def of(self, format: Format, scheme: Scheme, runtime: Runtime | None = None) -> QuantizeSection:
        """Return a copy of the section for one file, in which the file's own `roles` and `names` override the section's.

        Args:
            format: Format of the file.
            scheme: Quantization scheme of the file, as the format stores it.
            runtime: The runtime that the file is made for; None for any.
        """
        info, roles, names = FORMATS[format], dict(self.roles), dict(self.names)
        for file in self.files or ():
            schemes = (file.scheme, info.smaller(file.scheme) if info.takes(file.scheme) else None)
            if file.concerns(format) and file.runtime is runtime and scheme in schemes:
                roles |= file.roles
                names = {**{n: c for n, c in names.items() if n not in file.names}, **file.names}
                break
        return self.model_copy(update={"roles": roles, "names": names})

    def choosing(self, files: Sequence[QuantizedFile]) -> QuantizeSection:
        """Return a new section that makes the given files.

        If one of them is static, it has this section's calibration method.
        """
        static = any(f.scheme.static for f in files)
        return QuantizeSection(files=[*files], calibration=self.calibration if static else Calibration.MINMAX)

    @property
    def candidates(self) -> tuple[Scheme, ...]:
        """The schemes that a search within a budget may choose from; empty for all."""
        return tuple(f.scheme for f in self.files or ())

    @property
    def wanted(self) -> tuple[QuantizedFile, ...]:
        """The quantized files that the recipe lists; empty if a budget chooses them later."""
        if self.budget is not None:
            return ()
        return tuple(self.files) if self.files is not None else (QuantizedFile(scheme=self.scheme),)

    def written(self, formats: Sequence[Format]) -> frozenset[WrittenFile] | None:
        """Return (format, scheme, runtime) of the listed files for these formats; None if a budget chooses the files.

        A file for one runtime counts for the format of that runtime; a file for any runtime counts for each format that
        its entry allows and that has its scheme.
        """
        if self.budget is not None:
            return None
        return frozenset(
            (format, f.scheme, f.runtime)
            for format in formats
            for f in self.wanted
            if (
                _is_possible(f, format)
                if f.runtime is None
                else f.concerns(format) and (f.scheme, f.runtime) in FORMATS[format].bounds
            )
        )

    @model_validator(mode="after")
    def _check_budget(self) -> QuantizeSection:
        """Raise ValueError for settings that the search within a budget decides itself, such as a scheme or roles."""
        if self.budget is None:
            return self
        if self.chosen or any(f.roles or f.names for f in self.files or ()):
            raise ValueError("a budget chooses which roles stay float: leave roles and names out")
        if "scheme" in self.model_fields_set:
            raise ValueError(
                "a budget chooses the scheme: leave scheme out, or list the schemes to consider in files "
                "(as an override of both: 'quantize={budget: {...}}')"
            )
        specific = [f.title for f in self.files or () if f.runtime is not None or f.format is not None]
        if specific:
            raise ValueError(
                f"a budget considers schemes for any runtime and format: leave these out of {', '.join(specific)}"
            )
        return self

    @model_validator(mode="after")
    def _check_files(self) -> QuantizeSection:
        """Check that the entries of `files` do not contradict `scheme` or each other, and return the section.

        Raises:
            ValueError: If `scheme` and `files` are both given, if an entry of `files` is listed twice, or if two
                entries would write the same file and at least one of them chooses `roles` or `names` of weights.
        """
        if self.files is None:
            return self
        if "scheme" in self.model_fields_set:
            raise ValueError(
                "scheme is the short form of files with one entry: give only one of them "
                f"(as an override of both: 'quantize={{files: [{self.scheme}, ...]}}')"
            )
        twice = [f.title for i, f in enumerate(self.files) if f in self.files[:i]]
        if twice:
            raise ValueError(f"files lists {', '.join(dict.fromkeys(twice))} twice")
        colliding = [
            f.title
            for i, f in enumerate(self.files)
            for other in self.files[:i]
            if f.collides(other) and (f.roles or f.names or other.roles or other.names)
        ]
        if colliding:
            raise ValueError(
                f"files chooses roles of {', '.join(dict.fromkeys(colliding))} twice; a format has one such file"
            )
        return self

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Serialize the section without empty keys, and without `scheme` beside `files` or a budget."""
        entries: dict[str, Any] = handler(self)
        left_out = [k for k in ("budget", "roles", "names") if not entries.get(k)]
        left_out += ["calibration"] if self.calibration is Calibration.MINMAX else []
        left_out += ["scheme"] if self.files is not None or self.budget is not None else []
        return {k: v for k, v in entries.items() if k not in left_out}


def list_calibration_problems(section: QuantizeSection) -> list[str]:
    """Return a problem in a list if a calibration method is set that no listed quantized file uses; else an empty list.

    A recipe that lists no quantized file has no problem, since a budget search may add files later.
    """
    files = section.files or [] if section.budget is not None else section.wanted
    schemes = list(dict.fromkeys(f.scheme for f in files if f.scheme is not Scheme.FP32))
    if section.calibration is Calibration.MINMAX or not schemes or any(s.static for s in schemes):
        return []
    fix = "add a static scheme, such as a8w8, or leave calibration out"
    return [f"quantize.calibration: {', '.join(schemes)} measures no ranges: {fix}"]


def list_choice_problems(wanted: Sequence[QuantizedFile], formats: Sequence[Format], calibration: bool) -> list[str]:
    """Return what is wrong with the chosen quantized files, such as schemes that no exported format has: sentences.

    A file that names no runtime is made in each format that has its scheme; if there are such files, each format must
    get at least one of them. A file for one runtime is made in the format of that runtime.

    Args:
        wanted: The quantized files that the recipe asks for.
        formats: The formats that are exported.
        calibration: Whether there are training texts on which activation ranges can be measured, as static schemes need
            them.
    """
    forms = [(format, scheme, runtime) for format, info in FORMATS.items() for scheme, runtime in info.forms]
    problems: list[str] = []
    for_any: list[QuantizedFile] = []
    for file in wanted:
        title, runtime = file.title, file.runtime
        homes = [f for f, s, r in forms if (s, r) == (file.scheme, runtime) and file.concerns(f)]
        if runtime is None and any(_is_possible(file, f) for f in FORMATS):
            for_any.append(file)
            if file.format is not None and file.format not in formats:
                problems.append(f"{title}: add {file.format} to export.formats")
        elif file.format is not None and not homes:
            known = ", ".join(FORMATS[file.format].schemes)
            problems.append(f"{title} does not exist in this version, {file.format} has {known}; choose one of these")
        elif not homes:
            problems.append(f"{title} does not exist in this version{_alternatives(file, forms, calibration)}")
        elif homes[0] not in formats:
            problems.append(f"{title} is a file of {homes[0]}; add {homes[0]} to export.formats")
        if (homes or file in for_any) and file.scheme.static and not calibration:
            problems.append(f"{title} measures ranges on training texts; name them in data.train")
    return problems + _coverage_problems(for_any, list(dict.fromkeys(formats)))


def _alternatives(file: QuantizedFile, forms: Sequence[tuple[Format, Scheme, Runtime]], calibration: bool) -> str:
    """Return the alternatives to an impossible file: runtimes that have its scheme, or schemes that its runtime has."""
    if file.runtime is None:
        runtimes = [f"{r} ({f})" for f, s, r in forms if s is file.scheme]
        return f", only for {', '.join(runtimes)}; choose {'this runtime' if len(runtimes) == 1 else 'one of these'}"
    schemes = {s: f"{s} ({f})" for f, s, r in forms if r is file.runtime}
    choose = f"choose {'this scheme' if len(schemes) == 1 else 'one of these'}"
    if not calibration and all(s.static for s in schemes):
        choose += ", which measures ranges on training texts, and name these in data.train"
    return f"; {file.runtime} has only {', '.join(schemes.values())}; {choose}"


def _is_possible(file: QuantizedFile, format: Format) -> bool:
    """Return whether a format can have this file, made for any runtime."""
    return file.concerns(format) and FORMATS[format].takes(file.scheme)


def _coverage_problems(files: Sequence[QuantizedFile], formats: Sequence[Format]) -> list[str]:
    """Return sentences about formats in which none of the files is possible, and schemes that no exported format has."""
    names, problems = " or ".join(f"'{f.scheme}'" for f in files), []
    without = [f for f in formats if files and not any(_is_possible(file, f) for file in files)]
    for format in without:
        known = ", ".join(FORMATS[format].schemes)
        fix = f"leave {format} out of export.formats, or choose another scheme"
        problems.append(f"{format} has no {names} in this version, only {known}; {fix}")
    for scheme in dict.fromkeys(f.scheme for f in files if f.format is None):
        if len(without) < len(formats) and not any(FORMATS[f].takes(scheme) for f in formats):
            homes = [f.value for f, info in FORMATS.items() if info.takes(scheme)]
            problems.append(f"no exported format has '{scheme}', only {', '.join(homes)}; add one to export.formats")
    return problems


def list_quantized_files(schemes: Sequence[Scheme], runtimes: Sequence[Runtime]) -> list[QuantizedFile]:
    """Combine the schemes and runtimes that a command was given into the list of quantized files to make.

    Args:
        schemes: Each scheme gives a file for any runtime, unless it exists for listed runtimes only, or a listed
            accelerator has it.
        runtimes: Each runtime gives a further file for each of the schemes that exist for it. If none does, it gets a
            file of the first scheme, which `list_choice_problems` then reports.
    """
    forms = [form for info in FORMATS.values() for form in info.forms]
    pairs = [(s, r) for r in runtimes for s in schemes if (s, r) in forms]
    unpaired = [r for r in runtimes if r not in [runtime for _, runtime in pairs]]
    paired_schemes = {s for s, _ in pairs}
    of_accelerators = {s for s, r in pairs if r.accelerator}
    for_any = [
        s
        for s in schemes
        if s not in paired_schemes or (s not in of_accelerators and any(info.takes(s) for info in FORMATS.values()))
    ]
    files = [*((s, None) for s in for_any), *pairs, *((schemes[0], r) for r in unpaired)]
    return [QuantizedFile(scheme=s, runtime=r) for s, r in dict.fromkeys(files)]
