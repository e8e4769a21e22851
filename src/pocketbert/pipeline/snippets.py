"""Code for the model card: how each client opens the files that this folder really has."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts, FileRecord
from pocketbert.core.types import Client, Format, Scheme

_VALUES = {"input_ids": "e.ids", "attention_mask": "e.attention_mask", "token_type_ids": "e.type_ids"}


def snippets(artefacts: Artefacts) -> str:
    """The card's section on use, as Markdown."""
    parts = [_pocketbert(artefacts)]
    onnx, tflite = _smallest(artefacts, Format.ONNX), _smallest(artefacts, Format.TFLITE)
    if onnx is not None:
        parts += [
            _onnx_python(artefacts, onnx),
            _transformers_js(artefacts),
            _onnx_kotlin(artefacts, onnx),
            _onnx_swift(onnx),
        ]
    if tflite is not None:
        parts += [_litert_python(tflite), _litert_kotlin(tflite)]
    coreml = _smallest(artefacts, Format.COREML)
    if coreml is not None:
        parts.append(_coreml_swift(artefacts, coreml))
    mediapipe = [r for r in artefacts.models() if r.client is Client.MEDIAPIPE]
    if mediapipe:
        parts.append(_mediapipe_kotlin(mediapipe[-1]))
    return "\n\n".join(["## Use", *parts])


def _smallest(artefacts: Artefacts, format: Format) -> FileRecord | None:
    found = [r for r in artefacts.models() if r.format is format and r.plain]
    return found[-1] if found else None


def _inputs(record: FileRecord) -> list[str]:
    return [t.name for t in record.signature.inputs] if record.signature else ["input_ids", "attention_mask"]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(w.capitalize() for w in rest)


def _pocketbert(artefacts: Artefacts) -> str:
    several = len({r.format for r in artefacts.models()}) > 1
    more = '; engine="fastest" measures once which file is fastest here, at each length' if several else ""
    return f"""Python, with PocketBERT (neither torch nor transformers needed{more}):

```python
import pocketbert
model = pocketbert.load("path/to/this/folder")
print(model.predict(["your text"])[0].label)
```"""


def _onnx_python(artefacts: Artefacts, record: FileRecord) -> str:
    feeds = ", ".join(f'"{n}": ...' for n in _inputs(record))
    return f"""Python, with ONNX Runtime and tokenizers alone:

```python
import numpy as np, onnxruntime, tokenizers
tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({artefacts.processing.max_length})
session = onnxruntime.InferenceSession("{record.path}")
e = tokenizer.encode("your text")
values = {{"input_ids": e.ids, "attention_mask": e.attention_mask, "token_type_ids": e.type_ids}}
feed = {{i.name: np.array([values[i.name]], np.int64) for i in session.get_inputs()}}  # {feeds}
logits = session.run(["logits"], feed)[0]
```"""


def _transformers_js(artefacts: Artefacts) -> str:
    onnx = [r for r in artefacts.models() if r.format is Format.ONNX]
    dtype = "int8" if any(r.scheme is Scheme.INT8 for r in onnx) else "fp32"
    return f"""JavaScript, with transformers.js (the folder lies under `models/`):

```js
import {{ env, pipeline }} from "@huggingface/transformers";
env.allowRemoteModels = false; env.localModelPath = "models/";
const classify = await pipeline("text-classification", "FOLDER", {{ dtype: "{dtype}" }});
console.log(await classify("your text"));
```"""


def _onnx_kotlin(artefacts: Artefacts, record: FileRecord) -> str:
    feed = "\n".join(
        f'    "{n}" to OnnxTensor.createTensor(env, arrayOf({_camel(n)})),' for n in _inputs(record)
    )
    return f"""Kotlin, with `com.microsoft.onnxruntime:onnxruntime-android` (ids from a tokenizer that reproduces `golden_tokens.jsonl`; not run by this project yet):

```kotlin
val env = OrtEnvironment.getEnvironment()
val session = env.createSession("{record.path}")
val logits = session.run(mapOf(   // LongArray each, equal lengths, at most {artefacts.processing.max_length}
{feed}
)).get("logits").get().value as Array<FloatArray>
```"""


