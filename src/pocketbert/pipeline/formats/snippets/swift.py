"""Swift code for the model card: `coreml` for a Core ML package, `onnx` for an ONNX file.

The tests parse the code; this project had no compiler for it.
"""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.pipeline.formats.snippets.parts import (
    NO_TELEMETRY,
    TEMPERED,
    UNKNOWN,
    SnippetFile,
    has_tokenizer_sources,
    output_width,
    quote_for_swift,
)

ORT_PACKAGE = "https://github.com/microsoft/onnxruntime-swift-package-manager"
_NEVER_RUN = "parsed, but never compiled or run by this project: it has no Mac"
_CHOICE_NUMBER = "the number of one choice: softmax over all choices of the question"
_VECTORS = """
    private func vectors(_ length: Int, _ width: Int) throws -> MLMultiArray {   // float32 [1, length, width]
        let out = try MLMultiArray(shape: [1, NSNumber(value: length), NSNumber(value: width)], dataType: .float32)
        for i in 0..<(length * width) { out[i] = 0 }
        return out
    }
"""


def _tokenizer_source(file: SnippetFile) -> str:
    """Return a phrase on where token ids come from: the sources in ``ios/``, or a tokenizer of the app."""
    if has_tokenizer_sources(file.artefacts, "Swift"):
        return "the tokenizer is in `ios/`: add its sources, `unicode.bin` and `tokenizer.json` to the app's target"
    return "ids from a tokenizer of yours, which must give those of `golden_tokens.jsonl`"


def _tokenizer_parts(file: SnippetFile, longest: int, integers: str, gives: str) -> tuple[str, str, str]:
    """Return three pieces of Swift code for the tokenizer: a field, lines of ``init``, and a method that takes text.

    If the folder has no Swift tokenizer, they are empty, but the first one still has the prompts.

    Args:
        file: The model file that the code opens.
        longest: Longest input in tokens.
        integers: Swift type of token ids.
        gives: Swift type of the answer.
    """
    table = _prompt_table(file)
    if not has_tokenizer_sources(file.artefacts, "Swift"):
        return table, "", ""
    end, before, more = (", keepsEnd: true" if file.keeps_end else ""), "", ""
    if file.takes_prompts:
        before, more = "prompt + ", f", prompt: String = {quote_for_swift(file.default_prompt)}"
    if file.asks_questions:
        parameters, call = "question: String, context: String", "windows(question: question, context: context, "
        call += f"maxLength: {longest}, stride: {file.processing.stride})[0]   // a long context has more windows"
    elif file.artefacts.pair:
        parameters = f"_ first: String, _ second: String{more}"
        call = f"encode({before}first, second: second, maxLength: {longest}{end})"
    else:
        parameters, call = f"_ text: String{more}", f"encode({before}text, maxLength: {longest}{end})"
    numbers = "" if integers == "Int" else f".map {{ {integers}($0) }}"
    field = f"    private let tokenizer: Tokenizer\n{table}"
    opened = """        func data(_ name: String, _ type: String) throws -> Data {
            try Data(contentsOf: Bundle.main.url(forResource: name, withExtension: type)!)
        }
        tokenizer = try Tokenizer(tokenizerJson: data("tokenizer", "json"), unicode: data("unicode", "bin"))
"""
    if file.chooses:
        return (
            field,
            opened,
            _choice_method(f"{before}question, second: choice, maxLength: {longest}{end}", more, numbers, gives),
        )
    method = f"""    func answer({parameters}) throws -> {gives} {{
        let encoding = try tokenizer.{call}
        return try answer(ids: encoding.ids{numbers}, typeIds: encoding.typeIds{numbers})
    }}

"""
    return field, opened, method


def _choice_method(encoded: str, prompt: str, numbers: str, gives: str) -> str:
    """Return the Swift method for multiple choice, which takes a question and its choices.

    Args:
        encoded: Arguments of the call that tokenizes the question with a choice.
        prompt: Parameter for a prompt; empty without prompts.
        numbers: Conversion of token ids to the type that the runtime takes.
        gives: Swift type of a choice's number.
    """
    return f"""    func answer(question: String, choices: [String]{prompt}) throws -> (index: Int, probability: {gives}) {{
        let numbers = try choices.map {{ choice -> {gives} in
            let encoding = try tokenizer.encode({encoded})
            return try answer(ids: encoding.ids{numbers}, typeIds: encoding.typeIds{numbers})
        }}
        let powers = numbers.map {{ exp($0 - numbers.max()!) }}   // softmax over the choices
        let best = powers.indices.max {{ powers[$0] < powers[$1] }}!
        return (best, powers[best] / powers.reduce(0, +))
    }}

"""


def _prompt_table(file: SnippetFile) -> str:
    """Return the Swift lines of a dictionary of the prompts by name; empty if the folder has none."""
    p = file.processing
    if not file.takes_prompts:
        return ""
    default = "no prompt" if p.default_prompt is None else quote_for_swift(p.default_prompt)
    named = ", ".join(f"{quote_for_swift(name)}: {quote_for_swift(text)}" for name, text in p.prompts.items())
    return f"""    /// To be put in front of a text before it is tokenized, of a pair in front of the first; by default {default}.
    static let prompts: [String: String] = [{named}]
"""


