"""An artefact folder with a Mac's packages and a file that is measured here."""

import shutil

import pytest

from pocketbert.core.artefacts import ModelRecord, read_artefacts, write_artefacts
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.types import Format, Scheme


@pytest.fixture(scope="session")
def phone(mac_phone, folder, tmp_path_factory):
    """The packages' folder with an ONNX file beside them."""
    path = tmp_path_factory.mktemp("both") / "phone"
    shutil.copytree(mac_phone, path)
    (path / "onnx").mkdir()
    shutil.copyfile(folder / "student.onnx", path / "onnx" / "model.onnx")
    shutil.copyfile(folder / "tokenizer.json", path / "tokenizer.json")
    artefacts = read_artefacts(path)
    onnx = ModelRecord(
        path="onnx/model.onnx",
        sha256=sha256_file(path / "onnx" / "model.onnx"),
        bytes=1,
        format=Format.ONNX,
        scheme=Scheme.FP32,
        default=True,
    )
    processing = artefacts.processing.model_copy(update={"max_length": 32})
    write_artefacts(path, artefacts.model_copy(update={"files": [onnx, *artefacts.files], "processing": processing}))
    return path
