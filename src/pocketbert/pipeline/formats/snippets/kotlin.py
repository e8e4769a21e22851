"""Kotlin code for the model card: `onnx` and `litert` for one of the folder's files, `mediapipe` for MediaPipe's file.

The demo's Maven build compiles the code for classification and runs it on a desktop.
"""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.pipeline.formats.snippets.parts import (
    NO_TELEMETRY,
    TEMPERED,
    UNKNOWN,
    applies_sigmoid,
    asks_questions,
    camel_case,
    can_avoid_saturation,
    comment_on_inputs,
    default_prompt,
    has_token_outputs,
    has_tokenizer_sources,
    input_lengths,
    input_names,
    input_width,
    is_float_input,
    is_tempered,
    keeps_end,
    quote_for_kotlin,
    row_of,
    takes_prompts,
    takes_two_texts,
    unknown_threshold,
    width,
)

ORT, LITERT = "com.microsoft.onnxruntime:onnxruntime-android:1.26.0", "com.google.ai.edge.litert:litert:1.4.0"
GSON = "com.google.code.gson:gson:2.13.2"
MEDIAPIPE = "com.google.mediapipe:tasks-text"
MEDIAPIPE_PYTHON = "1.2.2"
"""Version of the Python package `mediapipe` that the tests run the file with."""
TFLITE_JVM = "2.16.1"
"""Version of `org.tensorflow:tensorflow-lite` whose classes the code is compiled with; LiteRT has the same ones."""
ANDROID = "Android 7 (API 24)"
"""Oldest version that `android_demo` is built for."""
_FIELDS = """    private val assets = context.assets   // the files of this folder, under the same names in src/main/assets
    private val tokenizer = assets.open("tokenizer.json").bufferedReader().use { Tokenizer.read(it) }
"""
_LABELS = """    private val labels =
        assets.open("config.json").bufferedReader().use { JsonParser.parseReader(it) }.asJsonObject.getAsJsonObject("id2label")
"""


def gradle(*coordinates: str) -> tuple[str, ...]:
    """Return the lines for the dependencies of a Gradle build in Kotlin."""
    return tuple(f'implementation("{c}")' for c in coordinates)


def _tokenizer_source(artefacts: Artefacts) -> str:
    """Describe where the tokenizer of the code comes from."""
    if has_tokenizer_sources(artefacts, "Kotlin"):
        return "the tokenizer is in `android/`: copy `android/java` and `android/resources` into `src/main`"
    return (
        "this folder has no sources of the tokenizer, so `org.pocketbert.tokenizers` is PocketBERT's `android_demo/core`, or "
        "yours: it must give the ids of `golden_tokens.jsonl`"
    )


