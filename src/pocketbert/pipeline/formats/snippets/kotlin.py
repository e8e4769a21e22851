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
    SnippetFile,
    has_tokenizer_sources,
    output_width,
    quote_for_kotlin,
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
_HEAD_ROWS = "logits: of heads on words a row for each token, of others one row; from here to answers: see Processing"
_LABELS = """    private val labels =
        assets.open("config.json").bufferedReader().use { JsonParser.parseReader(it) }.asJsonObject.getAsJsonObject("id2label")
"""


def gradle(*coordinates: str) -> tuple[str, ...]:
    """Return a Gradle line (Kotlin) for each library, given by its Maven coordinates."""
    return tuple(f'implementation("{c}")' for c in coordinates)


def _tokenizer_source(file: SnippetFile) -> str:
    """Return a phrase on where the code's tokenizer comes from: the folder ``android/``, or the app itself."""
    if has_tokenizer_sources(file.artefacts, "Kotlin"):
        return "the tokenizer is in `android/`: copy `android/java` and `android/resources` into `src/main`"
    return (
        "this folder has no sources of the tokenizer, so `org.pocketbert.tokenizers` is PocketBERT's `android_demo/core`, or "
        "yours: it must give the ids of `golden_tokens.jsonl`"
    )


def onnx(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return a sentence and the Kotlin class that runs an ONNX file with ONNX Runtime on Android."""
    file = SnippetFile(artefacts, record)
    feed = "\n".join(f'            "{n}" to {_onnx_input(file, n)},' for n in file.inputs)
    imports = [
        "ai.onnxruntime.OnnxTensor",
        "ai.onnxruntime.OrtEnvironment",
        "ai.onnxruntime.OrtSession",
        "android.system.Os",
    ]
    floats = file.has_float_inputs
    vectors = """
    private fun vectors(tokens: Int, width: Int) =
        OnnxTensor.createTensor(environment, arrayOf(Array(tokens) { FloatArray(width) }))
"""
    opened = f'assets.open("{file.record.path}").use {{ it.readBytes() }}'
    if file.avoids_saturation:
        opened = f"{opened}, options"
        setting = """
        val options = OrtSession.SessionOptions()
        options.addConfigEntry("session.x64quantprecision", "1")   // else int8 saturates on x86 without VNNI (emulators)"""
    else:
        setting = ""
    return f"""Kotlin, with `{ORT.rpartition(":")[0]}` ({_tokenizer_source(file)}; this project compiles and runs the code for
classification on a desktop, not on a phone):

```kotlin
{_imports(file, imports)}
{_class_opening(file, "OnnxModel")}    private val environment: OrtEnvironment
    private val session: OrtSession

    init {{
        Os.setenv("ORT_DISABLE_TELEMETRY", "1", true)   // {NO_TELEMETRY}
        environment = OrtEnvironment.getEnvironment(){setting}
        session = environment.createSession({opened})
    }}

    {_answer_signature(file)} {{
        {_encode_line(file, file.processing.max_length)}
        val inputs = mapOf(   // int64 [1, tokens]{file.comment_on_inputs(";").replace("   ; ", "; ")}
{feed}
        )
        try {{
            session.run(inputs).use {{ outputs ->
{_indent(_onnx_answer_lines(file), 16)}
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
    """Return a sentence and the Kotlin class that runs a TFLite file with LiteRT on Android."""
    file = SnippetFile(artefacts, record)
    names, longest = file.task.answer, file.longest
    feed = "\n".join(f'            "{n}" to {_litert_input(file, n)},' for n in file.inputs)
    buffers = "\n".join(f"        val {_camel_case(n)} = {_output_buffer(file, n)}" for n in names)
    outputs = ", ".join(f'"{n}" to {_camel_case(n)}' for n in names)
    left = file.processing.padding_side == "left"
    pad = "IntArray(length - values.size) + values" if left else "values.copyOf(length)"
    imports = ["java.io.FileInputStream", "java.nio.channels.FileChannel", "org.tensorflow.lite.Interpreter"]
    return f"""Kotlin, with `{LITERT.rpartition(":")[0]}` ({_tokenizer_source(file)}; this project compiles the code for classification
and runs it on a desktop with TensorFlow Lite {TFLITE_JVM} and the file for it, not on a phone):

```kotlin
{_imports(file, imports)}
{_class_opening(file, "LitertModel")}    private val interpreter = Interpreter(
        assets.openFd("{file.record.path}").use {{ file ->   // mapped into memory: Gradle does not compress .tflite files
            val channel = FileInputStream(file.fileDescriptor).channel
            channel.map(FileChannel.MapMode.READ_ONLY, file.startOffset, file.declaredLength)
        }},
    )

    @Synchronized   // an interpreter answers one text at a time
    {_answer_signature(file)} {{
        {_encode_line(file, longest)}
        val length = intArrayOf({", ".join(map(str, file.lengths))}).first {{ it >= e.length() }}
        val inputs = mapOf(   // int32 [1, length], padded with attention mask 0{file.comment_on_inputs(";").replace("   ; ", "; ")}
{feed}
        )
{buffers}
        interpreter.runSignature(inputs, mapOf({outputs}), "seq_$length")
{_indent(_litert_answer_lines(file), 8)}
    }}

    private fun padded(values: IntArray, length: Int) = arrayOf({pad})

    override fun close() = interpreter.close()
}}
```"""


def mediapipe(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return a sentence and the Kotlin class that runs MediaPipe's file with TextClassifier or TextEmbedder."""
    file = SnippetFile(artefacts, record)
    most = file.longest
    texts, text = f"text: String{_prompt_parameter(file)}", f"{_prompt_in_front(file)}text"
    if file.artefacts.task is TaskName.FEATURE_EXTRACTION:
        inside, kind, name = "tokenizer and pooling are", "TextEmbedder", "textembedder"
        code = (
            f"    fun answer({texts}): FloatArray =\n"
            f"        embedder.embed({text}).embeddingResult().embeddings()[0].floatEmbedding()"
        )
    else:
        inside, kind, name = "tokenizer, labels and softmax are", "TextClassifier", "textclassifier"
        code = (
            f"    fun answer({texts}): {_label_pair_type(file)} {{\n"
            f"        val best = classifier.classify({text}).classificationResult().classifications()[0].categories()[0]\n"
            f"        return best.categoryName(){_label_pair(file, 'best.score()')}\n    }}"
        )
        if file.is_tempered:
            code = (
                f"    fun answer({texts}): {_label_pair_type(file)} {{\n"
                f"        val all = classifier.classify({text}).classificationResult().classifications()[0].categories()\n"
                f"        val powers = all.map {{ it.score().pow(1 / {file.record.temperature:g}f) }}   // {TEMPERED}, which MediaPipe does not apply\n"
                "        val probability = powers[0] / powers.sum()\n"
                f"        return all[0].categoryName(){_label_pair(file, 'probability')}\n    }}"
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
{_prompts(file)}    private val {field} = {kind}.createFromFile(context, "{file.record.path}")

{code}

    override fun close() = {field}.close()
}}
```"""


def _class_opening(file: SnippetFile, name: str) -> str:
    """Return the first Kotlin lines of a class: its comment, its name, prompts, tokenizer and labels.

    Prompts are left out of models without them, and labels of code that returns numbers or raw outputs.
    """
    labels = _LABELS if file.task.names_labels and not (file.has_token_outputs or file.task.heads) else ""
    return f"""/** Open it once, off the main thread, and close it when it is not needed any more. */
class {name}(context: Context) : AutoCloseable {{
{_prompts(file)}{_FIELDS}{labels}"""


def _imports(file: SnippetFile, own: Sequence[str]) -> str:
    """Return the sorted Kotlin import lines of a class.

    Args:
        file: The file that the code is for; its task decides what the answer needs.
        own: Classes of the runtime to import.
    """
    kind = file.task.labels
    names = ["android.content.Context", "org.pocketbert.tokenizers.Limits", "org.pocketbert.tokenizers.Tokenizer", *own]
    if not file.has_token_outputs and kind in (LabelKind.NAME, LabelKind.NAMES):
        names += ["com.google.gson.JsonParser", "kotlin.math.exp"]
    if file.applies_sigmoid or file.chooses:
        names.append("kotlin.math.exp")
    return "\n".join(f"import {name}" for name in sorted(names)) + "\n"


def _label_pair_type(file: SnippetFile) -> str:
    """Return the Kotlin type of a label with its probability. With a threshold the label may be null."""
    return f"Pair<String{'?' if file.unknown_threshold else ''}, Float>"


def _label_pair(file: SnippetFile, probability: str) -> str:
    """Return the Kotlin code that follows a label and pairs it with its probability.

    With a threshold, the code replaces a label below it by null.
    """
    least = file.unknown_threshold
    if not least:
        return f" to {probability}"
    return f".takeIf {{ {probability} >= {least}f }} to {probability}   // null {UNKNOWN}"


def _answer_signature(file: SnippetFile) -> str:
    """Return the Kotlin signature of ``answer``: its parameters for texts and prompt, and its return type.

    For multiple choice it is the whole method, and the signature of the method ``number`` for one choice.
    """
    texts = ["first", "second"] if file.artefacts.pair else ["text"]
    if file.asks_questions:
        texts = ["question", "context"]
    if file.chooses:
        return _choice_signatures(file)
    kinds = {LabelKind.NAME: _label_pair_type(file), LabelKind.NAMES: "List<String>", LabelKind.SCORE: "Float"}
    gives = kinds.get(file.task.labels, "FloatArray")
    if file.has_token_outputs or file.task.heads:
        gives = f"Map<String, {'Array<FloatArray>' if _rows_of_numbers(file) else 'FloatArray'}>"
    parameters = ", ".join(f"{t}: String" for t in texts)
    return f"fun answer({parameters}{_prompt_parameter(file)}): {gives}"


def _choice_signatures(file: SnippetFile) -> str:
    """Return the Kotlin method ``answer`` for multiple choice, and the signature of ``number``, which it calls."""
    prompt = ", prompt" if file.takes_prompts else ""
    return f"""fun answer(question: String, choices: List<String>{_prompt_parameter(file)}): Pair<Int, Float> {{
        val numbers = choices.map {{ number(question, it{prompt}) }}
        val powers = numbers.map {{ exp(it - numbers.max()) }}   // softmax over the choices
        val best = powers.indices.maxBy {{ powers[it] }}
        return best to powers[best] / powers.sum()
    }}

    private fun number(first: String, second: String{", prompt: String" if file.takes_prompts else ""}): Float"""


def _encode_line(file: SnippetFile, longest: int) -> str:
    """Return the Kotlin line that tokenizes the texts, up to `longest` tokens.

    For question answering it takes the first window of the context only.
    """
    if file.asks_questions:
        return (
            f"val e = tokenizer.windows(question, context, {longest}, {file.processing.stride}).first()   "
            "// a long context has more windows"
        )
    texts = "first, second" if file.artefacts.pair else "text"
    limits = "keepingEnd" if file.keeps_end else "of"
    return f"val e = tokenizer.encode({_prompt_in_front(file)}{texts}, Limits.{limits}({longest}))"


def _prompts(file: SnippetFile) -> str:
    """Return Kotlin lines of a constant map of the folder's prompts by name; empty if the folder has none."""
    if not file.takes_prompts:
        return ""
    named = file.processing.prompts.items()
    each = "".join(f"            {quote_for_kotlin(n)} to {quote_for_kotlin(text)},\n" for n, text in named)
    return f"    companion object {{\n        val PROMPTS = mapOf(\n{each}        )\n    }}\n\n"


def _prompt_parameter(file: SnippetFile) -> str:
    """Return the Kotlin parameter for a prompt, whose default is the folder's default prompt; empty without prompts."""
    if not file.takes_prompts:
        return ""
    return f", prompt: String = {quote_for_kotlin(file.default_prompt)}"


def _prompt_in_front(file: SnippetFile) -> str:
    """Return the Kotlin code that puts a prompt in front of the first text; empty without prompts."""
    return "prompt + " if file.takes_prompts else ""


def _onnx_answer_lines(file: SnippetFile) -> list[str]:
    """Return the Kotlin lines that compute the answer (labels, number or vector) from ONNX Runtime's outputs.

    For several heads and for tasks with an output per token, the lines return the raw outputs by name, and refer the
    user to the model card for the rest.
    """
    kind = "Array<Array<FloatArray>>" if _rows_of_numbers(file) else "Array<FloatArray>"
    names = file.task.answer
    if file.task.heads:
        values = [
            f'"{n}" to (outputs.get("{n}").get().value as Array<FloatArray>)'
            if file.is_of_texts(n)
            else f'"{n}" to (outputs.get("{n}").get().value as Array<Array<FloatArray>>)[0]'
            for n in names
        ]
        return [f"return mapOf({', '.join(values)})   // {_HEAD_ROWS}"]
    if file.has_token_outputs:
        each = ", ".join(f'"{n}" to (outputs.get("{n}").get().value as {kind})[0]' for n in names)
        return [f"return mapOf({each})   // a row for each token; from here to an answer: see Processing"]
    name = names[0]
    return [
        f'val {_camel_case(name)} = (outputs.get("{name}").get().value as {kind})[0]',
        *_answer_lines(file, _camel_case(name)),
    ]


def _litert_answer_lines(file: SnippetFile) -> list[str]:
    """Return the Kotlin lines that compute the answer (labels, number or vector) from the arrays that LiteRT has filled.

    For several heads and for tasks with an output per token, the lines return the raw outputs by name, and refer the
    user to the model card for the rest.
    """
    names = file.task.answer
    if file.task.heads:
        each = ", ".join(f'"{n}" to {_camel_case(n)}{"" if file.is_of_texts(n) else "[0]"}' for n in names)
        return [f"return mapOf({each})   // {_HEAD_ROWS}"]
    if file.has_token_outputs:
        each = ", ".join(f'"{n}" to {_camel_case(n)}[0]' for n in names)
        return [
            f"return mapOf({each})   // a row for each token, padding included; from here to an answer: see Processing"
        ]
    return [f"val numbers = {_camel_case(names[0])}[0]", *_answer_lines(file, "numbers")]


def _answer_lines(file: SnippetFile, values: str) -> list[str]:
    """Return the Kotlin lines that compute the task's answer from one text's output.

    Args:
        file: The file that the code is for.
        values: Name of the Kotlin variable with the output.
    """
    match file.task.labels:
        case LabelKind.NAME:
            power, note = "exp(it - largest)", "softmax"
            if file.is_tempered:
                power, note = f"exp((it - largest) / {file.record.temperature:g}f)", f"softmax with {TEMPERED}"
            return [
                f"val largest = {values}.max()",
                f"val powers = {values}.map {{ {power} }}   // {note}",
                "val best = powers.indices.maxBy { powers[it] }",
                "val probability = powers[best] / powers.sum()",
                f'return labels["$best"].asString{_label_pair(file, "probability")}',
            ]
        case LabelKind.NAMES:
            limits = ", ".join(f"{t:g}f" for t in file.processing.thresholds or [])
            return [
                f"val thresholds = floatArrayOf({limits})   // in the order of id2label",
                f"val given = {values}.indices.filter {{ 1 / (1 + exp(-{values}[it])) >= thresholds[it] }}   // sigmoid",
                'return given.map { labels["$it"].asString }',
            ]
        case LabelKind.CHOICE:
            return [f"return {values}[0]"]
        case LabelKind.SCORE:
            if file.applies_sigmoid:
                return [f"return 1 / (1 + exp(-{values}[0]))   // sigmoid"]
            return [f"return {values}[0]"]
    return [f"return {values}"]


def _onnx_input(file: SnippetFile, name: str) -> str:
    """Return the Kotlin expression of a graph input for ONNX Runtime."""
    if file.is_float(name):
        return f"vectors(e.length(), {file.input_width(name)})"
    return f"tensor({_input_values(name)})"


def _litert_input(file: SnippetFile, name: str) -> str:
    """Return the Kotlin expression of a graph input for LiteRT, padded to ``length``."""
    if file.is_float(name):
        return f"arrayOf(Array(length) {{ FloatArray({file.input_width(name)}) }})"
    return f"padded({_input_values(name)}, length)"


def _input_values(name: str) -> str:
    """Return the Kotlin expression of an input's numbers for ``e``, a tokenized text.

    Inputs besides the text are filled with zeros.
    """
    known = {"input_ids": "e.ids()", "attention_mask": "IntArray(e.length()) { 1 }", "token_type_ids": "e.typeIds()"}
    return known.get(name, "IntArray(e.length())")


def _output_buffer(file: SnippetFile, name: str) -> str:
    """Return the Kotlin expression of an empty array that LiteRT fills with an output."""
    numbers = (file.output_size(name) if file.task.heads else output_width(file.record)) or ""
    if file.task.heads and file.is_of_texts(name):
        return f"arrayOf(FloatArray({numbers}))"
    if _rows_of_numbers(file):
        return f"Array(1) {{ Array(length) {{ FloatArray({numbers}) }} }}"
    return f"arrayOf(FloatArray({'length' if file.has_token_outputs else numbers}))"


def _rows_of_numbers(file: SnippetFile) -> bool:
    """Return whether outputs have several numbers per token, unlike the start and end scores of question answering.

    For several heads it is true, although some of them may have one row for a text.
    """
    return bool(file.task.heads) or (file.has_token_outputs and len(file.task.answer) == 1)


def _camel_case(name: str) -> str:
    """Return a name such as ``input_ids`` in Kotlin's spelling, ``inputIds``."""
    first, *rest = name.split("_")
    return first + "".join(w.capitalize() for w in rest)


def _indent(lines: Sequence[str], columns: int) -> str:
    """Return lines joined into one text, each indented by `columns` blanks."""
    return "\n".join(" " * columns + line for line in lines)
