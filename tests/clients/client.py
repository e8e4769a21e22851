"""Runs inside a client's environment: `python client.py VERB question.json answer.json`. A verb is a function below."""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime reports to its vendor otherwise


def run_snippets(folder, codes):
    """Per code of a model card its `answer`, and the outputs of its last run where it has one."""
    os.chdir(folder)
    rows = []
    for code in codes:
        names = {}
        exec(code, names)
        outputs = names["run"](names["e"]) if "run" in names else {}
        rows.append({"answer": names["answer"], "outputs": outputs})
    return rows


# MediaPipe


def classify(model, texts):
    """Per text, the scores by category index and the names of the categories."""
    from mediapipe.tasks.python import BaseOptions, text

    options = text.TextClassifierOptions(base_options=BaseOptions(model_asset_path=model))
    with text.TextClassifier.create_from_options(options) as client:
        found = [client.classify(entry).classifications[0].categories for entry in texts]
    found = [sorted(categories, key=lambda c: c.index) for categories in found]
    return [{"scores": [c.score for c in row], "names": [c.category_name for c in row]} for row in found]


def embed(model, texts):
    """Per text, the embedding."""
    from mediapipe.tasks.python import BaseOptions, text

    options = text.TextEmbedderOptions(base_options=BaseOptions(model_asset_path=model))
    with text.TextEmbedder.create_from_options(options) as client:
        return [[float(v) for v in client.embed(entry).embeddings[0].embedding] for entry in texts]


def read_ids(model, texts):
    """Per text, the ids of a model that gives its ids back, padding left out."""
    return [[int(v) for v in row[: max(i for i, v in enumerate(row) if v) + 1]] for row in embed(model, texts)]


# transformers, with torch or by optimum, and sentence-transformers

CLASSES = {
    "text-classification": "SequenceClassification",
    "multi-label": "SequenceClassification",
    "regression": "SequenceClassification",
    "token-classification": "TokenClassification",
    "question-answering": "QuestionAnswering",
    "fill-mask": "MaskedLM",
    "multiple-choice": "MultipleChoice",
    "feature-extraction": "FeatureExtraction",
}


def precise_sessions():
    """Session options of ONNX Runtime as the model card's code sets them: int8 products saturate on x86 without VNNI."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not (Path("/proc/cpuinfo").exists() and "vnni" in Path("/proc/cpuinfo").read_text()):
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def open_model(folder, task, file):
    """The model by torch, or by optimum where a file is named."""
    import transformers

    kind = CLASSES[task]
    if file:
        import optimum.onnxruntime

        subfolder, _, name = file.rpartition("/")
        kind = "SequenceClassification" if kind == "MultipleChoice" else kind  # a choice is a row, as the card says
        opener = getattr(optimum.onnxruntime, f"ORTModelFor{kind}")
        return opener.from_pretrained(folder, file_name=name, subfolder=subfolder, session_options=precise_sessions())
    name = "AutoModel" if kind == "FeatureExtraction" else f"AutoModelFor{kind}"
    return getattr(transformers, name).from_pretrained(folder).eval()


def ask_transformers(folder, task, texts, file=""):
    """Per text, what the library's own pipeline says, or the model where there is none."""
    import torch
    import transformers

    torch.set_num_threads(1)
    model, tokenizer = open_model(folder, task, file), transformers.AutoTokenizer.from_pretrained(folder)
    if task in ("text-classification", "multi-label", "regression"):
        run = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
        # `top_k` in the call: given to the pipeline, one text's answer lies in a list of its own
        rows = [{a["label"]: a["score"] for a in run(text, top_k=None, truncation=True)} for text in texts]
    elif task == "token-classification":
        run = transformers.pipeline(task, model=model, tokenizer=tokenizer, ignore_labels=[])
        rows = [[(a["entity"], float(a["score"]), a["start"], a["end"]) for a in run(text)] for text in texts]
    elif task == "fill-mask":
        run = transformers.pipeline(task, model=model, tokenizer=tokenizer, top_k=10)
        rows = [[(a["token_str"], a["score"]) for a in run(text)] for text in texts]
    elif task == "multiple-choice":
        rows = [choose(model, tokenizer, question, choices, by_rows=bool(file)) for question, choices in texts]
    else:
        rows = [run_transformers(model, tokenizer, task, text) for text in texts]
    return {"rows": rows, "version": transformers.__version__}


