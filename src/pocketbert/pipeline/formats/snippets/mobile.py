"""Kotlin and Swift code for the model card."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.tasks import TaskName
from pocketbert.pipeline.formats.snippets.extra import comment, is_float, width_of
from pocketbert.pipeline.formats.snippets.parts import camel, inputs, lengths, per_token, row_of, width

_VECTORS = """func vectors(_ width: Int) throws -> MLMultiArray {   // float32 [1, length, width]
    let out = try MLMultiArray(shape: [1, NSNumber(value: length), NSNumber(value: width)], dataType: .float32)
    for i in 0..<(length * width) { out[i] = 0 }
    return out
}
"""
_BEFORE = "before the first use: otherwise ONNX Runtime sends telemetry to its vendor"
_IDS = "ids from a tokenizer that reproduces `golden_tokens.jsonl`"


def onnx_kotlin(artefacts: Artefacts, record: ModelRecord) -> str:
    """With ONNX Runtime on Android."""
    feed = "\n".join(f'    "{n}" to OnnxTensor.createTensor(env, arrayOf({camel(n)})),' for n in inputs(record))
    feed += comment(artefacts, "//")
    kind = "Array<Array<FloatArray>>" if _rows_of_numbers(artefacts) else "Array<FloatArray>"
    outputs = "\n".join(
        f'val {camel(n)} = outputs.get("{n}").get().value as {kind}   // {_shape(artefacts, record, "tokens")}'
        for n in row_of(artefacts).answer
    )
    return f"""Kotlin, with `com.microsoft.onnxruntime:onnxruntime-android` ({_IDS}; this project compiles and
runs the code for classification on a desktop, not on a phone):

```kotlin
android.system.Os.setenv("ORT_DISABLE_TELEMETRY", "1", true)   // {_BEFORE}
val env = OrtEnvironment.getEnvironment()
val session = env.createSession("{record.path}")
val outputs = session.run(mapOf(   // LongArray each, equal lengths, at most {artefacts.processing.max_length}
{feed}
))
{outputs}
```"""


def onnx_swift(artefacts: Artefacts, record: ModelRecord) -> str:
    """With ONNX Runtime on iOS."""
    feed = "\n".join(
        f'    "{n}": try {"float" if is_float(artefacts, n) else "int64"}Tensor({camel(n)}),' for n in inputs(record)
    )
    feed += comment(artefacts, "//")
    names = ", ".join(f'"{n}"' for n in row_of(artefacts).answer)
    return f"""Swift, with `onnxruntime-swift-package-manager` ({_IDS}; not run by this project yet):

```swift
setenv("ORT_DISABLE_TELEMETRY", "1", 1)   // {_BEFORE}
let env = try ORTEnv(loggingLevel: .warning)
let session = try ORTSession(env: env, modelPath: "{record.path}", sessionOptions: nil)
let outputs = try session.run(withInputs: [   // int64, shape [1, length], at most {artefacts.processing.max_length}
{feed}
], outputNames: [{names}], runOptions: nil)   // float32 {_shape(artefacts, record, "length")}
```"""


def litert_kotlin(artefacts: Artefacts, record: ModelRecord) -> str:
    """With LiteRT on Android."""
    feed = ", ".join(f'"{n}" to arrayOf({camel(n)})' for n in inputs(record))
    names, numbers = row_of(artefacts).answer, width(record) or ""
    if _rows_of_numbers(artefacts):
        buffer = f"Array(1) {{ Array(length) {{ FloatArray({numbers}) }} }}"
    else:
        buffer = f"arrayOf(FloatArray({'length' if per_token(artefacts) else numbers}))"
    buffers = "\n".join(f"val {camel(n)} = {buffer}" for n in names)
    outputs = ", ".join(f'"{n}" to {camel(n)}' for n in names)
    note = comment(artefacts, "//")
    behind = ", and to leave out of the answer" if per_token(artefacts) else ""
    return f"""Kotlin, with `com.google.ai.edge.litert:litert` ({_IDS}; this project compiles the code for
classification and runs it on a desktop with TensorFlow Lite 2.16 and the file for it, not on a phone):

