"""The file formats of the pipeline, one module each; importing this package registers them."""

from pocketbert.pipeline.formats.base import register_format_place
from pocketbert.pipeline.formats.coreml import CoremlPlace
from pocketbert.pipeline.formats.onnx import OnnxPlace
from pocketbert.pipeline.formats.tflite import TflitePlace

for _place in (OnnxPlace(), TflitePlace(), CoremlPlace()):
    register_format_place(_place)
