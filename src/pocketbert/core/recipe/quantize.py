"""The recipe's section on smaller files: which schemes, for which runtimes, and what is wrong with a choice."""

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

LEFT = "none"
"""What a role or a name has that is left as it was exported; null in a recipe."""


def _left(value: object) -> object:
    return LEFT if value is None else value


Choice = Annotated[
    Scheme | Literal["none"], BeforeValidator(_left, json_schema_input_type=Scheme | Literal["none"] | None)
]
"""The scheme of some weights."""


class QuantizedFile(Section):
    """One smaller file of each format that has the scheme."""

    scheme: Scheme = Field(description="How its numbers are stored and computed.")
    runtime: Runtime | None = Field(None, description="The runtime it is made for; default any.")
    format: Format | None = Field(
        None, description="The only format that gets it; default every one that has the scheme."
    )
    roles: dict[Role, Choice] = Field(
        {}, description="As quantize.roles, for this file only; a role that both list has the choice of this one."
    )
    names: dict[str, Choice] = Field(
        {}, description="As quantize.names, for this file only; these count after those of all files."
    )

    @property
    def title(self) -> str:
        """What errors call it, e.g. ``'a8w8' for openvino``."""
        only = f" of {self.format}" if self.format else ""
        return f"'{self.scheme}'{f' for {self.runtime}' if self.runtime else ''}{only}"

    def concerns(self, format: Format) -> bool:
        """Whether a format may get it."""
        return self.format in (None, format)

    def collides(self, other: QuantizedFile) -> bool:
        """Whether both are one file of some format, which cannot have two choices of roles."""
        one = (self.scheme, self.runtime) == (other.scheme, other.runtime)
        return one and (self.format is other.format or None in (self.format, other.format))


def _long_form(value: object) -> object:
    return {"scheme": value} if isinstance(value, str) else value


def _short_form(file: QuantizedFile) -> object:
    long = {"scheme": file.scheme, "runtime": file.runtime, "format": file.format}
    given: dict[str, object] = {key: value.value for key, value in long.items() if value is not None}
    given |= {"roles": {r.value: str(c) for r, c in file.roles.items()}} if file.roles else {}
    given |= {"names": {n: str(c) for n, c in file.names.items()}} if file.names else {}
    return given["scheme"] if len(given) == 1 else given


_Entry = Annotated[
    QuantizedFile,
    BeforeValidator(_long_form, json_schema_input_type=Scheme | QuantizedFile),
    PlainSerializer(_short_form),
]


