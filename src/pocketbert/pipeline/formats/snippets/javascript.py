"""JavaScript code for the model card: transformers.js, onnxruntime-node for models that it does not support, and PocketBERT's runtime.

`web_code` returns them one below the other: first a pipeline or model class of transformers.js or else a session of onnxruntime-node,
then PocketBERT's runtime.
"""

from __future__ import annotations

import json

from pocketbert.core.artefacts import Artefacts, ModelRecord, Processing
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.core.types import Scheme
from pocketbert.pipeline.formats.snippets.parts import (
    TEMPERED,
    UNKNOWN,
    SnippetFile,
    quote_texts,
)

VERSION = "4.3.1"
_DTYPES = {Scheme.FP32: "fp32", Scheme.FP16: "fp16", Scheme.INT8: "int8"}
_ALWAYS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra",
    "deberta",
    "deberta-v2",
    "xlm",
    "mpnet",
    "convbert",
    "roformer",
)
_SEQUENCE = (*_ALWAYS, "albert", "mobilebert", "squeezebert", "modernbert", "esm")
_KNOWN: dict[TaskName, tuple[str, ...]] = {
    TaskName.TEXT_CLASSIFICATION: _SEQUENCE,
    TaskName.MULTI_LABEL: _SEQUENCE,
    TaskName.REGRESSION: _SEQUENCE,
    TaskName.TOKEN_CLASSIFICATION: (*_ALWAYS, "modernbert", "esm"),
    TaskName.QUESTION_ANSWERING: (*_ALWAYS, "albert", "mobilebert", "squeezebert"),
    TaskName.MULTIPLE_CHOICE: _SEQUENCE,
    TaskName.FILL_MASK: _SEQUENCE,
    TaskName.FEATURE_EXTRACTION: _SEQUENCE,
}
"""`model_type` values that the client lists for each task (src/models/registry.js of 4.3.1)."""

PACKAGE = "@huggingface/transformers"
_SET_FOLDER = 'env.allowRemoteModels = false; env.localModelPath = "models/";'
_AVOID_SATURATION = 'const precise = { extra: { session: { x64quantprecision: "1" } } };   // in Node, int8 saturates on x86 without VNNI'