def coreml(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return a sentence and the Swift class that runs a Core ML package."""
    file = SnippetFile(artefacts, record)
    name = file.record.path.rsplit("/", 1)[-1].removesuffix(".mlpackage")
    known = ", ".join(map(str, file.lengths))
    padded = f"[{known}].first {{ $0 >= ids.count }}!" if known else "ids.count"
    most = file.longest
    values = {"input_ids": "ids", "attention_mask": "ids.map { _ in 1 }", "token_type_ids": "typeIds"}
    feed = ",\n".join(
        f'            "{n}": try vectors(length, {file.input_width(n)})'
        if file.is_float(n)
        else f'            "{n}": try array({values.get(n, "ids.map { _ in 0 }")}, length)'
        for n in file.inputs
    )
    feed += file.comment_on_inputs("//")
    wide = _VECTORS if file.has_float_inputs else ""
    gives, answer = _coreml_answer(file)
    field, opened, method = _tokenizer_parts(file, most, "Int", gives)
    return f"""Swift, with Core ML ({_tokenizer_source(file)}; drag the package into Xcode, which compiles it; {_NEVER_RUN}):

```swift
import CoreML
import Foundation

/// Open it once, and call it off the main thread. ARC frees it with its last reference.
final class CoreMLModel {{
    private let model: MLModel
{field}
    init() throws {{
{opened}        let url = Bundle.main.url(forResource: "{name}", withExtension: "mlmodelc")!
        model = try MLModel(contentsOf: url)
    }}

{method}    /// At most {most} ids, special tokens included.
    func answer(ids: [Int], typeIds: [Int]) throws -> {gives} {{
        let length = {padded}
        let out = try model.prediction(from: MLDictionaryFeatureProvider(dictionary: [
{feed}
        ]))
{answer}
    }}

    private func array(_ values: [Int], _ length: Int) throws -> MLMultiArray {{   // int32 [1, length], padded with 0
        let out = try MLMultiArray(shape: [1, NSNumber(value: length)], dataType: .int32)
        for i in 0..<length {{ out[i] = NSNumber(value: {_padded_element(file)}) }}
        return out
    }}
{wide}}}
```"""


def _coreml_answer(file: SnippetFile) -> tuple[str, str]:
    """Return the Swift type of a Core ML package's answer, and the lines that read the answer from ``out``."""
    if file.artefacts.task is TaskName.TEXT_CLASSIFICATION:
        label = '        let label = out.featureValue(for: "classLabel")!.stringValue   // softmax and labels are inside the package'
        values, probability = "", 'out.featureValue(for: "classLabel_probs")!.dictionaryValue[label]!.doubleValue'
        if file.is_tempered:
            values = f"""
        let powers = out.featureValue(for: "classLabel_probs")!.dictionaryValue.mapValues {{
            pow($0.doubleValue, 1 / {file.record.temperature:g})   // {TEMPERED}, which the package does not apply
        }}"""
            probability = "powers[label]! / powers.values.reduce(0, +)"
        kind, returned = _label_return(file, "label", probability)
        return f"(label: {kind}, probability: Double)", f"{label}{values}\n{returned}"
    if file.applies_sigmoid:
        return (
            "Double",
            f'''        let logit = out.featureValue(for: "{file.task.answer[0]}")!.multiArrayValue![0].doubleValue
        return 1 / (1 + exp(-logit))   // sigmoid''',
        )
    if file.chooses:
        return (
            "Double",
            f'''        return out.featureValue(for: "{file.task.answer[0]}")!.multiArrayValue![0].doubleValue   // {_CHOICE_NUMBER}''',
        )
    shape = _output_shape(file)
    each = ", ".join(f'"{n}": out.featureValue(for: "{n}")!.multiArrayValue!' for n in file.task.answer)
    return "[String: MLMultiArray]", f"        return [{each}]   // {shape}; from here to an answer: see Processing"


def _label_return(file: SnippetFile, label: str, probability: str) -> tuple[str, str]:
    """Return the Swift type of the predicted label, and the statement that returns the label with its probability.

    If the file has a threshold for unknown answers, the type is optional, and labels below the threshold are returned
    as nil.

    Args:
        file: The file that the code is for.
        label: Swift expression for the label.
        probability: Swift expression for its probability.
    """
    least = file.unknown_threshold
    if not least:
        return "String", f"        return ({label}, {probability})"
    return (
        "String?",
        f"""        let probability = {probability}
        return (probability < {least} ? nil : {label}, probability)   // nil {UNKNOWN}""",
    )


def _padded_element(file: SnippetFile) -> str:
    """Return the Swift expression for element `i` of an input that is padded with 0 on the model's padding side."""
    if file.processing.padding_side == "left":
        return "i < length - values.count ? 0 : values[i - (length - values.count)]"
    return "i < values.count ? values[i] : 0"


def onnx(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return a sentence and the Swift class that runs an ONNX file with ONNX Runtime on iOS."""
    file = SnippetFile(artefacts, record)
    values = {"input_ids": "ids", "attention_mask": "ids.map { _ in 1 }", "token_type_ids": "typeIds"}
    feed = ",\n".join(
        f'            "{n}": try vectors(ids.count, {file.input_width(n)})'
        if file.is_float(n)
        else f'            "{n}": try tensor({values.get(n, "ids.map { _ in 0 }")})'
        for n in file.inputs
    )
    feed += file.comment_on_inputs("//")
    wide = "" if not file.has_float_inputs else _ORT_VECTORS
    stem = file.record.path.rsplit("/", 1)[-1].removesuffix(".onnx")
    names = ", ".join(f'"{n}"' for n in file.task.answer)
    gives, answer = _onnx_answer(file)
    field, opened, method = _tokenizer_parts(file, file.processing.max_length, "Int64", gives)
    return f"""Swift, with ONNX Runtime, `{ORT_PACKAGE.rsplit("/", 1)[-1]}` ({_tokenizer_source(file)}; {_NEVER_RUN}):

```swift
import Foundation
import OnnxRuntimeBindings

/// Open it once, and call it off the main thread. ARC frees it with its last reference.
final class OnnxModel {{
    private let environment: ORTEnv
    private let session: ORTSession
{field}
    init() throws {{
{opened}        setenv("ORT_DISABLE_TELEMETRY", "1", 1)   // {NO_TELEMETRY}
        environment = try ORTEnv(loggingLevel: .warning)
        let path = Bundle.main.path(forResource: "{stem}", ofType: "onnx")!
        session = try ORTSession(env: environment, modelPath: path, sessionOptions: nil)
    }}

{method}    /// At most {file.processing.max_length} ids, special tokens included, without padding.
    func answer(ids: [Int64], typeIds: [Int64]) throws -> {gives} {{
        let outputs = try session.run(withInputs: [   // int64 [1, tokens]
{feed}
        ], outputNames: [{names}], runOptions: nil)   // float32 {_output_shape(file)}
{answer}
    }}

    private func tensor(_ values: [Int64]) throws -> ORTValue {{
        let data = values.withUnsafeBytes {{ NSMutableData(bytes: $0.baseAddress!, length: $0.count) }}
        return try ORTValue(tensorData: data, elementType: .int64, shape: [1, NSNumber(value: values.count)])
    }}
{wide}
    private func floats(_ value: ORTValue) throws -> [Float] {{
        try value.tensorData().withUnsafeBytes {{ Array($0.bindMemory(to: Float.self)) }}
    }}
}}
```"""


_ORT_VECTORS = """
    private func vectors(_ length: Int, _ width: Int) throws -> ORTValue {   // float32 [1, length, width]
        let data = NSMutableData(length: length * width * MemoryLayout<Float>.stride)!
        return try ORTValue(
            tensorData: data, elementType: .float, shape: [1, NSNumber(value: length), NSNumber(value: width)])
    }
"""


def _onnx_answer(file: SnippetFile) -> tuple[str, str]:
    """Return the Swift type of an ONNX file's answer, and the lines that compute the answer from ``outputs``."""
    names = file.task.answer
    if file.task.labels is LabelKind.NAME:
        power, note = "exp($0 - numbers.max()!)", "softmax"
        if file.is_tempered:
            power, note = f"exp(($0 - numbers.max()!) / {file.record.temperature:g})", f"softmax with {TEMPERED}"
        kind, returned = _label_return(file, "labels[String(best)]!", "powers[best] / powers.reduce(0, +)")
        return (
            f"(label: {kind}, probability: Float)",
            f"""        let numbers = try floats(outputs["{names[0]}"]!)
        let powers = numbers.map {{ {power} }}   // {note}
        let best = powers.indices.max {{ powers[$0] < powers[$1] }}!
        let config = try Data(contentsOf: Bundle.main.url(forResource: "config", withExtension: "json")!)
        let labels = (try JSONSerialization.jsonObject(with: config) as! [String: Any])["id2label"] as! [String: String]
{returned}""",
        )
    if file.applies_sigmoid:
        return (
            "Float",
            f'''        let logit = try floats(outputs["{names[0]}"]!)[0]
        return 1 / (1 + exp(-logit))   // sigmoid''',
        )
    if file.chooses:
        return "Float", f'''        return try floats(outputs["{names[0]}"]!)[0]   // {_CHOICE_NUMBER}'''
    each = ", ".join(f'"{n}": try floats(outputs["{n}"]!)' for n in names)
    return "[String: [Float]]", f"        return [{each}]   // row by row; from here to an answer: see Processing"


def _output_shape(file: SnippetFile) -> str:
    """Return the shape of a file's outputs as text for a comment, such as ``[1, length, 9]``."""
    if file.task.heads:
        shapes = [(n, file.is_of_texts(n), file.output_size(n) or "numbers") for n in file.task.answer]
        return ", ".join(f"{n} [1, {'' if of_texts else 'length, '}{size}]" for n, of_texts, size in shapes)
    numbers = output_width(file.record) or "numbers"
    if not file.has_token_outputs:
        return f"[1, {numbers}]"
    return f"[1, length, {numbers}]" if len(file.task.answer) == 1 else "[1, length]"