class QuantizeSection(Section):
    """How to make the files small."""

    scheme: Scheme = Field(
        Scheme.INT8,
        description="Short form of files with one entry: int8 (in Core ML: w8), small, w4, a8w8 and others, see "
        "docs/quantization.md; fp32 leaves the files as they are exported.",
    )
    files: list[_Entry] | None = Field(
        None,
        min_length=1,
        description="Smaller files, each a scheme or {scheme, runtime, format}; the first scheme is the default file's. For runtimes: "
        "{scheme: int8, runtime: tflite216} for TFLite up to 2.16; {scheme: a8w8, runtime: openvino} for OpenVINO on a "
        "computer, calibrated on training texts; {scheme: fp16, runtime: gpu} for the GPU of a phone; "
        "{scheme: a16w8, runtime: npu} for a neural processor and {scheme: a16w8, runtime: qnn} for that of a Snapdragon, "
        "calibrated too.",
    )
    roles: dict[Role, Choice] = Field(
        {},
        description="Scheme of each role, null to leave it as it was exported: {ffn_down: null, embedding: w4}. Roles that are not listed "
        "have the scheme of the file, but for ffn_down in a8w8 of TFLite (int8) and Core ML (w8).",
    )
    names: dict[str, Choice] = Field(
        {},
        description="The same by path of a module, with * and ?; a name counts before a role, a later name before an earlier "
        'one: {"encoder.layer.2.*": null}.',
    )
    calibration: Calibration = Field(
        Calibration.MINMAX,
        description="How a8w8 and a16w8 choose the range of an activation from its numbers on the training texts: minmax, from the smallest to "
        "the largest; mse, with the least mean squared error of rounding; percentile, without the furthest 0.01 %.",
    )
    budget: RecipeBudget | None = Field(
        None,
        description="Limits inside which `run` chooses the best file of each format: data.train ranks candidates, a share of "
        "data.eval decides. files then lists the schemes to consider; default all.",
    )

    @property
    def chosen(self) -> dict[str, str]:
        """Schemes of roles and names, as they are written in a recipe; empty where all weights have the file's."""
        return {**{r.value: str(c) for r, c in self.roles.items()}, **{n: str(c) for n, c in self.names.items()}}

    def of(self, format: Format, scheme: Scheme, runtime: Runtime | None = None) -> QuantizeSection:
        """Return the section with the choices of one file.

        Args:
            format: Format of the file.
            scheme: Scheme of the file, as the format has it.
            runtime: The runtime that it is made for.
        """
        own = [
            f
            for f in self.files or ()
            if f.concerns(format)
            and f.runtime is runtime
            and scheme in (f.scheme, FORMATS[format].smaller(f.scheme) if FORMATS[format].takes(f.scheme) else None)
        ]
        roles, names = dict(self.roles), dict(self.names)
        for file in own[:1]:
            roles |= file.roles
            names = {**{n: c for n, c in names.items() if n not in file.names}, **file.names}
        return self.model_copy(update={"roles": roles, "names": names})

    def choosing(self, files: Sequence[QuantizedFile]) -> QuantizeSection:
        """Return a section of some files, with ranges that are chosen as in this one.

        Args:
            files: The files.
        """
        static = any(f.scheme.static for f in files)
        return QuantizeSection(files=[*files], calibration=self.calibration if static else Calibration.MINMAX)

    @property
    def candidates(self) -> tuple[Scheme, ...]:
        """With a budget: the schemes to consider; empty for all."""
        return tuple(f.scheme for f in self.files or ())

    @property
    def wanted(self) -> tuple[QuantizedFile, ...]:
        """The smaller files that are asked for; none where a budget has not chosen them yet."""
        if self.budget is not None:
            return ()
        return tuple(self.files) if self.files is not None else (QuantizedFile(scheme=self.scheme),)

    def written(self, formats: Sequence[Format]) -> frozenset[WrittenFile] | None:
        """Format, scheme and runtime of the smaller files; None where a budget chooses them.

        Args:
            formats: The formats that are exported.
        """
        if self.budget is not None:
            return None
        return frozenset(
            (format, f.scheme, f.runtime)
            for format in formats
            for f in self.wanted
            if f.concerns(format) and (f.runtime is None or (f.scheme, f.runtime) in FORMATS[format].bounds)
        )

    @model_validator(mode="after")
    def _schemes_only(self) -> QuantizeSection:
        if self.budget is None:
            return self
        if self.chosen or any(f.roles or f.names for f in self.files or ()):
            raise ValueError("a budget chooses which roles stay float: leave roles and names out")
        if "scheme" in self.model_fields_set:
            raise ValueError(
                "a budget chooses the scheme: leave scheme out, or list the schemes to consider in files "
                "(as an override of both: 'quantize={budget: {...}}')"
            )
        bound = [f.title for f in self.files or () if f.runtime is not None or f.format is not None]
        if bound:
            raise ValueError(
                f"a budget considers schemes for any runtime and format: leave these out of {', '.join(bound)}"
            )
        return self

    @model_validator(mode="after")
    def _once(self) -> QuantizeSection:
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
        chosen = [
            f.title
            for i, f in enumerate(self.files)
            for other in self.files[:i]
            if f.collides(other) and (f.roles or f.names or other.roles or other.names)
        ]
        if chosen:
            raise ValueError(
                f"files chooses roles of {', '.join(dict.fromkeys(chosen))} twice; a format has one such file"
            )
        return self

    @model_serializer(mode="wrap")
    def _one_form(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        out: dict[str, Any] = handler(self)
        chosen = self.files is not None or self.budget is not None
        empty = [k for k in ("budget", "roles", "names") if not out.get(k)]
        empty += ["calibration"] if self.calibration is Calibration.MINMAX else []
        return {k: v for k, v in out.items() if not (k == "scheme" and chosen) and k not in empty}


def calibration_problems(section: QuantizeSection) -> list[str]:
    """Tell that nothing reads the method of calibration, with the fix and without a full stop.

    Without any smaller file it is no problem: whoever searches for files adds them later.

    Args:
        section: The section `quantize`.
    """
    files = section.files or [] if section.budget is not None else section.wanted
    schemes = list(dict.fromkeys(f.scheme for f in files if f.scheme is not Scheme.FP32))
    if section.calibration is Calibration.MINMAX or not schemes or any(s.static for s in schemes):
        return []
    return [
        f"quantize.calibration: {', '.join(schemes)} measures no ranges: add a static scheme, such as a8w8, or leave calibration out"
    ]


def choice_problems(wanted: Sequence[QuantizedFile], formats: Sequence[Format], calibration: bool) -> list[str]:
    """List what is wrong with a choice of smaller files, each with the fix and without a full stop.

    A plain scheme concerns the formats that have it, and each format must have one of them; a file for a runtime concerns
    the format that has it.

    Args:
        wanted: The smaller files.
        formats: The formats that are exported.
        calibration: Whether there are training texts, on which static schemes measure ranges.
    """
    forms = [(format, scheme, runtime) for format, info in FORMATS.items() for scheme, runtime in info.forms]
    out: list[str] = []
    plain: list[QuantizedFile] = []
    for file in wanted:
        title, runtime = file.title, file.runtime
        homes = [f for f, s, r in forms if (s, r) == (file.scheme, runtime) and file.concerns(f)]
        if runtime is None and any(_made(file, f) for f in FORMATS):
            plain.append(file)
            if file.format is not None and file.format not in formats:
                out.append(f"{title}: add {file.format} to export.formats")
        elif file.format is not None and not homes:
            known = ", ".join(FORMATS[file.format].schemes)
            out.append(f"{title} does not exist in this version, {file.format} has {known}; choose one of these")
        elif not homes:
            out.append(f"{title} does not exist in this version{_what_exists(file, forms, calibration)}")
        elif homes[0] not in formats:
            out.append(f"{title} is a file of {homes[0]}; add {homes[0]} to export.formats")
        if (homes or file in plain) and file.scheme.static and not calibration:
            out.append(f"{title} measures ranges on training texts; name them in data.train")
    return out + _plain_problems(plain, list(dict.fromkeys(formats)))


def _what_exists(file: QuantizedFile, forms: Sequence[tuple[Format, Scheme, Runtime]], calibration: bool) -> str:
    """Name the runtimes that have a file's scheme, or the schemes that its runtime has, and the next step."""
    if file.runtime is None:
        runtimes = [f"{r} ({f})" for f, s, r in forms if s is file.scheme]
        return f", only for {', '.join(runtimes)}; choose {'this runtime' if len(runtimes) == 1 else 'one of these'}"
    schemes = {s: f"{s} ({f})" for f, s, r in forms if r is file.runtime}
    choose = f"choose {'this scheme' if len(schemes) == 1 else 'one of these'}"
    if not calibration and all(s.static for s in schemes):
        choose += ", which measures ranges on training texts, and name these in data.train"
    return f"; {file.runtime} has only {', '.join(schemes.values())}; {choose}"


def _made(file: QuantizedFile, format: Format) -> bool:
    """Whether a file for any runtime is one that a format can have."""
    return file.concerns(format) and FORMATS[format].takes(file.scheme)


def _plain_problems(plain: Sequence[QuantizedFile], formats: Sequence[Format]) -> list[str]:
    """Formats that have none of the schemes, and schemes that no format has."""
    names, out = " or ".join(f"'{f.scheme}'" for f in plain), []
    without = [f for f in formats if plain and not any(_made(file, f) for file in plain)]
    for format in without:
        known = ", ".join(FORMATS[format].schemes)
        fix = f"leave {format} out of export.formats, or choose another scheme"
        out.append(f"{format} has no {names} in this version, only {known}; {fix}")
    for scheme in dict.fromkeys(f.scheme for f in plain if f.format is None):
        if len(without) < len(formats) and not any(FORMATS[f].takes(scheme) for f in formats):
            homes = [f.value for f, info in FORMATS.items() if info.takes(scheme)]
            out.append(f"no exported format has '{scheme}', only {', '.join(homes)}; add one to export.formats")
    return out


def files_of(schemes: Sequence[Scheme], runtimes: Sequence[Runtime]) -> list[QuantizedFile]:
    """Turn a list of schemes and a list of runtimes, as commands take them, into files.

    Args:
        schemes: Each gives a file for any runtime, where there is such a file; one that an accelerator has gives only
            the accelerator's.
        runtimes: Each gives a further file, in those of the schemes that it has.
    """
    forms = [form for info in FORMATS.values() for form in info.forms]
    pairs = [(s, r) for r in runtimes for s in schemes if (s, r) in forms]
    lost = [r for r in runtimes if r not in [runtime for _, runtime in pairs]]
    paired = {s for s, _ in pairs}
    taken = {s for s, r in pairs if r.accelerator}
    plain = [
        s for s in schemes if s not in paired or (s not in taken and any(info.takes(s) for info in FORMATS.values()))
    ]
    every = [*((s, None) for s in plain), *pairs, *((schemes[0], r) for r in lost)]
    return [QuantizedFile(scheme=s, runtime=r) for s, r in dict.fromkeys(every)]