```kotlin
val interpreter = Interpreter(File("{record.path}"))
val length = intArrayOf({", ".join(map(str, lengths(record)))}).first {{ it >= count }}
// IntArray each, padded with 0 from `count` tokens to `length`{behind}{note}
{buffers}
interpreter.runSignature(mapOf({feed}), mapOf({outputs}), "seq_$length")
```"""


def coreml_swift(artefacts: Artefacts, record: ModelRecord) -> str:
    """With Core ML."""
    name = record.path.rsplit("/", 1)[-1].removesuffix(".mlpackage")
    ids = "ids from a tokenizer that reproduces golden_tokens.jsonl"
    padded = (
        f"let length = [{', '.join(map(str, lengths(record)))}].first {{ $0 >= ids.count }}!   // {ids}"
        if lengths(record)
        else f"let length = ids.count   // at most {artefacts.processing.max_length}; {ids}"
    )
    values = {"input_ids": "ids", "attention_mask": "ids.map { _ in 1 }", "token_type_ids": "typeIds"}
    feed = ",\n".join(
        f'    "{n}": try vectors({width_of(record, n)})'
        if is_float(artefacts, n)
        else f'    "{n}": try array({values.get(n, "ids.map { _ in 0 }")})'
        for n in inputs(record)
    )
    feed += comment(artefacts, "//")
    wide = _VECTORS if any(is_float(artefacts, n) for n in inputs(record)) else ""
    if artefacts.task is TaskName.TEXT_CLASSIFICATION:
        answer = 'print(out.featureValue(for: "classLabel")!.stringValue, out.featureValue(for: "classLabel_probs")!.dictionaryValue)'
    else:
        answer = "\n".join(
            f'let {camel(n)} = out.featureValue(for: "{n}")!.multiArrayValue!   // {_shape(artefacts, record, "length")}'
            for n in row_of(artefacts).answer
        )
    return f"""Swift, with Core ML (drag the package into Xcode, or compile it once with `MLModel.compileModel(at:)`; not run by this project: it has no Mac):

```swift
import CoreML
let model = try MLModel(contentsOf: Bundle.main.url(forResource: "{name}", withExtension: "mlmodelc")!)
{padded}
func array(_ values: [Int]) throws -> MLMultiArray {{   // int32 [1, length], padded with 0
    let out = try MLMultiArray(shape: [1, NSNumber(value: length)], dataType: .int32)
    for i in 0..<length {{ out[i] = NSNumber(value: i < values.count ? values[i] : 0) }}
    return out
}}
{wide}let out = try model.prediction(from: MLDictionaryFeatureProvider(dictionary: [
{feed}
]))
{answer}
```"""


def mediapipe_kotlin(artefacts: Artefacts, record: ModelRecord) -> str:
    """With MediaPipe Tasks: TextClassifier or TextEmbedder."""
    most = max(lengths(record), default=artefacts.processing.max_length)
    if artefacts.task is TaskName.FEATURE_EXTRACTION:
        inside, code = (
            "tokenizer and pooling are",
            (
                f'val embedder = TextEmbedder.createFromFile(context, "{record.path}")\n'
                'val vector = embedder.embed("your text").embeddingResult().embeddings()[0].floatEmbedding()'
            ),
        )
    else:
        inside, code = (
            "tokenizer, labels and softmax are",
            (
                f'val classifier = TextClassifier.createFromFile(context, "{record.path}")\n'
                'val best = classifier.classify("your text").classificationResult().classifications()[0].categories()[0]\n'
                'println("${best.categoryName()} ${best.score()}")'
            ),
        )
    return f"""Kotlin, with MediaPipe Tasks, `com.google.mediapipe:tasks-text`: {inside} inside the file (run by this
project in Python; at most {most} tokens; MediaPipe Tasks send metrics of their use to Google, and its notice at
https://goo.gle/mediapipe-privacy asks you to tell your users; the other TFLite files run in LiteRT instead):

```kotlin
{code}
```"""


def _rows_of_numbers(artefacts: Artefacts) -> bool:
    """Whether an output has several numbers per token, unlike the start and end scores of questions."""
    return per_token(artefacts) and len(row_of(artefacts).answer) == 1


def _shape(artefacts: Artefacts, record: ModelRecord, axis: str) -> str:
    numbers = width(record) or "numbers"
    if not per_token(artefacts):
        return f"[1, {numbers}]"
    return f"[1, {axis}, {numbers}]" if _rows_of_numbers(artefacts) else f"[1, {axis}]"