def web_code(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return sentences and JavaScript code that runs an ONNX file, with transformers.js or else onnxruntime-node.

    Code with PocketBERT's own runtime follows, unless the file has inputs besides the text.
    """
    file = SnippetFile(artefacts, record)
    code = _transformers_js(file)
    # the package makes inputs of texts only
    return f"{code}\n\n{_own_runtime(file)}" if artefacts.form is None else code


def _own_runtime(file: SnippetFile) -> str:
    """Return a sentence and JavaScript code that runs the file with @pocketbert/runtime, which answers as PocketBERT does."""
    text = quote_texts(file.texts[:1])
    if file.chooses:
        text = f"[{text}, [{quote_texts(file.choices)}]]"
    elif file.artefacts.task is TaskName.FILL_MASK:
        text = "`your text with a ${model.maskToken}`"
    elif len(file.texts) > 1:
        text = f"[{quote_texts(file.texts)}]"
    lead = (
        "The same answers as PocketBERT's in Python, in Node and in pages, with `@pocketbert/runtime` (`npm pack` in `runtime/javascript` of "
        "PocketBERT's sources makes it; it is not on npm) and onnxruntime-web or onnxruntime-node"
    )
    return _block(
        lead,
        'import { load } from "@pocketbert/runtime";\n'
        f'const model = await load("models/FOLDER", {{ file: {json.dumps(file.record.path)} }});\n'
        f"const [answer] = await model.predict([{text}]);\nconsole.log(answer);",
    )


def _transformers_js(file: SnippetFile) -> str:
    """Return a sentence and JavaScript code that runs an ONNX file with a pipeline of transformers.js.

    If its pipelines cannot serve the model, the code uses a model class of transformers.js. If transformers.js does not
    list the model's family for the task, the code opens a session of onnxruntime-node.
    """
    if file.artefacts.family not in _KNOWN.get(file.artefacts.task, ()):
        return _session_code(file)
    if file.chooses:
        return _choice_code(file)
    if file.artefacts.pair and file.artefacts.task is not TaskName.QUESTION_ANSWERING:
        return _model_code(file, "its text-classification pipeline takes no pairs")
    if file.artefacts.task is TaskName.REGRESSION:
        return _model_code(file, "its pipeline turns the number into a softmax, which is always 1")
    name, call, note = _pipeline(file)
    return _block(
        f"JavaScript, with transformers.js {VERSION} (the folder lies under `models/`){note}{_cut_note(file)}",
        f'import {{ env, pipeline }} from "{PACKAGE}";\n{_first_lines(file)}\n{_prompt_table(file)}'
        f'const run = await pipeline("{name}", "FOLDER", {_file_options(file)});\n{call}\nconsole.log(answer);',
    )


def _pipeline(file: SnippetFile) -> tuple[str, str, str]:
    """Return a pipeline's name, JavaScript lines that set ``answer``, and a remark if PocketBERT answers otherwise."""
    texts, p = _with_prompt(file, quote_texts(file.texts)), file.processing
    match file.artefacts.task:
        case TaskName.MULTI_LABEL:
            limits = ", ".join(file.thresholds)
            return (
                "text-classification",
                (
                    f"const scores = await run({texts}, {{ top_k: null }});\n"
                    f"const thresholds = [{limits}];   // in the order of id2label\n"
                    "const answer = scores.filter(s => s.score >= thresholds[run.model.config.label2id[s.label]]);"
                ),
                "",
            )
        case TaskName.TOKEN_CLASSIFICATION:
            return (
                "token-classification",
                f"const answer = await run({texts}, {{ ignore_labels: [] }});",
                (
                    "; it gives tokens without offsets, where the first one of a word decides (its others start with `##`, or without "
                    f"a blank{', and do not begin with punctuation or follow it' if p.splits_punctuation else ''}), and leaves unknown tokens out"
                ),
            )
        case TaskName.QUESTION_ANSWERING:
            return (
                "question-answering",
                f"const answer = await run({texts});",
                (
                    f"; it reads the first {p.max_length} tokens only, has no limit of the answer's length, scores differently, and gives decoded "
                    "tokens instead of a piece of the text"
                ),
            )
        case TaskName.FILL_MASK:
            return (
                "fill-mask",
                f"const answer = await run({_with_prompt(file, '`your text with a ${run.tokenizer.mask_token}`')});",
                "; it fills only the first mask",
            )
        case TaskName.FEATURE_EXTRACTION:
            return _vector_pipeline(p, texts)
    if not file.is_tempered:
        call = f"const answer = await run({texts}, {{ top_k: null }});"
        return "text-classification", _with_threshold(file, call), ""
    call = (
        f"const scores = await run({texts}, {{ top_k: null }});\n"
        f"const powers = scores.map(s => s.score ** (1 / {file.record.temperature:g}));   // {TEMPERED}\n"
        "const sum = powers.reduce((a, b) => a + b);\n"
        f"const answer = scores.map((s, i) => ({{ label: s.label, score: powers[i] / sum }}));"
    )
    return "text-classification", _with_threshold(file, call), ""


def _vector_pipeline(p: Processing, texts: str) -> tuple[str, str, str]:
    """Return the pipeline's name, JavaScript lines and a remark for sentence vectors.

    transformers.js itself pools by mean or cls only. For other models the lines read the vector that the file computes.

    Args:
        p: How the model processes texts.
        texts: The example texts as a JavaScript expression.
    """
    if p.pooling not in ("mean", "cls") or p.vector_layers:
        return (
            "feature-extraction",
            f"const inputs = run.tokenizer([{texts}], {{ truncation: true }});\n"
            "const answer = (await run.model(inputs)).sentence_embedding.tolist()[0];",
            "; the pipeline itself pools in other ways than the files, which give the vector as `sentence_embedding`",
        )
    options = f'{{ pooling: "{p.pooling}", normalize: {str(bool(p.normalize)).lower()} }}'
    return (
        "feature-extraction",
        f"const answer = (await run({texts}, {options})).tolist()[0];",
        "; without these options it gives the states of all tokens",
    )


def _with_threshold(file: SnippetFile, code: str) -> str:
    """Change JavaScript lines so that ``answer`` is empty if the best label's score is below the file's threshold.

    Without a threshold the lines are returned as they are.
    """
    least = file.unknown_threshold
    if not least:
        return code
    every = code.replace("const answer =", "const every =")
    return f"{every}\nconst answer = every[0].score >= {least} ? every : [];   // empty {UNKNOWN}"


def _model_code(file: SnippetFile, reason: str) -> str:
    """Return JavaScript code that uses a model class of transformers.js.

    Args:
        file: The file that the code is for.
        reason: Why a pipeline of transformers.js cannot run the model; it is part of the text.
    """
    texts = file.texts
    pair = (
        f", {{ text_pair: {quote_texts(texts[1:])}, truncation: true }}" if len(texts) > 1 else ", { truncation: true }"
    )
    lines = [
        f'import {{ env, AutoModelForSequenceClassification, AutoTokenizer, softmax }} from "{PACKAGE}";',
        _first_lines(file),
        'const tokenizer = await AutoTokenizer.from_pretrained("FOLDER");',
        f'const model = await AutoModelForSequenceClassification.from_pretrained("FOLDER", {_file_options(file)});',
        f"{_prompt_table(file)}const {{ logits }} = await model(tokenizer({_with_prompt(file, quote_texts(texts[:1]))}{pair}));",
        _answer_lines(file, "model.config.id2label"),
        "console.log(answer);",
    ]
    if file.task.labels is not LabelKind.NAME:
        lines[0] = lines[0].replace(", softmax", "")
    return _block(
        f"JavaScript, with transformers.js {VERSION} (the folder lies under `models/`); {reason}{_cut_note(file)}",
        "\n".join(lines),
    )


def _choice_code(file: SnippetFile) -> str:
    """Return JavaScript code for a multiple-choice model, with transformers.js's class for sequence classification."""
    texts = f"{_with_prompt(file, 'question')}, {{ text_pair: choice, truncation: true }}"
    lines = [
        f'import {{ env, AutoModelForSequenceClassification, AutoTokenizer, softmax }} from "{PACKAGE}";',
        _first_lines(file),
        'const tokenizer = await AutoTokenizer.from_pretrained("FOLDER");',
        f'const model = await AutoModelForSequenceClassification.from_pretrained("FOLDER", {_file_options(file)});',
        f"{_prompt_table(file)}const question = {quote_texts(file.texts[:1])}, choices = [{quote_texts(file.choices)}];",
        "const values = [];",
        "for (const choice of choices) {   // a row for each, without padding, which moves the ranges of int8 files",
        f"  const {{ logits }} = await model(tokenizer({texts}));",
        "  values.push(logits.data[0]);",
        "}",
        "const scores = softmax(values);   // softmax over the choices",
        "const best = scores.indexOf(Math.max(...scores));",
        "const answer = { choice: choices[best], index: best, score: scores[best] };",
        "console.log(answer);",
    ]
    lead = f"JavaScript, with transformers.js {VERSION} (the folder lies under `models/`); it has no pipeline for multiple choice"
    return _block(f"{lead}{_cut_note(file)}", "\n".join(lines))


def _answer_lines(file: SnippetFile, names: str) -> str:
    """Return the JavaScript lines that compute ``answer`` from ``logits``.

    Args:
        file: The file that the code is for.
        names: JavaScript expression for the label names by id.
    """
    kind = file.task.labels
    if kind is LabelKind.SCORE:
        return f"const answer = {'1 / (1 + Math.exp(-logits.data[0]))' if file.applies_sigmoid else 'logits.data[0]'};"
    named = f"(score, i) => ({{ label: {names}[i], score }})"
    if kind is LabelKind.NAME:
        line = f"const answer = Array.from(softmax(logits.data), {named}).sort((a, b) => b.score - a.score);"
        line = _with_threshold(file, line)
        if not file.is_tempered:
            return line
        divided = f"const divided = logits.data.map(x => x / {file.record.temperature:g});   // {TEMPERED}"
        return f"{divided}\n{line.replace('logits.data', 'divided')}"
    limits = ", ".join(file.thresholds)
    return (
        f"const thresholds = [{limits}];   // in the order of id2label\n"
        "const scores = Array.from(logits.data, x => 1 / (1 + Math.exp(-x)));\n"
        f"const answer = scores.map({named}).filter((s, i) => s.score >= thresholds[i]).sort((a, b) => b.score - a.score);"
    )


def _session_code(file: SnippetFile) -> str:
    """Return JavaScript code that runs the ONNX file with onnxruntime-node; its ``answer`` has the raw outputs by name."""
    texts = file.texts
    pair = (
        f", {{ text_pair: {quote_texts(texts[1:])}, truncation: true }}" if len(texts) > 1 else ", { truncation: true }"
    )
    outputs = ", ".join(file.task.answer)
    text = quote_texts(texts[:1])
    if file.artefacts.task is TaskName.FILL_MASK:
        text = "`your text with a ${tokenizer.mask_token}`"
    return _block(
        f"JavaScript, with onnxruntime-node and the tokenizer of transformers.js {VERSION}, whose list for {file.artefacts.task} has no "
        f"{file.artefacts.family} (the folder lies under `models/`; from the outputs to an answer: see Processing){_cut_note(file)}",
        "\n".join(
            [
                f'import {{ env, AutoTokenizer }} from "{PACKAGE}";',
                'import * as ort from "onnxruntime-node";',
                'process.env.ORT_DISABLE_TELEMETRY ??= "1";   // before the first session: otherwise ONNX Runtime sends telemetry to its vendor',
                _first_lines(file),
                'const tokenizer = await AutoTokenizer.from_pretrained("FOLDER");',
                f'const session = await ort.InferenceSession.create("models/FOLDER/{file.record.path}"{", precise" if file.avoids_saturation else ""});',
                f"{_prompt_table(file)}const inputs = tokenizer({_with_prompt(file, text)}{pair});",
                'const feed = Object.fromEntries(session.inputNames.map(n => [n, new ort.Tensor("int64", inputs[n].data, inputs[n].dims)]));',
                f"const {{ {outputs} }} = await session.run(feed);",
                f"const answer = {{ {outputs} }};",
                "console.log(answer);",
            ]
        ),
    )


def _prompt_table(file: SnippetFile) -> str:
    """Return JavaScript lines with the prompts and a function that puts one before a text; empty without prompts."""
    p = file.processing
    if not file.takes_prompts:
        return ""
    default = '""' if p.default_prompt is None else f"prompts[{json.dumps(p.default_prompt)}]"
    return f"const prompts = {json.dumps(p.prompts)};\nconst behind = (text, prompt = {default}) => prompt + text;\n"


def _with_prompt(file: SnippetFile, text: str) -> str:
    """Return the JavaScript expression of a text with the default prompt in front, if the model has prompts."""
    return f"behind({text})" if file.takes_prompts else text


def _cut_note(file: SnippetFile) -> str:
    """Return a note on long texts for models that keep the end of a text, since transformers.js cuts the end off.

    The note is empty if the model keeps the beginning.
    """
    if not file.keeps_end:
        return ""
    most = file.processing.max_length
    return f"; it cuts off the end of a text of more than {most} tokens, where this folder keeps the end: shorten such a text at its beginning"


def _first_lines(file: SnippetFile) -> str:
    """Return the JavaScript lines after the imports: where the folder lies, and the setting that avoids saturation."""
    return f"{_SET_FOLDER}\n{_AVOID_SATURATION}" if file.avoids_saturation else _SET_FOLDER


def _file_options(file: SnippetFile) -> str:
    """Return the JavaScript options that choose an ONNX file: its `dtype` if transformers.js has it, else its name."""
    session = ", session_options: precise" if file.avoids_saturation else ""
    if file.record.scheme in _DTYPES:
        return f'{{ dtype: "{_DTYPES[file.record.scheme]}"{session} }}'
    stem = file.record.path.rsplit("/", 1)[-1].removesuffix(".onnx")
    return f'{{ dtype: "fp32", model_file_name: "{stem}"{session} }}'


def _block(lead: str, code: str) -> str:
    """Return a sentence, a colon and JavaScript code as a Markdown code block."""
    return f"{lead}:\n\n```js\n{code}\n```"
