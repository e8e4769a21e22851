"""Runs inside an old TFLite's environment: `python old_runtime_client.py question.json answer.json`."""

import json
import sys
from pathlib import Path

import numpy as np


def interpreter_class():
    """The engine's own interpreter, without anything of ours around it."""
    try:
        from tflite_runtime.interpreter import Interpreter
    except ImportError:
        from tensorflow.lite.python.interpreter import Interpreter
    return Interpreter


def raw(question):
    """Per file, the logits of every row; an error of the engine is an answer too."""
    interpreter, out = interpreter_class(), {}
    rows = [{n: np.array([v], np.int32) for n, v in row.items()} for row in question["rows"]]
    for file in question["files"]:
        try:
            opened = interpreter(model_path=file, num_threads=1)
            run = opened.get_signature_runner(question["signature"])
            names = list(run.get_input_details())
            out[file] = [run(**{n: row[n] for n in names})["logits"][0].tolist() for row in rows]
        except (ValueError, RuntimeError) as error:
            out[file] = f"{type(error).__name__}: {error}"
    return out


def toolkit(question):
    """Per file, the scores that the toolkit answers, or its error; and what ran it."""
    sys.path.insert(0, question["site"])
    import pocketbert
    from pocketbert.core.errors import PocketBertError

    out = {}
    for file in question["files"]:
        try:
            model = pocketbert.load(question["folder"], file=file)
            out[file] = [list(p.scores.values()) for p in model.predict(question["texts"])]
            out["engine"] = [model.predictor.engine, model.predictor.engine_version]
        except PocketBertError as error:
            out[file] = [type(error).__name__, str(error), int(error.exit_code)]
    return {"numpy": np.__version__, "package": pocketbert.__file__, **out}


def main():
    """Answer one question."""
    question = json.loads(Path(sys.argv[1]).read_text())
    answer = {"raw": raw, "toolkit": toolkit}[question["verb"]](question)
    Path(sys.argv[2]).write_text(json.dumps(answer))


main()