def choose(model, tokenizer, question, choices, by_rows):
    """The probability of each choice of a question; `by_rows` asks the model about one choice at a time."""
    import torch

    if by_rows:  # without padding, which int8 files round with
        rows = [tokenizer(question, choice, return_tensors="pt", truncation=True) for choice in choices]
        logits = torch.cat([model(**row).logits.reshape(-1) for row in rows])
    else:
        fed = tokenizer([question] * len(choices), choices, return_tensors="pt", truncation=True, padding=True)
        logits = model(**{name: value[None] for name, value in fed.items()}).logits.reshape(-1)
    return logits.softmax(-1).tolist()


def run_transformers(model, tokenizer, task, text):
    """The logits of start and end, or the mean of the token states, of length 1."""
    import torch

    fed = tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt", truncation=True)
    with torch.no_grad():
        given = model(**fed)
    if task == "question-answering":
        return [given.start_logits[0].tolist(), given.end_logits[0].tolist()]
    vector = given.last_hidden_state[0].mean(0)  # one text has no padding
    return (vector / vector.norm()).tolist()


def ask_sentence_transformers(folder, texts, file=""):
    """Vectors of texts, each text alone and all at once, and what the model says of itself."""
    import sentence_transformers
    import torch

    torch.set_num_threads(1)
    how = {}
    if file:
        how = {"backend": "onnx", "model_kwargs": {"file_name": file, "session_options": precise_sessions()}}
    model = sentence_transformers.SentenceTransformer(folder, device="cpu", **how)
    return {
        "version": sentence_transformers.__version__,
        "longest": model.max_seq_length,
        "alone": [model.encode([text], show_progress_bar=False)[0].tolist() for text in texts],
        "together": model.encode(texts, show_progress_bar=False).tolist(),
    }


# old TFLite runtimes


def run_tflite(files, rows, signature):
    """Per file, the logits of every row by the engine's own interpreter; an error of the engine is an answer too."""
    import numpy as np

    try:
        from tflite_runtime.interpreter import Interpreter
    except ImportError:
        from tensorflow.lite.python.interpreter import Interpreter
    out = {}
    rows = [{n: np.array([v], np.int32) for n, v in row.items()} for row in rows]
    for file in files:
        try:
            run = Interpreter(model_path=file, num_threads=1).get_signature_runner(signature)
            names = list(run.get_input_details())
            out[file] = [run(**{n: row[n] for n in names})["logits"][0].tolist() for row in rows]
        except (ValueError, RuntimeError) as error:
            out[file] = f"{type(error).__name__}: {error}"
    return out


def ask_toolkit(site, folder, files, texts):
    """Per file, the scores that this toolkit answers, or its error; and what it ran with."""
    sys.path.insert(0, site)
    import numpy as np

    import pocketbert
    from pocketbert.core.errors import PocketBertError

    out = {"numpy": np.__version__, "package": pocketbert.__file__}
    for file in files:
        try:
            predictions = pocketbert.load(folder, file=file).predict(texts)
            out[file] = [list(p.scores.values()) for p in predictions]
        except PocketBertError as error:
            out[file] = [type(error).__name__, str(error), int(error.exit_code)]
    return out


def main():
    """Answer one question; an error of MediaPipe is an answer too."""
    verb, question, answer = sys.argv[1:]
    try:
        told = globals()[verb](**json.loads(Path(question).read_text()))
    except (ValueError, RuntimeError, OSError) as error:
        if verb not in ("classify", "embed"):
            raise
        told = f"{type(error).__name__}: {error}"
    Path(answer).write_text(json.dumps(told, default=lambda value: value.tolist()))


main()
