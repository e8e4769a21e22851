"""The protobuf classes, loaded when a package is opened: who predicts with other formats needs no protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketbert.core.errors import MissingBackendError

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb


def parse_model(data: bytes) -> pb.Model:
    """The message in ``model.mlmodel``.

    Args:
        data: The file's bytes.

    Raises:
        MissingBackendError: If protobuf is not installed.
        ValueError: If the bytes are no such message.
    """
    try:
        from google.protobuf.message import DecodeError

        from pocketbert.runtime.coreml.proto import mlpackage_pb2
    except ImportError as error:
        raise MissingBackendError("protobuf", "pip install 'pocketbert[coreml-runtime]'") from error
    model = mlpackage_pb2.Model()
    try:
        model.ParseFromString(data)
    except (DecodeError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    return model
