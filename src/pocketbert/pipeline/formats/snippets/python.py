"""Python code for the model card, which the tests take out of a card and run.

`pocketbert` uses this toolkit, `onnx` and `litert` only the runtime and tokenizers, `sentence_transformers` that
library.
"""

from __future__ import annotations

import json

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.predict.tokenization import MASK_TOKENS
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.pipeline.formats.snippets.parts import (
    TEMPERED,
    UNKNOWN,
    SnippetFile,
    quote_texts,
)

_VALUES = {"input_ids": "e.ids", "attention_mask": "e.attention_mask", "token_type_ids": "e.type_ids"}
_SHOWN = {
    TaskName.TEXT_CLASSIFICATION: "print(answer.label, answer.score)",
    TaskName.MULTI_LABEL: "print(answer.labels, answer.scores)",
    TaskName.REGRESSION: "print(answer.value)",
    TaskName.TOKEN_CLASSIFICATION: "for span in answer.spans:\n    print(span.label, span.start, span.end, span.text, span.score)",
    TaskName.QUESTION_ANSWERING: "print(answer.text, answer.start, answer.end, answer.score)",
    TaskName.MULTIPLE_CHOICE: "print(answer.index, answer.text, answer.score)",
    TaskName.FILL_MASK: "print([guess.text for guess in answer.places[0]])",
    TaskName.FEATURE_EXTRACTION: "print(answer.vector)",
    TaskName.SEVERAL: "for head, own in answer.answers.items():\n    print(head, own.fields())",
}
_NO_TELEMETRY = """import os
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")   # before the import: otherwise ONNX Runtime sends telemetry to its vendor
"""
_PAD_VECTORS = """def pad(values):
        values = np.array([values])
        wide = np.pad(values, [(0, 0), (0, length - len(e.ids)), (0, 0)][:values.ndim])
        return wide.astype(np.float32 if wide.ndim == 3 else np.int32)"""
_LABELS = 'labels = json.load(open("config.json", "rb"))["id2label"]'


def pocketbert(artefacts: Artefacts) -> str:
    """Return a sentence and the Python code that opens an artefact folder with PocketBERT and prints an answer."""
    file = SnippetFile(artefacts, artefacts.default_model())
    several = len({r.format for r in file.artefacts.models()}) > 1
    more = '; engine="fastest" measures once which file is fastest here, at each length' if several else ""
    texts = file.texts
    text = quote_texts(texts) if len(texts) == 1 else f"({quote_texts(texts)})"
    if file.artefacts.task is TaskName.FILL_MASK:
        text = 'f"your text with a {model.tokenizer.mask_token}"'
    if file.chooses:
        text = f"({quote_texts(texts[:1])}, [{quote_texts(file.choices)}])"
    if columns := file.example_columns:
        text = f"pocketbert.with_columns({text}, {columns})"
    return f"""Python, with PocketBERT (neither torch nor transformers needed{more}):

```python
import pocketbert
model = pocketbert.load("path/to/this/folder")
answer = model.predict([{text}])[0]{_prompt_comment(file, "prompt", "model.prompts")}
{_SHOWN[file.artefacts.task]}
```"""


_AVOID_SATURATION = """options = onnxruntime.SessionOptions()
if not (os.path.exists("/proc/cpuinfo") and "vnni" in open("/proc/cpuinfo").read()):   # int8 saturates on x86 without VNNI
    options.add_session_config_entry("session.x64quantprecision", "1")"""


