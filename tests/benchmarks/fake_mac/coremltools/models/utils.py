import json
from pathlib import Path
from types import SimpleNamespace as Some

INSIDE = "Data/com.apple.CoreML/model.mlmodel"


def load_spec(model_path):
    wish = json.loads((Path(model_path) / INSIDE).read_text())
    kind, lengths = wish["kind"], wish["lengths"]
    enumerated = [Some(shape=[1, x]) for x in lengths] if kind == "enumerated" else []
    ranges = [Some(lowerBound=1, upperBound=1), Some(lowerBound=lengths[0], upperBound=lengths[-1])]
    array = Some(
        dataType={"int32": 131104, "float32": 65568}[wish.get("dtype", "int32")],
        shape=[1, wish.get("default", lengths[-1])],
        enumeratedShapes=Some(shapes=enumerated),
        shapeRange=Some(sizeRanges=ranges if kind == "ranged" else []),
    )
    inputs = [
        Some(name=n, type=Some(multiArrayType=array)) for n in wish.get("inputs", ["input_ids", "attention_mask"])
    ]
    names = ["start_logits", "end_logits"] if wish.get("spans") else ["logits"]
    return Some(description=Some(input=inputs, output=[Some(name=n) for n in names]))


def compile_model(model, destination_path=None):
    text = (Path(model) / INSIDE).read_text()
    if "uncompilable" in json.loads(text):
        raise Exception(json.loads(text)["uncompilable"])
    Path(destination_path).mkdir()
    (Path(destination_path) / "model.json").write_text(text)
    return destination_path