def onnx(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return the code that runs a file with ONNX Runtime on Android."""
    feed = "\n".join(f'            "{n}" to {_onnx_input(artefacts, record, n)},' for n in input_names(record))
    imports = [
        "ai.onnxruntime.OnnxTensor",
        "ai.onnxruntime.OrtEnvironment",
        "ai.onnxruntime.OrtSession",
        "android.system.Os",
    ]
    floats = any(is_float_input(artefacts, n) for n in input_names(record))
    vectors = """
    private fun vectors(tokens: Int, width: Int) =
        OnnxTensor.createTensor(environment, arrayOf(Array(tokens) { FloatArray(width) }))
"""
    opened = f'assets.open("{record.path}").use {{ it.readBytes() }}'
    if can_avoid_saturation(artefacts):
        opened = f"{opened}, options"
        setting = """
        val options = OrtSession.SessionOptions()
        options.addConfigEntry("session.x64quantprecision", "1")   // else int8 saturates on x86 without VNNI (emulators)"""
    else:
        setting = ""
    return f"""Kotlin, with `{ORT.rpartition(":")[0]}` ({_tokenizer_source(artefacts)}; this project compiles and runs the code for
classification on a desktop, not on a phone):

```kotlin
{_imports(artefacts, imports)}
{_class_opening(artefacts, "OnnxModel")}    private val environment: OrtEnvironment
    private val session: OrtSession

    init {{
        Os.setenv("ORT_DISABLE_TELEMETRY", "1", true)   // {NO_TELEMETRY}
        environment = OrtEnvironment.getEnvironment(){setting}
        session = environment.createSession({opened})
    }}

    {_answer_signature(artefacts, record)} {{
        {_encode_line(artefacts, artefacts.processing.max_length)}
        val inputs = mapOf(   // int64 [1, tokens]{comment_on_inputs(artefacts, ";").replace("   ; ", "; ")}
{feed}
        )
        try {{
            session.run(inputs).use {{ outputs ->
{_indent(_onnx_answer_lines(artefacts, record), 16)}
            }}
        }} finally {{
            inputs.values.forEach {{ it.close() }}
        }}
    }}

    private fun tensor(values: IntArray) =
        OnnxTensor.createTensor(environment, arrayOf(LongArray(values.size) {{ values[it].toLong() }}))
{vectors if floats else ""}
    override fun close() = session.close()
}}
```"""


def litert(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return the code that runs a file with LiteRT on Android."""
    names, longest = row_of(artefacts).answer, max(input_lengths(record), default=artefacts.processing.max_length)
    feed = "\n".join(f'            "{n}" to {_litert_input(artefacts, record, n)},' for n in input_names(record))
    buffers = "\n".join(f"        val {camel_case(n)} = {_output_buffer(artefacts, record)}" for n in names)
    outputs = ", ".join(f'"{n}" to {camel_case(n)}' for n in names)
    left = artefacts.processing.padding_side == "left"
    pad = "IntArray(length - values.size) + values" if left else "values.copyOf(length)"
    imports = ["java.io.FileInputStream", "java.nio.channels.FileChannel", "org.tensorflow.lite.Interpreter"]
    return f"""Kotlin, with `{LITERT.rpartition(":")[0]}` ({_tokenizer_source(artefacts)}; this project compiles the code for classification
and runs it on a desktop with TensorFlow Lite {TFLITE_JVM} and the file for it, not on a phone):

```kotlin
{_imports(artefacts, imports)}
{_class_opening(artefacts, "LitertModel")}    private val interpreter = Interpreter(
        assets.openFd("{record.path}").use {{ file ->   // mapped into memory: Gradle does not compress .tflite files
            val channel = FileInputStream(file.fileDescriptor).channel
            channel.map(FileChannel.MapMode.READ_ONLY, file.startOffset, file.declaredLength)
        }},
    )

    @Synchronized   // an interpreter answers one text at a time
    {_answer_signature(artefacts, record)} {{
        {_encode_line(artefacts, longest)}
        val length = intArrayOf({", ".join(map(str, input_lengths(record)))}).first {{ it >= e.length() }}
        val inputs = mapOf(   // int32 [1, length], padded with attention mask 0{comment_on_inputs(artefacts, ";").replace("   ; ", "; ")}
{feed}
        )
{buffers}
        interpreter.runSignature(inputs, mapOf({outputs}), "seq_$length")
{_indent(_litert_answer_lines(artefacts, record), 8)}
    }}

    private fun padded(values: IntArray, length: Int) = arrayOf({pad})

    override fun close() = interpreter.close()
}}
```"""


def mediapipe(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return the code that runs MediaPipe's file with MediaPipe Tasks: TextClassifier or TextEmbedder."""
    most = max(input_lengths(record), default=artefacts.processing.max_length)
    texts, text = f"text: String{_prompt_parameter(artefacts)}", f"{_prompt_in_front(artefacts)}text"
    if artefacts.task is TaskName.FEATURE_EXTRACTION:
        inside, kind, name = "tokenizer and pooling are", "TextEmbedder", "textembedder"
        code = (
            f"    fun answer({texts}): FloatArray =\n"
            f"        embedder.embed({text}).embeddingResult().embeddings()[0].floatEmbedding()"
        )
    else:
        inside, kind, name = "tokenizer, labels and softmax are", "TextClassifier", "textclassifier"
        code = (
            f"    fun answer({texts}): {_label_pair_type(artefacts, record)} {{\n"
            f"        val best = classifier.classify({text}).classificationResult().classifications()[0].categories()[0]\n"
            f"        return best.categoryName(){_label_pair(artefacts, record, 'best.score()')}\n    }}"
        )
        if is_tempered(record):
            code = (
                f"    fun answer({texts}): {_label_pair_type(artefacts, record)} {{\n"
                f"        val all = classifier.classify({text}).classificationResult().classifications()[0].categories()\n"
                f"        val powers = all.map {{ it.score().pow(1 / {record.temperature:g}f) }}   // {TEMPERED}, which MediaPipe does not apply\n"
                "        val probability = powers[0] / powers.sum()\n"
                f"        return all[0].categoryName(){_label_pair(artefacts, record, 'probability')}\n    }}"
            )
    field = kind.removeprefix("Text").lower()
    raised = "\nimport kotlin.math.pow" if ".pow(" in code else ""
    return f"""Kotlin, with MediaPipe Tasks, `{MEDIAPIPE}`: {inside} inside the file (run by this
project in Python, mediapipe {MEDIAPIPE_PYTHON}; at most {most} tokens; MediaPipe Tasks send metrics of their use to Google, and its notice at
https://goo.gle/mediapipe-privacy asks you to tell your users; the other TFLite files run in LiteRT instead):

```kotlin
import android.content.Context
import com.google.mediapipe.tasks.text.{name}.{kind}{raised}

/** Open it once, off the main thread. The file lies in src/main/assets under the same name. */
class MediapipeModel(context: Context) : AutoCloseable {{
{_prompts(artefacts)}    private val {field} = {kind}.createFromFile(context, "{record.path}")

{code}

    override fun close() = {field}.close()
}}
```"""


def _class_opening(artefacts: Artefacts, name: str) -> str:
    """Return the first lines of a class: its comment, prompts, tokenizer and labels."""
    labels = _LABELS if row_of(artefacts).names_labels and _makes_answer(artefacts) else ""
    return f"""/** Open it once, off the main thread, and close it when it is not needed any more. */
class {name}(context: Context) : AutoCloseable {{
{_prompts(artefacts)}{_FIELDS}{labels}"""


def _imports(artefacts: Artefacts, own: Sequence[str]) -> str:
    """Return the sorted import lines: those of every class, of the decision, and `own` of the runtime."""
    kind = row_of(artefacts).labels
    names = ["android.content.Context", "org.pocketbert.tokenizers.Limits", "org.pocketbert.tokenizers.Tokenizer", *own]
    if _makes_answer(artefacts) and kind in (LabelKind.NAME, LabelKind.NAMES):
        names += ["com.google.gson.JsonParser", "kotlin.math.exp"]
    if applies_sigmoid(artefacts):
        names.append("kotlin.math.exp")
    return "\n".join(f"import {name}" for name in sorted(names)) + "\n"


def _makes_answer(artefacts: Artefacts) -> bool:
    """Return whether the code makes an answer of the outputs; for tasks on tokens the card describes how."""
    return not has_token_outputs(artefacts)


def _label_pair_type(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return the type of a label with its probability; with a threshold the label may be null."""
    return f"Pair<String{'?' if unknown_threshold(artefacts, record) else ''}, Float>"


def _label_pair(artefacts: Artefacts, record: ModelRecord, probability: str) -> str:
    """Return the code after a label that pairs it with its probability; below a threshold the label is null."""
    least = unknown_threshold(artefacts, record)
    if not least:
        return f" to {probability}"
    return f".takeIf {{ {probability} >= {least}f }} to {probability}   // null {UNKNOWN}"


def _answer_signature(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return the signature of `answer`: texts, prompt, and the type of the answer."""
    texts = ["question", "context"] if asks_questions(artefacts) else ["text"]
    texts = ["first", "second"] if takes_two_texts(artefacts) and not asks_questions(artefacts) else texts
    kind = {
        LabelKind.NAME: _label_pair_type(artefacts, record),
        LabelKind.NAMES: "List<String>",
        LabelKind.SCORE: "Float",
    }
    gives = (
        kind.get(row_of(artefacts).labels, "FloatArray") if _makes_answer(artefacts) else _token_outputs_type(artefacts)
    )
    given = ", ".join(f"{t}: String" for t in texts)
    return f"fun answer({given}{_prompt_parameter(artefacts)}): {gives}"


def _encode_line(artefacts: Artefacts, longest: int) -> str:
    """Return the line that tokenizes the texts; of a long context the first window."""
    if asks_questions(artefacts):
        return (
            f"val e = tokenizer.windows(question, context, {longest}, {artefacts.processing.stride}).first()   "
            "// a long context has more windows"
        )
    texts = "first, second" if takes_two_texts(artefacts) else "text"
    limits = "keepingEnd" if keeps_end(artefacts) else "of"
    return f"val e = tokenizer.encode({_prompt_in_front(artefacts)}{texts}, Limits.{limits}({longest}))"


def _prompts(artefacts: Artefacts) -> str:
    """Return a constant map of the folder's prompts by name; empty if it has none."""
    if not takes_prompts(artefacts):
        return ""
    named = artefacts.processing.prompts.items()
    each = "".join(f"            {quote_for_kotlin(n)} to {quote_for_kotlin(text)},\n" for n, text in named)
    return f"    companion object {{\n        val PROMPTS = mapOf(\n{each}        )\n    }}\n\n"


def _prompt_parameter(artefacts: Artefacts) -> str:
    """Return the parameter for a prompt, with the default prompt as its default; empty if the folder has no prompts."""
    if not takes_prompts(artefacts):
        return ""
    return f", prompt: String = {quote_for_kotlin(default_prompt(artefacts))}"


def _prompt_in_front(artefacts: Artefacts) -> str:
    """Return the code that puts a prompt in front of the first text; empty if the folder has no prompts."""
    return "prompt + " if takes_prompts(artefacts) else ""


def _token_outputs_type(artefacts: Artefacts) -> str:
    """Return the type of the outputs of a task on tokens."""
    return f"Map<String, {'Array<FloatArray>' if _rows_of_numbers(artefacts) else 'FloatArray'}>"


def _onnx_answer_lines(artefacts: Artefacts, record: ModelRecord) -> list[str]:
    """Return the lines from ONNX Runtime's outputs to the answer."""
    kind = "Array<Array<FloatArray>>" if _rows_of_numbers(artefacts) else "Array<FloatArray>"
    names = row_of(artefacts).answer
    if not _makes_answer(artefacts):
        each = ", ".join(f'"{n}" to (outputs.get("{n}").get().value as {kind})[0]' for n in names)
        return [f"return mapOf({each})   // a row for each token; from here to an answer: see Processing"]
    name = names[0]
    return [
        f'val {camel_case(name)} = (outputs.get("{name}").get().value as {kind})[0]',
        *_answer_lines(artefacts, record, camel_case(name)),
    ]


def _litert_answer_lines(artefacts: Artefacts, record: ModelRecord) -> list[str]:
    """Return the lines from the output buffers of LiteRT to the answer."""
    names = row_of(artefacts).answer
    if not _makes_answer(artefacts):
        each = ", ".join(f'"{n}" to {camel_case(n)}[0]' for n in names)
        return [
            f"return mapOf({each})   // a row for each token, padding included; from here to an answer: see Processing"
        ]
    return [f"val numbers = {camel_case(names[0])}[0]", *_answer_lines(artefacts, record, "numbers")]


def _answer_lines(artefacts: Artefacts, record: ModelRecord, values: str) -> list[str]:
    """Return the lines from the numbers of one text, in the variable `values`, to the answer."""
    match row_of(artefacts).labels:
        case LabelKind.NAME:
            power, note = "exp(it - largest)", "softmax"
            if is_tempered(record):
                power, note = f"exp((it - largest) / {record.temperature:g}f)", f"softmax with {TEMPERED}"
            return [
                f"val largest = {values}.max()",
                f"val powers = {values}.map {{ {power} }}   // {note}",
                "val best = powers.indices.maxBy { powers[it] }",
                "val probability = powers[best] / powers.sum()",
                f'return labels["$best"].asString{_label_pair(artefacts, record, "probability")}',
            ]
        case LabelKind.NAMES:
            limits = ", ".join(f"{t:g}f" for t in artefacts.processing.thresholds or [])
            return [
                f"val thresholds = floatArrayOf({limits})   // in the order of id2label",
                f"val given = {values}.indices.filter {{ 1 / (1 + exp(-{values}[it])) >= thresholds[it] }}   // sigmoid",
                'return given.map { labels["$it"].asString }',
            ]
        case LabelKind.SCORE:
            if applies_sigmoid(artefacts):
                return [f"return 1 / (1 + exp(-{values}[0]))   // sigmoid"]
            return [f"return {values}[0]"]
    return [f"return {values}"]


def _onnx_input(artefacts: Artefacts, record: ModelRecord, name: str) -> str:
    """Return the code of an input for ONNX Runtime."""
    if is_float_input(artefacts, name):
        return f"vectors(e.length(), {input_width(record, name)})"
    return f"tensor({_input_values(name)})"


def _litert_input(artefacts: Artefacts, record: ModelRecord, name: str) -> str:
    """Return the code of an input for LiteRT, padded to `length`."""
    if is_float_input(artefacts, name):
        return f"arrayOf(Array(length) {{ FloatArray({input_width(record, name)}) }})"
    return f"padded({_input_values(name)}, length)"


def _input_values(name: str) -> str:
    """Return the code of the numbers of an input for `e`, a tokenized text; zeros for further inputs."""
    known = {"input_ids": "e.ids()", "attention_mask": "IntArray(e.length()) { 1 }", "token_type_ids": "e.typeIds()"}
    return known.get(name, "IntArray(e.length())")


def _output_buffer(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return the code of a buffer for an output of LiteRT."""
    numbers = width(record) or ""
    if _rows_of_numbers(artefacts):
        return f"Array(1) {{ Array(length) {{ FloatArray({numbers}) }} }}"
    return f"arrayOf(FloatArray({'length' if has_token_outputs(artefacts) else numbers}))"


def _rows_of_numbers(artefacts: Artefacts) -> bool:
    """Return whether an output has several numbers per token, unlike the start and end scores of questions."""
    return has_token_outputs(artefacts) and len(row_of(artefacts).answer) == 1


def _indent(lines: Sequence[str], columns: int) -> str:
    return "\n".join(" " * columns + line for line in lines)
