"""Android: the ONNX and the TFLite file, in the assets of an app."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.artefacts import Artefacts, Kind, ModelRecord
from pocketbert.core.artefacts.choice import best_of, wanted_scheme
from pocketbert.core.formats import FORMATS
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.pipeline.phone.operators import FILE_NAME as OPERATORS_FILE
from pocketbert.pipeline.phone.operators import missing_reader, write_required_operators
from pocketbert.pipeline.phone.platforms.platform import AppPlatform, Choice

_FORMATS = (Format.ONNX, Format.TFLITE)


class Android(AppPlatform):
    """What `android_demo` opens.

    Of ONNX and of TFLite that is the file of the default file's scheme. TFLite up to 2.16 computes the default int8 file
    wrongly, so the file that is made for it goes along.
    """

    name = "android"
    title = "the Android app"
    lacks = (
        "has neither an ONNX nor a TFLite file that passed its gates; Android apps run these.",
        "Export again with --format onnx,tflite.",
    )
    useful = ()
    has_selftest = False

    def models(self, artefacts: Artefacts) -> Choice:
        """Choose a file of each format that an Android engine opens."""
        wanted = wanted_scheme(artefacts.default_model()) if artefacts.models() else Scheme.FP32
        absent, models = dict[str, str](), list[ModelRecord]()
        for format in _FORMATS:
            of_format = [r for r in artefacts.models() if r.format is format]
            plain = [r for r in of_format if r.plain]
            if not plain:
                absent[f"{format}/"] = f"the folder has no {FORMATS[format].title} file"
                continue
            models.append(best_of(plain, wanted))
            if format is Format.TFLITE and models[-1].scheme is Scheme.INT8:
                old = [r for r in of_format if r.client is None and r.runtime is Runtime.TFLITE_2_16]
                models += old
                if not old:
                    absent[f"tflite/model_int8_{Runtime.TFLITE_2_16}.tflite"] = (
                        "TFLite up to 2.16 has no int8 file here; 'pocketbert quantize -m FOLDER -o NEW --runtime "
                        f"{Runtime.TFLITE_2_16}' adds it. LiteRT needs none"
                    )
        why = missing_reader() if any(r.format is Format.ONNX for r in models) else None
        return Choice(models, absent={**absent, **({OPERATORS_FILE: why} if why else {})})

    def add(self, models: list[Path], destination: Path) -> dict[str, Kind]:
        """Write ONNX Runtime's list of operators, where the `onnx` package is installed."""
        onnx = [path for path in models if path.suffix == FORMATS[Format.ONNX].suffix]
        if not onnx or missing_reader():
            return {}
        write_required_operators(onnx, destination / OPERATORS_FILE)
        return {OPERATORS_FILE: Kind.CONFIG}