def _onnx_swift(record: FileRecord) -> str:
    feed = "\n".join(f'    "{n}": try int64Tensor({_camel(n)}),' for n in _inputs(record))
    return f"""Swift, with `onnxruntime-swift-package-manager` (not run by this project yet):

```swift
let session = try ORTSession(env: env, modelPath: "{record.path}", sessionOptions: nil)
let outputs = try session.run(withInputs: [   // int64, shape [1, length]
{feed}
], outputNames: ["logits"], runOptions: nil)
```"""


def _litert_python(record: FileRecord) -> str:
    lengths = record.signature.lengths if record.signature else []
    feed = ", ".join(f'"{n}": {_VALUES[n]}' for n in _inputs(record))
    return f"""Python, with LiteRT and tokenizers alone (one signature per length, int32, padded with mask 0):

```python
import numpy as np, tokenizers
from ai_edge_litert.interpreter import Interpreter
tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({lengths[-1] if lengths else ""})
e = tokenizer.encode("your text")
length = next(n for n in {lengths} if n >= len(e.ids))
run = Interpreter("{record.path}").get_signature_runner(f"seq_{{length}}")
pad = lambda values: np.array([values + [0] * (length - len(values))], np.int32)
logits = run(**{{k: pad(v) for k, v in {{{feed}}}.items()}})["logits"]
```"""


def _litert_kotlin(record: FileRecord) -> str:
    lengths = record.signature.lengths if record.signature else []
    feed = ", ".join(f'"{n}" to arrayOf({_camel(n)})' for n in _inputs(record))
    return f"""Kotlin, with `com.google.ai.edge.litert:litert` (not run by this project yet):

```kotlin
val interpreter = Interpreter(File("{record.path}"))
val logits = arrayOf(FloatArray({record.signature.outputs[0].shape[-1] if record.signature else ""}))
// IntArray each, padded with 0 to one of the lengths {", ".join(map(str, lengths))}
interpreter.runSignature(mapOf({feed}), mapOf("logits" to logits), "seq_$length")
```"""


def _coreml_swift(artefacts: Artefacts, record: FileRecord) -> str:
    lengths = record.signature.lengths if record.signature else []
    name = record.path.rsplit("/", 1)[-1].removesuffix(".mlpackage")
    padded = (
        f"let length = [{', '.join(map(str, lengths))}].first {{ $0 >= ids.count }}!   // ids from a tokenizer that reproduces golden_tokens.jsonl"
        if lengths
        else f"let length = ids.count   // at most {artefacts.processing.max_length}; ids from a tokenizer that reproduces golden_tokens.jsonl"
    )
    values = {"input_ids": "ids", "attention_mask": "ids.map { _ in 1 }", "token_type_ids": "typeIds"}
    feed = ",\n".join(f'    "{n}": try array({values[n]})' for n in _inputs(record))
    labelled = record.signature is not None and [o.name for o in record.signature.outputs] == ["logits"]
    answer = (
        'print(out.featureValue(for: "classLabel")!.stringValue, out.featureValue(for: "classLabel_probs")!.dictionaryValue)'
        if labelled
        else f'print(out.featureValue(for: "{record.signature.outputs[0].name if record.signature else "logits"}")!.multiArrayValue!)'
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
let out = try model.prediction(from: MLDictionaryFeatureProvider(dictionary: [
{feed}
]))
{answer}
```"""


def _mediapipe_kotlin(record: FileRecord) -> str:
    lengths = record.signature.lengths if record.signature else []
    return f"""Kotlin, with MediaPipe Tasks, `com.google.mediapipe:tasks-text`: tokenizer, labels and softmax are inside the file (run by this
project in Python; at most {lengths[-1] if lengths else "?"} tokens):

```kotlin
val classifier = TextClassifier.createFromFile(context, "{record.path}")
val best = classifier.classify("your text").classificationResult().classifications()[0].categories()[0]
println("${{best.categoryName()}} ${{best.score()}}")
```"""