def onnx(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return a sentence and the Python code that runs an ONNX file with ONNX Runtime and tokenizers only."""
    file = SnippetFile(artefacts, record)
    own = "".join(f', "{name}": {value}' for name, value in file.sample_values.items())
    floats = file.has_float_inputs
    note = file.comment_on_inputs("#")
    kind = 'np.float32 if "float" in i.type else np.int64' if floats else "np.int64"
    setting, options = "", ""
    if file.avoids_saturation:
        setting, options = f"{_AVOID_SATURATION}\n", ", options"
    return f"""Python, with only ONNX Runtime and tokenizers, from inside this folder:

```python
{_NO_TELEMETRY}import json, numpy as np, onnxruntime, tokenizers
tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({file.processing.max_length}{_truncation_argument(file)})
{setting}session = onnxruntime.InferenceSession("{file.record.path}"{options})

def run(e):   # int64 [1, tokens], no padding
    values = {{"input_ids": e.ids, "attention_mask": e.attention_mask, "token_type_ids": e.type_ids{own}}}{note}
    feed = {{i.name: np.array([values[i.name]], {kind}) for i in session.get_inputs()}}
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feed)))

{_answer_lines(file, file.processing.max_length)}
print(answer)
```"""


def litert(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return a sentence and the Python code that runs a TFLite file with LiteRT and tokenizers only."""
    file = SnippetFile(artefacts, record)
    values = _VALUES | file.sample_values
    feed = ", ".join(f'"{n}": {values[n]}' for n in file.inputs)
    floats = file.has_float_inputs
    note = file.comment_on_inputs("#")
    left = file.processing.padding_side == "left"
    padded = "[0] * (length - len(values)) + values" if left else "values + [0] * (length - len(values))"
    pad = _PAD_VECTORS if floats else f"pad = lambda values: np.array([{padded}], np.int32)"
    kept = "[:, -len(e.ids):]" if left else "[:, :len(e.ids)]"
    of_texts = " if value.ndim == 3 else value" if file.artefacts.heads else ""
    out = (
        f"{{name: value{kept}{of_texts} for name, value in out.items()}}   # without the padding"
        if file.has_token_outputs
        else "out"
    )
    longest = file.longest
    return f"""Python, with only LiteRT and tokenizers, from inside this folder (one signature per length):

```python
import json, numpy as np, tokenizers
from ai_edge_litert.interpreter import Interpreter
tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({longest}{_truncation_argument(file)})
model = Interpreter("{file.record.path}")

def run(e):   # int32 [1, length], padded with mask 0
    length = next(n for n in {file.lengths} if n >= len(e.ids))
    {pad}{note}
    out = model.get_signature_runner(f"seq_{{length}}")(**{{k: pad(v) for k, v in {{{feed}}}.items()}})
    return {out}

{_answer_lines(file, longest)}
print(answer)
```"""


def sentence_transformers(artefacts: Artefacts, record: ModelRecord) -> str:
    """Return a sentence and the Python code that runs an ONNX file with sentence-transformers."""
    file = SnippetFile(artefacts, record)
    setting, options = "", ""
    if file.avoids_saturation:
        setting, options = f"import onnxruntime\n{_AVOID_SATURATION}\n", ', "session_options": options'
    return f"""Python, with sentence-transformers 5.7 (`sentence-transformers[onnx]`, transformers below 4.58; newer ones have no ONNX back end):

```python
{_NO_TELEMETRY}from sentence_transformers import SentenceTransformer
{setting}model = SentenceTransformer("path/to/this/folder", backend="onnx", model_kwargs={{"file_name": "{file.record.path}"{options}}})
answer = model.encode(["your text"])[0]{_prompt_comment(file, "prompt_name", "model.prompts")}
print(answer)
```"""


def _answer_lines(file: SnippetFile, longest: int) -> str:
    """Return the Python lines that compute ``answer`` from an example text.

    They call a function ``run`` on the tokenized text. `longest` is the longest input in tokens.
    """
    encode, call = f"e = tokenizer.encode({quote_texts(file.texts)})", "tokenizer.encode"
    if LabelKind.SPANS in (file.task.labels, *(head.task.labels for head in file.task.heads)):
        encode = f"text = {quote_texts(file.texts)}\ne = tokenizer.encode(text)"
    if file.takes_prompts:
        encode, call = f"{_encode_function(file)}\ne = encode({quote_texts(file.texts)})", "encode"
    if file.asks_questions:
        return _span_lines(file, longest)
    if file.artefacts.task is TaskName.FILL_MASK:
        masks = ", ".join(f'"{m}"' for m in MASK_TOKENS)
        lead = f"{_encode_function(file)}\n" if file.takes_prompts else ""
        return f"""{lead}mask = next(t for t in ({masks}) if tokenizer.token_to_id(t) is not None)
e = {call}(f"your text with a {{mask}}")
logits = run(e)["logits"][0, e.tokens.index(mask)]
answer = [tokenizer.decode([i]) for i in np.argsort(-logits)[:5].tolist()]"""
    if file.chooses:
        return _choice_lines(file, call)
    if file.artefacts.heads:
        return "\n".join([encode, *_head_lines(file)])
    kind = file.task.labels
    if kind is LabelKind.NAME:
        divided = f" / {file.record.temperature:g}   # {TEMPERED}" if file.is_tempered else ""
        least = file.unknown_threshold
        believed, note = (f" if scores.max() >= {least} else None", f"   # None {UNKNOWN}") if least else ("", "")
        lines = [
            f'logits = run(e)["logits"][0]{divided}',
            "scores = np.exp(logits - logits.max())",
            "scores /= scores.sum()",
            _LABELS,
            f"answer = labels[str(scores.argmax())]{believed}, float(scores.max()){note}",
        ]
    elif kind is LabelKind.NAMES:
        lines = [
            'scores = 1 / (1 + np.exp(-run(e)["logits"][0]))',
            _LABELS,
            'thresholds = json.load(open("artifacts.json", "rb"))["processing"]["thresholds"]',
            "answer = [labels[str(i)] for i in np.argsort(-scores) if scores[i] >= thresholds[i]]",
        ]
    elif kind is LabelKind.SPANS:
        lines = [
            'best = run(e)["logits"][0].argmax(-1)',
            _LABELS,
            *_word_lines(file, "best", "labels[str(i)]"),
            "answer = words   # first character, the one behind the last (code points), tag",
        ]
    elif kind is LabelKind.SCORE:
        answer = 'answer = float(run(e)["logits"][0, 0])'
        if file.applies_sigmoid:
            answer = 'answer = float(1 / (1 + np.exp(-run(e)["logits"][0, 0])))   # the sigmoid of the logit'
        lines = [answer]
    else:
        lines = ['answer = run(e)["sentence_embedding"][0]']
    return "\n".join([encode, *lines])


def _head_lines(file: SnippetFile) -> list[str]:
    """Return the Python lines that compute the answers of several heads from one run of the file."""
    lines = [
        "out, answer = run(e), {}",
        'names = json.load(open("config.json", "rb"))["id2label"].values()   # of all heads, with the head\'s name in front',
        'labels = lambda head: [n.removeprefix(f"{head}: ") for n in names if n.startswith(f"{head}: ")]',
    ]
    for head in file.task.heads:
        values = f'out["{head.output}"][0]'
        match head.task.labels:
            case LabelKind.NAME:
                lines += [
                    f"scores = np.exp({values} - {values}.max())",
                    f'answer["{head.name}"] = labels("{head.name}")[scores.argmax()], float(scores.max() / scores.sum())',
                ]
            case LabelKind.NAMES:
                lines.append(
                    f'answer["{head.name}"] = [n for n, x in zip(labels("{head.name}"), {values}) if x >= 0]   # probability 0.5'
                )
            case LabelKind.SPANS:
                lines += [
                    *_word_lines(file, f"{values}.argmax(-1)", f'labels("{head.name}")[i]'),
                    f'answer["{head.name}"] = words   # first character, the one behind the last, tag',
                ]
            case _:
                lines.append(f'answer["{head.name}"] = float({values}[0])')
    return lines


def _word_lines(file: SnippetFile, chosen: str, tag: str) -> list[str]:
    """Return the Python lines that compute ``words`` of ``text``: the first character, the one behind the last, and the tag of each.

    Args:
        file: The file that the code is for.
        chosen: Python expression for the most likely tag's number of each token.
        tag: Python expression for the name of tag ``i``.
    """
    apart = file.processing.splits_punctuation
    lines = [
        *(["import string, unicodedata"] if apart else []),
        *(['mark = lambda c: c in string.punctuation or unicodedata.category(c)[0] == "P"'] if apart else []),
        "words, last = [], None   # the first token of a word decides its tag",
        f"for (start, end), word, i in zip(e.offsets, e.word_ids, {chosen}):",
        "    start += len(text[start:end]) - len(text[start:end].lstrip())",
        "    if word is not None:",
    ]
    marked = "(words[-1][1] <= start < end and any(map(mark, text[max(start - 1, 0):start + 1])))"
    return [
        *lines,
        f"        if word != last{f' or {marked}' if apart else ''}:",
        f"            words.append((start, end, {tag}))",
        "        words[-1] = (words[-1][0], end, words[-1][2])",
        "        last = word",
        "words = [word for word in words if word[0] < word[1]]   # what is split off of several blanks is none",
    ]


def _choice_lines(file: SnippetFile, call: str) -> str:
    """Return the Python lines that choose one of the answers to a question.

    `call` is the name of the Python function that tokenizes.
    """
    lead = f"{_encode_function(file)}\n" if file.takes_prompts else ""
    return f"""{lead}question, choices = {quote_texts(file.texts[:1])}, [{quote_texts(file.choices)}]
logits = []
for choice in choices:   # a row for each
    e = {call}(question, choice)
    logits.append(run(e)["logits"][0, 0])
scores = np.exp(np.array(logits) - max(logits))
scores /= scores.sum()   # softmax over the choices
answer = choices[scores.argmax()], float(scores.max())"""


def _encode_function(file: SnippetFile) -> str:
    """Return Python code: a dictionary of prompts, and a function that tokenizes texts with a prompt in front."""
    p = file.processing
    named = ", ".join(f"{_literal(name)}: {_literal(text)}" for name, text in p.prompts.items())
    default = '""' if p.default_prompt is None else f"prompts[{_literal(p.default_prompt)}]"
    pair = ", text_pair" if file.artefacts.pair else ""
    return f"""prompts = {{{named}}}   # put in front of a text
def encode(text{pair}, prompt={default}):
    return tokenizer.encode(prompt + text{pair})"""


def _prompt_comment(file: SnippetFile, argument: str, known: str) -> str:
    """Return a Python comment on the default prompt and on how to name another one; empty without prompts.

    Args:
        file: The file that the code is for.
        argument: Argument of the call in the code that takes a prompt's name.
        known: Python expression for the names of all prompts.
    """
    p = file.processing
    if not file.takes_prompts:
        return ""
    default = "no prompt" if p.default_prompt is None else f"the prompt {_literal(p.default_prompt)}"
    return f"   # with {default} in front; {argument}=NAME takes another one of {known}"


def _literal(text: str) -> str:
    """Return a text as a Python string literal."""
    return json.dumps(text) if text.isascii() else repr(text)


def _truncation_argument(file: SnippetFile) -> str:
    """Return the Python argument that makes the tokenizer cut texts at their beginning; empty if it cuts their end."""
    return ', direction="left"' if file.keeps_end else ""


def _span_lines(file: SnippetFile, longest: int) -> str:
    """Return the Python lines that find the answer to a question: the best span of text in all windows of a context."""
    p = file.processing
    question, context = file.texts
    blank = "\n    nulls.append(start[0] + end[0])" if p.null_answers else ""
    answer = (
        'context[best[1]:best[2]] if best[0] >= min(nulls) else ""' if p.null_answers else "context[best[1]:best[2]]"
    )
    nulls = ", nulls" if p.null_answers else ""
    return f"""question, context = "{question}", "{context}"
taken = tokenizer.num_special_tokens_to_add(True) + len(tokenizer.encode(question, add_special_tokens=False).ids)
tokenizer.enable_truncation({longest}, stride=min({p.stride}, {longest} - taken - 1), strategy="only_second")
first = tokenizer.encode(question, context)
best{nulls} = (-np.inf, 0, 0){", []" if p.null_answers else ""}
for e in (first, *first.overflowing):   # a long context is read in windows
    out = run(e)
    start, end = out["start_logits"][0], out["end_logits"][0]
    inside = [i for i, part in enumerate(e.sequence_ids) if part == 1]
    for k, i in enumerate(inside):
        for j in inside[k:k + {p.answer_length}]:
            best = max(best, (start[i] + end[j], e.offsets[i][0], e.offsets[j][1])){blank}
answer = {answer}"""
