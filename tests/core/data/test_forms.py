"""Data files as people have them: each form is found by its content, and read as its author meant it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import runpy
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.columns import Columns, guess_columns
from pocketbert.core.data.files import read_rows
from pocketbert.core.data.forms import FILE_FORMS, FileForm, find_form
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.records import RECORD_SHAPES, RecordShape, find_record_shape
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.predict.examples import GoldAnswer
from pocketbert.core.tasks import LabelKind

ROOT = Path(__file__).resolve().parents[3]
TEXTS = [f"the {a} film number {i} was {a}, we think" for i in range(12) for a in ("good", "bad")]
LABELS = ["good", "bad"] * 12
PAIRS = list(zip(TEXTS, LABELS, strict=True))
ANN, PER, LOC = "Ann lives in New York", [0, 3, "PER"], [13, 21, "LOC"]
IOB = ["B-PER", "O", "O", "B-LOC", "I-LOC"]
SPANS = "Ann PER, New York LOC"
QA = {"id": "1", "question": "who lives there?", "answers": [{"text": "Ann", "answer_start": 0}]}
IMPOSSIBLE = {"id": "2", "question": "who works?", "answers": [], "is_impossible": True}


def write(
    path: Path, content: str | bytes | dict[str, str | bytes] | list[dict[str, Any]], encoding: str = "utf-8"
) -> Path:
    """Write a file, packed if its name says so, a Parquet file of rows, or a folder of files."""
    if isinstance(content, list):
        pq.write_table(pa.Table.from_pylist(content), path)
        return path
    if isinstance(content, dict) and path.name in content:  # a file with others beside it
        write(path.parent, content)
        return path
    if isinstance(content, dict):
        for name, text in content.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return path
    raw = content.encode(encoding) if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def lines(values: Iterable[object]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def table(header: Sequence[str], *columns: Sequence[object], separator: str = ",") -> str:
    """A table with a header, if one is given, of columns of equal length."""
    stream = io.StringIO()
    csv.writer(stream, delimiter=separator).writerows([*([header] if header else []), *zip(*columns, strict=True)])
    return stream.getvalue()


def words(*columns: Sequence[str], separator: str = " ", before: str = "", count: int = 8) -> str:
    """Sentences of one word in each line, with the columns beside it."""
    sentence = "".join(separator.join(cells) + "\n" for cells in zip(*columns, strict=True))
    return "\n".join(f"{before}{sentence}" for _ in range(count))


def each(*values: Any) -> list[Any]:
    """Values that come back for all texts."""
    return [values[i % len(values)] for i in range(len(TEXTS))]


def study(label: object, kind: str) -> dict[str, object]:
    """A task of Label Studio with one result."""
    return {"data": {"text": ANN}, "annotations": [{"result": [{"type": kind, "value": label}]}]}


def shown(example: Any) -> str:
    """The label of an example: names, spans with their words, or answers."""
    label = example.label
    if not isinstance(label, tuple):
        return str(label)
    parts = (v.text if isinstance(v, GoldAnswer) else v for v in label)
    return ", ".join(f"{example.text[v.start : v.end]} {v.label}" if hasattr(v, "end") else str(v) for v in parts)


# file, content, kind of label, columns of text, second text and label, the first label as it is read
CASES: list[tuple[str, Any, str, str, str]] = [
    ("stars.csv", table(["Review", "Rating"], TEXTS, each(1, 3, 5, 2, 4)), "name", "Review - Rating", "1"),
    ("spans.jsonl", lines({"id": i, "text": ANN, "label": [PER, LOC]} for i in range(9)), "spans", "text - label", SPANS),
    (
        "doccano.jsonl",
        lines({"text": ANN, "entities": [{"label": "PER", "start_offset": 0, "end_offset": 3}]} for _ in range(9)),
        "spans",
        "text - entities",
        "Ann PER",
    ),
    (
        "conll2003.txt",
        "-DOCSTART- -X- O O\n\n" + words(ANN.split(), ["NN"] * 5, ["B-NP"] * 5, IOB),
        "spans",
        "column 1 - column 4",
        SPANS,
    ),
    ("eng.train", words(ANN.split(), ["NN"] * 5, ["I-NP"] * 5, [t.replace("B-", "I-") for t in IOB]), "spans", "column 1 - column 4", SPANS),
    ("wnut.conll", words(ANN.split(), IOB, separator="\t"), "spans", "column 1 - column 2", SPANS),
    ("wnut.conll.gz", words(ANN.split(), IOB, separator="\t"), "spans", "column 1 - column 2", SPANS),
    ("bilou.txt", words(ANN.split(), ["U-PER", "O", "O", "B-LOC", "L-LOC"]), "spans", "column 1 - column 2", SPANS),
    ("iobes.txt", words(ANN.split(), ["S-PER", "O", "O", "B-LOC", "E-LOC"]), "spans", "column 1 - column 2", SPANS),
    ("movies.bio", words(IOB, ANN.split(), separator="\t"), "spans", "column 2 - column 1", SPANS),
    (
        "germeval.tsv",
        words([*"12345"], ANN.split(), IOB, ["O"] * 5, separator="\t", before="#\thttp://a.example\t2011\n"),
        "spans",
        "column 2 - column 3",
        SPANS,
    ),
    ("multiconer.txt", words(ANN.split(), [*"_____"], IOB, before="# id 7\tdomain=en\n"), "spans", "column 1 - column 3", SPANS),
    (
        "ud.conllu",
        words(
            [*"12345"], ANN.split(), ANN.split(), "NOUN VERB ADP NOUN NOUN".split(), *[[*"_____"]] * 6,
            separator="\t", before="# text = x\n1-2\tx\t" + "\t".join("_" * 8) + "\n",
        ),
        "spans",
        "form - upos",
        "Ann NOUN, lives VERB, in ADP, New NOUN, York NOUN",
    ),
    ("pos.tsv", words(ANN.split(), "NOUN VERB ADP NOUN NOUN".split(), separator="\t"), "spans", "column 1 - column 2", "Ann NOUN, lives VERB, in ADP, New NOUN, York NOUN"),
    (
        "kaggle.csv",
        table(["Sentence #", "Word", "POS", "Tag"], ["Sentence: 1", "", "", "", "", "Sentence: 2"], [*ANN.split(), "Oslo"], ["NN"] * 6, [*IOB, "B-LOC"]),
        "spans",
        "Word - Tag",
        SPANS,
    ),
    ("lists.csv", table(["tokens", "ner_tags"], *([repr(v)] * 9 for v in (ANN.split(), IOB))), "spans", "tokens - ner_tags", SPANS),
    ("squad.json", json.dumps({"version": "1.1", "data": [{"paragraphs": [{"context": ANN, "qas": [QA]}]}]}), "answers", "question context answers", "Ann"),
    ("squad2.json", json.dumps({"data": [{"paragraphs": [{"context": ANN, "qas": [IMPOSSIBLE, QA]}]}]}, indent=1), "answers", "question context answers", ""),
    ("mrqa.jsonl.gz", lines({"context": ANN, "qas": [{"question": f"who {i}?", "answers": ["Ann"]}]} for i in range(9)), "answers", "question context answers", "Ann"),
    ("array.json", json.dumps([{"text": t, "label": n} for t, n in PAIRS]), "name", "text - label", "good"),
    ("indented.json", json.dumps({"meta": {"a": 1}, "examples": [{"text": t, "label": n} for t, n in PAIRS]}, indent=2), "name", "text - label", "good"),
    ("splits.json", json.dumps({"test": [["x", "oos"]], "train": PAIRS}), "name", "column 1 - column 2", "good"),
    ("index.json", json.dumps({f"r{i}": {"text": t, "label": n} for i, (t, n) in enumerate(PAIRS)}), "name", "text - label", "good"),
    ("lines.json", lines({"text": t, "label": n} for t, n in PAIRS), "name", "text - label", "good"),
    ("arrays.jsonl", lines(PAIRS), "name", "column 1 - column 2", "good"),
    ("fasttext.txt", "".join(f"__label__{n} {t}\n" for t, n in PAIRS), "name", "text - label", "good"),
    ("tagged.ft", "".join(f"__label__a __label__{n} {t}\n" for t, n in PAIRS), "names", "text - label", "a, good"),
    ("classes", {f"{n}/{i}.txt": t for i, (t, n) in enumerate(PAIRS)}, "name", "text - label", "bad"),
    ("studio.json", json.dumps([study({"start": 0, "end": 3, "labels": ["PER"]}, "labels")] * 9), "spans", "text - spans", "Ann PER"),
    ("choices.json", json.dumps([study({"choices": [n]}, "choices") for n in LABELS]), "name", "text - label", "good"),
    ("studio-min.json", json.dumps([{"text": ANN, "label": [{"start": 0, "end": 3, "labels": ["PER"]}], "lead_time": 1.5}] * 9), "spans", "text - label", "Ann PER"),
    ("nlu.yml", 'version: "3.1"\nnlu:\n' + "".join(f"- intent: {n}\n  examples: |\n    - ask [Ann](PER)\n    - so\n" for n in LABELS), "name", "text - intent", "good"),
    ("nlu.md", "".join(f"## intent:{n}\n- ask [Ann](PER)\n\n## synonym:x\n- y\n" for n in LABELS), "name", "text - intent", "good"),
    (
        "rasa.json",
        json.dumps({"rasa_nlu_data": {"common_examples": [{"text": t, "intent": n, "entities": []} for t, n in PAIRS], "lookup_tables": [{"a": 1}]}}),
        "name",
        "text - intent",
        "good",
    ),
    ("chat.jsonl", lines({"messages": [{"role": "system", "content": "classify"}, {"role": "user", "content": t}, {"role": "assistant", "content": n}]} for t, n in PAIRS), "name", "text - label", "good"),
    ("sharegpt.json", json.dumps([{"conversations": [{"from": "human", "value": t}, {"from": "gpt", "value": n}]} for t, n in PAIRS]), "name", "text - label", "good"),
    ("spacy.json", json.dumps([[ANN, {"entities": [PER, LOC]}]] * 9), "spans", "text - spans", SPANS),
    ("ner-annotator.json", json.dumps({"classes": ["PER"], "annotations": [[ANN, {"entities": [PER, LOC]}]] * 9}), "spans", "text - spans", SPANS),
    ("prodigy.jsonl", lines({"text": t, "accept": [n], "options": [], "answer": a} for a in ("reject", "accept") for t, n in PAIRS), "name", "text - label", "good"),
    ("onehot.csv", table(["comment_text", "toxic", "insult"], TEXTS, each(1, 0), each(1, 0, 1)), "names", "comment_text - toxic,insult", "toxic, insult"),
    ("truth.csv", table(["id", "tweet", "joy", "fear", "rage"], range(24), TEXTS, *[each("True", "False")] * 3), "names", "tweet - joy,fear,rage", "joy, fear, rage"),
    ("commas.csv", table(["text", "tags"], TEXTS, each("a,b", "b")), "names", "text - tags", "a, b"),
    ("bars.csv", table(["title", "genres"], TEXTS, each("Drama|Comedy", "Comedy|Action")), "names", "title - genres", "Drama, Comedy"),
    ("names.csv", table(["text", "topic"], TEXTS, each("Home, Garden", "Toys, Games")), "name", "text - topic", "Home, Garden"),
    ("taglist.csv", table(["text", "tags"], TEXTS, each("['a', 'b']", "['b']")), "names", "text - tags", "a, b"),
    ("mrpc.tsv", table(["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], each(1, 0), range(24), range(24), TEXTS, TEXTS, separator="\t"), "name", "#1 String #2 String Quality", "1"),
    ("sick.txt", table(["pair_ID", "sentence_A", "sentence_B", "entailment"], range(24), TEXTS, TEXTS, each("yes", "no"), separator="\t"), "name", "sentence_A sentence_B entailment", "yes"),
    ("sides.csv", table(["left_text", "right_text", "match"], TEXTS, TEXTS, each(1, 0)), "name", "left_text right_text match", "1"),
    ("triplets.jsonl", lines({"query": t, "pos": [t], "neg": ["no"]} for t in TEXTS), "score or none", "first second score", "1.0"),
    ("triplets.csv", table(["anchor", "positive", "negative"], TEXTS, TEXTS, TEXTS), "score or none", "first second score", "1.0"),
    ("margins.csv", table(["query", "positive", "negative", "margin"], TEXTS, TEXTS, TEXTS, each(3.25, -1)), "score or none", "first second score", "3.25"),
    ("margin-mse.jsonl", lines({"query": t, "positive": t, "negative": t, "label": 3.25} for t in TEXTS), "score or none", "first second score", "3.25"),
    ("reranked.csv", table(["query", "positive", "negative", "pos_score", "neg_score"], TEXTS, TEXTS, TEXTS, each(8.5, 7), each(-4, 2.5)), "score or none", "first second score", "8.5"),
    ("reranked.jsonl", lines({"query": t, "pos": [t], "neg": [t, "no"], "pos_scores": [8.5], "neg_scores": [-4, 1.0]} for t in TEXTS), "score or none", "first second score", "8.5"),
    ("kinds.jsonl", lines({"query": t, "positive": t, "negative": t, "label": n} for t, n in PAIRS), "name", "query positive label", "good"),
    ("rows.csv.gz", table(["text", "label"], TEXTS, LABELS), "name", "text - label", "good"),
    ("bars.txt", table(["text", "label"], TEXTS, LABELS, separator="|"), "name", "text - label", "good"),
    ("rare.csv", table([], ["play that song again, please", *TEXTS], ["music", *LABELS]), "name", "column 1 - column 2", "music"),
    ("some-empty.csv", table(["text", "label"], TEXTS, ["good", "", "bad", *LABELS[3:]]), "name", "text - label", "good"),
    ("spam.csv", table(["v1", "v2", "", "", ""], each("ham", "spam"), TEXTS, *[each("")] * 3), "name", "v2 - v1", "ham"),
    ("snli.jsonl", lines({"captionID": i // 3, "gold_label": g, "sentence1": t, "sentence2": t} for i, (t, g) in enumerate(zip(TEXTS, each("-", "yes", "no"), strict=True))), "name", "sentence1 sentence2 gold_label", "yes"),
    ("airline.csv", table(["id", "airline_sentiment", "airline", "text"], range(24), LABELS, each("A", "B", "C"), TEXTS), "name", "text - airline_sentiment", "good"),
    ("intents.jsonl", lines({"tokens": t.split(), "intent": n} for t, n in PAIRS), "name", "tokens - intent", "good"),
    ("squad.csv", table(["context", "question", "answer_text", "answer_start"], [ANN] * 24, TEXTS, ["Ann"] * 24, [0] * 24), "answers", "question context answer_text", "Ann"),
    ("empty-line.tsv", "text\tlabel\n" + "".join(f"{t}\t{n}\n" + "\n" * (i == 9) for i, (t, n) in enumerate(PAIRS)), "name", "text - label", "good"),
    ("chinese.tsv", "text\tlabel\n" + "".join(f"我觉得这部电影非常好看而且演员很棒{i}\t{n}\n" + "\n" * (i % 6 == 5) for i, n in enumerate(LABELS)), "name", "text - label", "good"),
    ("ids.csv", table(["text", "label", "id1", "id2"], TEXTS, LABELS, [f"a{i}" for i in range(24)], [f"b{i}" for i in range(24)]), "name", "text - label", "good"),
    ("notes.csv", table(["text", "label", "note_a", "note_b"], TEXTS, LABELS, TEXTS, TEXTS), "name", "text - label", "good"),
    ("vader.csv", table(["text", "neg", "neu", "pos", "label"], TEXTS, each(0.1), each(0.2), each(0.7), LABELS), "name", "text - label", "good"),
    ("phrases.csv", table(["sentence", "word", "label"], TEXTS, each("good", "bad"), LABELS), "name", "sentence - label", "good"),
    ("chat-label.jsonl", lines({"messages": [{"role": "user", "content": t}, {"role": "assistant", "content": "hi"}], "label": n} for t, n in PAIRS), "name", "text - label", "good"),
    ("paragraphs.jsonl", lines({"text": t, "label": n, "paragraphs": [t]} for t, n in PAIRS), "name", "text - label", "good"),
    ("info.json", json.dumps({"info": {"version": 1}, **{f"r{i}": {"text": t, "label": n, **({"id": 1} if i else {})} for i, (t, n) in enumerate(PAIRS)}}), "name", "text - label", "good"),
    ("notes.json", json.dumps({"a": {"b": 1}, "c": {"d": 1}, "e": {"f": 1}, "data": [{"text": t, "label": n} for t, n in PAIRS]}), "name", "text - label", "good"),
    ("eval.json", json.dumps({"Eval": [{"text": "x y z", "label": "oos"}], "train": [{"text": t, "label": n} for t, n in PAIRS]}), "name", "text - label", "good"),
    ("test.json", json.dumps({"test": [{"text": t, "label": n} for t, n in PAIRS], "labels": ["good", "bad"]}), "name", "text - label", "good"),
    (
        "stories.yml",
        "nlu:\n" + "".join(f"- intent: {n}\n  examples:\n  - text: |\n      ask [Ann](PER)\n    metadata:\n      tags:\n      - x\n  - text: so\n  - or so\n" for n in LABELS)
        + "stories:\n- story: a\n  steps:\n  - intent: greet\n  - action: utter_greet\n",
        "name",
        "text - intent",
        "good",
    ),
    ("comment.txt", "# " + "x" * 200_000 + "\n" + words(ANN.split(), IOB), "spans", "column 1 - column 2", SPANS),
    ("newlines.yml", "nlu:\n" + "\n" * 30_000 + "".join(f"- intent: {n}\n  examples: |\n    - so\n" for n in LABELS), "name", "text - intent", "good"),
    ("utf16", {f"{n}/{i}.txt": t.encode("utf-16") for i, (t, n) in enumerate(PAIRS)}, "name", "text - label", "bad"),
    ("cats.json", json.dumps([[t, {"cats": {"good": 0.9 if n == "good" else 0.1, "bad": 0.9 if n == "bad" else 0.1}}] for t, n in PAIRS]), "name", "text - label", "good"),
    ("cells.csv", table(["a", "text", "label", "b"], each('{"x": 1}'), TEXTS, LABELS, each('{"y": 2}')), "name", "text - label", "good"),
    ("short-triplets.csv", table(["anchor", "positive", "negative"], TEXTS, TEXTS, ["a coat", *["no"] * 23]), "score or none", "first second score", "1.0"),
    ("prodigy-patterns.jsonl", lines({"text": t, "label": n, "spans": [{"start": 0, "end": 3}], "answer": a, "_task_hash": 1} for a in ("reject", "accept") for t, n in PAIRS), "name", "text - label", "good"),
    ("words.parquet", [{"sentence_id": i, "word": word, "tag": tag} for i in range(8) for word, tag in zip(ANN.split(), IOB, strict=True)], "spans", "word - tag", SPANS),
    ("prodigy.parquet", [{"text": t, "label": n, "answer": a, "_task_hash": 1} for a, n in (("reject", "other"), *[("accept", n) for n in LABELS]) for t in TEXTS[:4]], "name", "text - label", "good"),
    ("emotions.tsv", table([], TEXTS, each("27", "2,10", "3", "2,3"), [f"id{i}" for i in range(24)], separator="\t"), "names", "column 1 - column 2", "27"),
    # how tables are quoted, and what stands before them
    ("sep.csv", "\ufeffsep=;\r\n" + table(["text", "label"], TEXTS, LABELS, separator=";"), "name", "text - label", "good"),
    ("comments.csv", "# of our team\n# 24 rows\n" + table(["text", "label"], TEXTS, LABELS), "name", "text - label", "good"),
    ("trailing.csv", "text,label\n" + "".join(f'"{t}",{n},\n' for t, n in PAIRS), "name", "text - label", "good"),
    ("single.csv", "'text','label'\n" + "".join(f"'{t}','{n}'\n" for t, n in PAIRS), "name", "text - label", "good"),
    ("single.txt", "text;label\n" + "".join(f"'{t};\nso';{n}\n" for t, n in PAIRS), "name", "text - label", "good"),
    ("escaped.csv", "text,label\n" + "".join(f'"he said \\"{t}\\", we heard",{n}\n' for t, n in PAIRS), "name", "text - label", "good"),
    ("quoted.tsv", '"text"\t"label"\n' + "".join(f'"{t}"\t"{n}"\n' for t, n in PAIRS), "name", "text - label", "good"),
    ("doubled.tsv", "text\tlabel\n" + "".join(f'"{t} ""so"""\t{n}\n' for t, n in PAIRS), "name", "text - label", "good"),
    ("newlines.tsv", "text\tlabel\n" + "".join(f'"{t}\nand more"\t{n}\n' for t, n in PAIRS), "name", "text - label", "good"),
    ("quotes.csv", "text\tlabel\n" + "".join(f'"{t}\t{n}\n' for t, n in PAIRS), "name", "text - label", "good"),
    ("hash.csv", '# id,text,label\n' + table([], range(24), TEXTS, LABELS), "name", "text - label", "good"),
    ("hashtag.csv", '#sad day,bad\n' + table([], TEXTS, LABELS), "name", "column 1 - column 2", "bad"),
    # how labels and scores are written
    ("hashtags.csv", table(["text", "tags"], TEXTS, each("#food #travel", "#food")), "names", "text - tags", "#food, #travel"),
    ("blanks.csv", table(["text", "label"], TEXTS, each(" good ", "bad", "good")), "name", "text - label", "good"),
    ("missing.csv", table(["text", "label"], TEXTS, each("#N/A", "good", "nan", "bad", "good")), "name", "text - label", "good"),
    ("null.csv", table(["text", "label"], TEXTS, each("n/a", "good", "null", "bad")), "name", "text - label", "n/a"),
    ("yes-no.csv", table(["text", "joy", "fear"], TEXTS, each("yes", "no"), each("no", "Y", "N")), "names", "text - joy,fear", "joy"),
    ("decimal-comma.csv", table(["text", "score"], TEXTS, [f"{i / 8:.3f}".replace(".", ",") for i in range(24)], separator=";"), "score", "text - score", "0.0"),
    ("percent.csv", table(["text", "score"], TEXTS, [f"{i + 7} %" for i in range(24)]), "score", "text - score", "0.07"),
    ("thousands.csv", table(["text", "price"], TEXTS, [f"{1200.5 + 37 * i:,.2f}" for i in range(24)]), "score", "text - price", "1200.5"),
    ("objects.jsonl", lines({"text": t, "label": {"id": 3, "name": n}} for t, n in PAIRS), "name", "text - label", "good"),
    ("vertex.jsonl", lines({"classificationAnnotation": {"displayName": n}, "textContent": t} for t, n in PAIRS), "name", "textContent - classificationAnnotation", "good"),
    ("studio-choices.json", json.dumps([{"text": t, "topics": {"choices": ["a", n]}, "lead_time": 1.5} for t, n in PAIRS]), "names", "text - topics", "a, good"),
    ("unnamed/a.csv", {"a.csv": table(["text", "label"], TEXTS, each(0, 1)), "dataset_infos.json": json.dumps({n: {"features": {"text": {}, "label": {"names": ["bad"], "_type": "ClassLabel"}}} for n in "ab"})}, "name", "text - label", "0"),
    ("word-lists.csv", table(["tokens", "label"], [str(t.split()) for t in TEXTS], LABELS), "name", "tokens - label", "good"),
    ("pairs-of-numbers.csv", table(["text", "label"], TEXTS, [f"{i % 7},{i % 5 + 20}" for i in range(24)]), "names", "text - label", "0, 20"),
    ("boolq.jsonl", lines({"question": t, "passage": f"{t}, we know now", "answer": n} for t, n in zip(TEXTS, each("no", "yes"), strict=True)), "name", "question passage answer", "no"),
    ("judged.jsonl", lines({"question": t, "passage": ANN, "answer": "Ann", "label": n} for t, n in PAIRS), "name", "question passage label", "good"),
    ("logs.csv", table(["log", "label"], [json.dumps({"name": f"a {i % 3}", "message": t}) for i, t in enumerate(TEXTS)], LABELS), "name", "log - label", "good"),
    ("missing-scores.csv", table(["text", "score"], TEXTS, ["#N/A", *[f"{i}%" for i in range(23)]]), "score", "text - score", "0.0"),
    # tags and spans
    ("tags.csv", table(["text", "labels"], [ANN] * 9, [" ".join(IOB)] * 9), "spans", "text - labels", SPANS),
    ("tags-commas.csv", table(["sentence", "word_labels"], [ANN] * 9, [", ".join(IOB)] * 9), "spans", "sentence - word_labels", SPANS),
    ("header.tsv", "word\ttag\n" + words(ANN.split(), IOB, separator="\t"), "spans", "column 1 - column 2", SPANS),
    ("words.jsonl", lines({"words": ANN.split(), "ner": IOB} for _ in range(40)), "spans", "words - ner", SPANS),
    ("tokens.jsonl", lines({"text": ANN, "tokens": ANN.split(), "ner_tags": IOB} for _ in range(9)), "spans", "tokens - ner_tags", SPANS),
    ("argilla.jsonl", lines({"text": ANN, "tokens": ANN.split(), "annotation": [{"label": "PER", "start": 0, "end": 3}]} for _ in range(9)), "spans", "text - annotation", "Ann PER"),
    ("vertex-spans.jsonl", lines({"textContent": ANN, "textSegmentAnnotations": [{"startOffset": 0, "endOffset": "3", "displayName": "PER"}]} for _ in range(9)), "spans", "textContent - textSegmentAnnotations", "Ann PER"),
    ("dataturks.jsonl", lines({"content": ANN, "annotation": [{"label": ["PER"], "points": [{"start": 0, "end": 2, "text": "Ann"}]}]} for _ in range(9)), "spans", "content - annotation", "Ann PER"),
    ("cluener.jsonl", lines({"text": ANN, "label": {"PER": {"Ann": [[0, 2]]}, "LOC": {"New York": [[13, 20]]}}} for _ in range(9)), "spans", "text - label", SPANS),
    ("by-text.jsonl", lines({"text": f"{ANN}, Ann", "entities": [{"text": "Ann", "type": "PER"}, {"text": "New York", "type": "LOC"}, {"text": "York", "type": "LOC"}]} for _ in range(9)), "spans", "text - entities", f"{SPANS}, Ann PER"),
    ("by-label.jsonl", lines({"text": ANN, "entities": {"PER": ["Ann"], "LOC": ["New York"]}} for _ in range(9)), "spans", "text - entities", SPANS),
    ("emoji.jsonl", lines({"text": "\U0001f600 Ann", "spans": [{"start": 3, "end": 6, "text": "Ann", "label": "PER"}]} for _ in range(9)), "spans", "text - spans", "Ann PER"),
    ("python-spans.csv", table(["text", "entities"], [ANN] * 9, [str([(0, 3, "PER")])] * 9), "spans", "text - entities", "Ann PER"),
    ("brat", {"1.txt": f"So:\r\n\r\n{ANN}\r\n", "1.ann": "T1\tPER 7 10\tAnn\nR1\tin Arg1:T1 Arg2:T2\nT2\tLOC 20 28\tNew York\n"}, "spans", "text - spans", ""),
    ("brat-lines", {"a.txt": "New\nYork!\nSo", "a.ann": "T1\tLOC 0 8\tNew York\n"}, "spans", "text - spans", "New\nYork LOC"),
    ("label-first.jsonl", lines({"text": ANN, "entities": [["PER", 0, 3], ["LOC", "13", "21"]]} for _ in range(9)), "spans", "text - entities", SPANS),
    ("with-text.jsonl", lines({"text": ANN, "entities": [[0, 2, "PER", "Ann"]]} for _ in range(9)), "spans", "text - entities", "Ann PER"),
    ("snips.json", json.dumps({"Play": [{"data": [{"text": "play "}, {"text": "Ann", "entity": "artist"}]}] * 9}), "spans", "text - spans", "Ann artist"),
    # columns, envelopes and other shapes of JSON
    ("by-columns.json", json.dumps({"text": dict(enumerate(TEXTS)), "label": dict(enumerate(LABELS))}), "name", "text - label", "good"),
    ("lists.json", json.dumps({"text": TEXTS, "label": LABELS, "label_names": ["good"], "classes": ["good", "bad"]}), "name", "text - label", "good"),
    ("split-columns.json", json.dumps({"train": {"text": TEXTS, "label": LABELS}, "test": {"text": ["x"], "label": ["oos"]}}), "name", "text - label", "good"),
    ("token-columns.json", json.dumps({"tokens": [ANN.split()] * 9, "ner_tags": [IOB] * 9}), "spans", "tokens - ner_tags", SPANS),
    ("pandas-split.json", json.dumps({"columns": ["text", "label"], "index": [*range(24)], "data": PAIRS}), "name", "text - label", "good"),
    ("viewer.json", json.dumps({"features": [{"name": "text"}], "rows": [{"row_idx": i, "row": {"text": t, "label": n}} for i, (t, n) in enumerate(PAIRS)]}), "name", "text - label", "good"),
    # questions and choices
    ("squad-python.csv", table(["context", "question", "answers"], [ANN] * 24, TEXTS, ["{'text': array(['Ann'], dtype=object), 'answer_start': array([0], dtype=int32)}"] * 24), "answers", "question context answers", "Ann"),
    ("paragraph.json", json.dumps([{"paragraph": ANN, "question": t, "answer": ("Ann", "")[i == 3]} for i, t in enumerate(TEXTS)]), "answers", "question context answers", "Ann"),
    ("race.jsonl", lines({"article": ANN, "questions": [t, "who?"], "options": [["Ann", "Bob"]] * 2, "answers": ["A", "B"]} for t in TEXTS), "choice", "article question answer", "0"),
    ("choices.csv", table(["question", "choices", "answerKey"], TEXTS, [str({"label": ["A", "B"], "text": ["one", "two"]})] * 24, each("A", "B")), "choice", "question - answerKey", "0"),
    ("mmlu.csv", table([], TEXTS, *[[f"{c} {i}" for i in range(24)] for c in "wxyz"], each(*"CABD")), "choice", "column 1 - column 6", "2"),
    ("anli.jsonl", lines({"context": t, "hypothesis": t, "label": n} for t, n in PAIRS), "name", "context hypothesis label", "good"),
    # what is easily taken for something else
    ("comments.csv", "# made by Ann\n\n" + table(["text", "label"], TEXTS, LABELS), "name", "text - label", "good"),
    ("comment-cells.csv", "# made by Ann, 2020\n" + table(["text", "label"], TEXTS, LABELS), "name", "text - label", "good"),
    ("apostrophes.csv", "text,label\n'''Rome''',good\n'tis the season,bad\n" + table([], [t.replace(",", "") for t in TEXTS], LABELS), "name", "text - label", "good"),
    ("open-quotes.tsv", 'text\tlabel\n"We sing\tgood\nall of us"\tbad\n"he said ""hi"" to me"\tbad\n' + table([], TEXTS, LABELS, separator="\t"), "name", "text - label", "good"),
    ("comment-quote.csv", '# a,"b\n\n' + table(["text", "label"], TEXTS, LABELS), "name", "text - label", "good"),
    ("comment-header.csv", "# made, 2020\n\n# id,text,label\n" + table([], range(24), TEXTS, LABELS), "name", "text - label", "good"),
    ("headings.csv", table([], [f"# {t}".replace(",", "") for t in TEXTS], LABELS), "name", "column 1 - column 2", "good"),
    ("page-rows.csv", table([], [f"<html>{t}</html>".replace(",", "") for t in TEXTS], LABELS), "name", "column 1 - column 2", "good"),
    ("comma-label.txt", table([], [t.replace(",", "") for t in TEXTS], [f"__label__{n}" for n in LABELS]), "name", "column 1 - column 2", "__label__good"),
    ("bracket.csv", table(["question", "context", "answers"], TEXTS, [f"{t} [1]" for t in TEXTS], ["[1]"] * 24), "answers", "question context answers", "[1]"),
    ("train-row.json", json.dumps({"train": {"text": "book a train", "label": "bad"}, **{f"r{i}": {"text": t, "label": n} for i, (t, n) in enumerate(PAIRS)}}), "name", "text - label", "bad"),
    ("two-labels.jsonl", lines({"label": n, "data": {"text": t, "label": "x"}} for t, n in PAIRS), "name", "text - label", "good"),
    ("two-texts.jsonl", lines({"text": f"fine {i}", "label": n, "data": {"text": t, "label": "x"}} for i, (t, n) in enumerate(PAIRS)), "name", "text - label", "good"),
    # packed and labelled behind the text
    ("packed.csv", gzip.compress(table(["text", "label"], TEXTS, LABELS).encode()), "name", "text - label", "good"),
    ("behind.txt", "".join(f"{t} __label__{n}\n" for t, n in PAIRS), "name", "text - label", "good"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "kind", "columns", "label"), CASES, ids=[case[0] for case in CASES])
def test_files_as_people_have_them(
    tmp_path: Path, name: str, content: Any, kind: str, columns: str, label: str
) -> None:
    found = guess_columns(DataSource(path=str(write(tmp_path / name, content))))
    source = found.source
    assert found.kind == LabelKind(kind)
    assert f"{source.text} {source.text_pair or '-'} {source.label}" == columns
    examples = read_examples(source, kind=found.kind)
    assert shown(examples[0]) == label
    assert not examples[0].text.startswith("[")
    # a recipe that names the columns reads the same rows
    keys = {k: getattr(source, k) for k in ("path", "text", "text_pair", "label", "header", "separator", "choices")}
    again = DataSource.model_validate({k: v for k, v in keys.items() if v is not None})
    assert read_examples(again, kind=found.kind) == examples


def note(path: Path, content: Any, encoding: str = "utf-8") -> str:
    found: Columns = guess_columns(DataSource(path=str(write(path, content, encoding))))
    return found.note


def test_one_line_says_what_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conll = words(ANN.split(), ["NN"] * 5, IOB, count=1200)
    assert note(tmp_path / "a.txt", conll) == "spans from CoNLL columns 1 and 3, 1,200 sentences"
    squad = json.dumps({"data": [{"paragraphs": [{"context": ANN, "qas": [QA] * 3}]}]})
    assert note(tmp_path / "a.json", squad).startswith("SQuAD, 3 rows: text: column 'question', second text")
    windows = table(["text", "label"], [f"{t} – café" for t in TEXTS], LABELS)
    for name, encoding in (("a.csv", "cp1252"), ("b.txt", "utf-16")):
        write(tmp_path / name, windows, encoding)
        assert [len(read_examples(DataSource(path=str(tmp_path / name)))) for _ in "twice"] == [24] * 5
        printed = capsys.readouterr()
        assert (printed.out + printed.err).count(f"{name}: read as {encoding} (--encoding, if that is wrong)") == 1


@pytest.mark.parametrize("index", [1, 3, 16, 27])
def test_texts_are_read_without_their_labels(tmp_path: Path, index: int) -> None:
    name, content, *_ = CASES[index]
    found = guess_columns(DataSource(path=str(write(tmp_path / name, content))), LabelKind.NONE)
    [first, *_] = read_examples(found.source, labelled=False, kind=LabelKind.NONE)
    assert first.label is None
    assert first.text in (ANN, "who lives there?", TEXTS[1])


REFUSED: list[tuple[str, Any, str]] = [
    ("empty.csv", table(["text", "label"], TEXTS, each("good", "", "")), "16 of 24 rows have no label in column 'label'"),
    ("plain.txt", "\n".join(TEXTS), "holds texts, and no labels. Fix: Add a column"),
    ("numbers.jsonl", lines({"tokens": ANN.split(), "ner_tags": [1, 0, 0, 2, 3]} for _ in TEXTS), "a number for each word"),
    ("uneven.json", json.dumps({"text": TEXTS, "label": LABELS[1:]}), "holds values, and neither rows nor columns of equal length"),
    ("cut-column.json", json.dumps({"text": TEXTS, "id": LABELS, "label": LABELS[1:]}), "the columns 'label' have not as many values as 'text', which has 24"),
    ("short-column.json", json.dumps({"text": TEXTS, "id": LABELS, "label": LABELS[:3]}), "the columns 'label' have not as many values as 'text', which has 24"),
    ("values.json", "[1, 2, 3]", 'orient="records"'),
    ("comma.csv", table(["text", "score"], TEXTS, [f"{1000 + 37 * i:,}" for i in range(24)]), "the comma in '1,000' may part thousands or be the decimal sign"),
    ("shares.csv", table(["text", "score"], TEXTS, [*[f"{i}%" for i in range(20)], 90, 80, 70, 0.5]), "score 90.0 has no percent sign, and others have one"),
    ("wrong-place.jsonl", lines({"text": ANN, "spans": [{"start": 4, "end": 7, "text": "Ann", "label": "PER"}]} for _ in range(1)), "span 4 to 7 is 'liv' in the text, not 'Ann'"),
    ("no-mention.jsonl", lines({"text": ANN, "entities": [{"text": "Bob", "label": "PER"}]} for _ in range(1)), "span text 'Bob' is not in the text"),
    ("mentions.jsonl", lines([{"text": "a " * 1001, "entities": [{"text": "a", "label": "PER"}]}]), "span text 'a' is 1,001 times in the text: give start and end"),
    ("one-score.jsonl", lines([{"query": ANN, "pos": TEXTS[:2], "neg": TEXTS[2:3], "label": 1}]), "2 texts in 'pos', 1 scores; give one for each text"),
    ("gliner.jsonl", lines({"tokenized_text": ANN.split(), "ner": [[3, 4, "LOC"]]} for _ in range(1)), "may count words or characters"),
    ("commas.csv", "text,label\n" + "so, well,1\n", 'Write a text that has commas between quotes: "good, really",1'),
    ("sheet.csv", b"PK\3\4" + b"[Content_Types].xml" + bytes(99), "is a spreadsheet, not a file of rows that is read. Fix: Save the sheet as CSV"),
    ("page.csv", "<!DOCTYPE html>\n<html><body>Not found</body></html>", "is a web page"),
    ("pointer.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 12345\n", "git lfs pull"),
    ("inception.tsv", "#FORMAT=WebAnno TSV 3.2\n\n\n#Text=Ann\n1-1\t0-3\tAnn\tPER\n", "Export the project as CoNLL 2002"),
    ("table.txt", b"PAR1" + bytes(9), "Give it the ending .parquet"),
    ("saved", {"state.json": "{}", "dataset_info.json": "{}", "data-00000-of-00001.arrow": "x"}, "load_from_disk('{folder}').to_parquet"),
    ("saved-splits", {"dataset_dict.json": "{}", "train/state.json": "{}"}, "load_from_disk('{folder}')['train'].to_parquet"),
    ("slots", {"seq.in": "a", "seq.out": "O", "label": "x"}, "paste {folder}/seq.in {folder}/seq.out > rows.tsv"),
    ("parallel", {"train.txt": "a", "train.label": "x"}, "paste {folder}/train.label {folder}/train.txt > train.tsv"),
    ("beir", {"corpus.jsonl": "{}", "queries.jsonl": "{}", "qrels/train.tsv": ""}, '"pos": ["..."]'),
    ("brat", {"1.txt": "Ann and", "1.ann": "T1\tPER 0 3;4 7\tAnn and\n"}, "annotation T1 of 1.ann is no label with one start and one end"),
    ("brat-behind", {"1.txt": "Ann and Bob", "1.ann": "T1\tPER 0 3\tAnn\nT2\tLOC 500 504\tRome\n"}, "the span 500 to 504 of 1.ann begins behind the 11 characters of its text"),
    ("acl", {"train/pos/1.txt": "a", "train/urls.txt": "a", "test/pos/1.txt": "a"}, "{folder}/train, with --eval {folder}/test"),
    ("splits", {"dev.csv": "", "test.csv": "", "train.csv": ""}, "such as {folder}/train.csv, with --eval {folder}/dev.csv."),
    ("split-folders", {"train/a.csv": "", "test/a.csv": ""}, "such as {folder}/train/a.csv, with --eval {folder}/test/a.csv."),
    ("broken.json", '[{"text": "a", "label": 1},\n {"text": "b" "label": 2}]', "broken.json:2: not valid JSON: Expecting ','"),
    ("cut.json", '[{"text": "a", "label": 1},\n {"text": "b"', "cut.json:2: not valid JSON"),
    ("more.json", '[{"text": "a", "label": 1}] x', "text behind the end of the document"),
    ("twice.json", '[{"text": "a", "text": "b"}]', "the key 'text' occurs twice"),
    ("deep.json", '{"data": ' + "[" * 100_000, "too deeply nested"),
    ("null.json", '[{"text": "a\0"}]', "a null byte"),
    ("study.json", json.dumps([{"data": {"text": "a"}, "annotations": [{"result": 7}]}]), "a broken record of Label Studio"),
    ("multi-hot.jsonl", lines([{"text": ANN, "label": [1.0, 0.0, 1.0]}]), "labels are 0 or 1 for each label"),
    ("flags.csv", table(["text", "department", "urgent", "resolved", "escalated"], TEXTS, each("a", "b", "c"), each(1, 0), each(1, 0), each(0, 1)), "'department', 'urgent', 'resolved', 'escalated' could be the labels"),
    ("bare.txt", words(ANN.split(), [*"BOOBI"], count=1) + "\n" + words(ANN.split(), IOB, count=2), "tags are B, I and O without a label"),
    ("digits.json", '{"data": [{"text": "a", "label": 1}], "x": ' + "1" * 5000 + "}", "a number has too many digits"),
    ("key.json", '{"a": 1, [1]: [2]}', "a key is a text between double quotes"),
    ("mixed.json", json.dumps([{"text": t, "label": n} for t, n in PAIRS] + ["x"]), "mixed.json:25: a row is a JSON object, this is str"),
    ("unlike.json", json.dumps({"a": {"b": 1}, "c": {"d": 1}, **{f"r{i}": {"text": t, "label": n} for i, (t, n) in enumerate(PAIRS)}}), "the objects 'a', 'c' have other keys"),
    ("no-train.json", json.dumps({"train": [], "test": [{"text": t, "label": n} for t, n in PAIRS]}), "no rows"),
    ("held-out.json", json.dumps({"test": [{"text": "a"}], "val": [{"text": "b"}]}), "it has the arrays 'test', 'val'"),
    ("polish.csv", table(["text", "label"], [f"żółw zjadł łąkę {i}" for i in range(24)], LABELS).encode("cp1250"), "not UTF-8"),
    ("semicolons.csv", table(["text", "x", "z"], TEXTS, each(";"), TEXTS), "no column is surely the labels"),
    ("book.xlsx", b"PK\3\4", "Save the sheet as CSV"),
    ("rows.bin", bytes(range(256)), "is not text"),
    ("imdb", {"train/pos/1.txt": "a", "test/pos/1.txt": "a"}, "imdb/train, with --eval"),
    ("files", {"train.csv": "text,label\n"}, "Fix: Name a file, such as"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_is_refused_names_the_way(tmp_path: Path, name: str, content: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        found = guess_columns(DataSource(path=str(write(tmp_path / name, content))))
        read_examples(found.source, kind=found.kind or LabelKind.NAME)
    assert message.replace("{folder}", str(tmp_path / name)) in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("is_spelled", [False, True], ids=["objects", "text"])
@pytest.mark.parametrize("is_scored", [False, True])
def test_probabilities_are_read_as_their_most_likely_label_if_asked(
    tmp_path: Path, is_scored: bool, is_spelled: bool
) -> None:
    shares = ({"a": i / 24, "b": 1 - i / 24} for i in range(len(TEXTS)))
    cells = ([{"label": n, "score": p} for n, p in share.items()] if is_scored else share for share in shares)
    told = (json.dumps(cell) if is_spelled else cell for cell in cells)  # as a cell of CSV holds them
    path = write(tmp_path / "a.jsonl", lines({"text": t, "probs": c} for t, c in zip(TEXTS, told, strict=True)))
    found = guess_columns(DataSource.at(str(path), label="probs"))
    assert found.source.teacher is None
    examples = read_examples(found.source)
    assert {e.label for e in examples} == {"a", "b"}
    assert all(e.answer is None for e in examples)


ANSWERS: list[tuple[str, dict[str, Any], str | None, str | None, LabelKind]] = [
    ("probabilities", {"probs": {"a": 0.2, "b": 0.8}}, "probs", None, LabelKind.NAME),
    ("called label", {"label": [0.25, 0.75]}, "label", None, LabelKind.NAME),
    ("in a list", {"p": [0.25, 0.75]}, "p", None, LabelKind.NAME),
    ("as JSON in a cell", {"p": '{"a": 0.2, "b": 0.8}'}, "p", None, LabelKind.NAME),
    ("beside labels", {"probs": {"a": 0.2, "b": 0.8}, "label": "{ab}"}, "probs", "label", LabelKind.NAME),
    ("beside their confidence", {"probs": {"a": 0.2, "b": 0.8}, "sure": "{number}"}, "probs", None, LabelKind.NAME),
    ("logits with a usual name", {"logits": {"a": -3.5, "b": 2.0}}, "logits", None, LabelKind.NAME),
    ("votes", {"votes": {"a": 3, "b": 1}}, "votes", None, LabelKind.NAME),
    ("more than 1 in all", {"probs": {"a": 0.9, "b": 0.8}}, "probs", None, LabelKind.NAMES),
    ("a vector", {"embedding": [i / 7 + 0.01 for i in range(32)]}, "embedding", None, LabelKind.SCORE_OR_NONE),
    ("places", {"teacher": [{"start": 0, "end": 4, "probs": {"O": 0.1, "B-X": 0.9}}]}, "teacher", None, LabelKind.SPANS),
    ("of a pipeline", {"p": [{"label": "a", "score": 0.7}, {"label": "b", "score": 0.3}]}, "p", None, LabelKind.NAME),
    ("its most likely label", {"p": {"label": "a", "score": 0.98}}, "p", None, LabelKind.NAME),
    ("as text", {"p": "[[{'label': 'a', 'score': 0.5}]]", "label": "{ab}"}, "p", "label", LabelKind.NAME),
    ("of other programs", {"p": [{"Name": "a", "Score": 0.7}, {"Name": "b", "Score": 0.3}]}, "p", None, LabelKind.NAME),
    ("of an NLU", {"p": [{"name": "a", "confidence": 0.7}, {"name": "b", "confidence": 0.1}]}, "p", None, LabelKind.NAME),
    ("several hold", {"p": [{"label": "a", "score": 0.7}, {"label": "b", "score": 0.6}]}, "p", None, LabelKind.NAMES),
    ("of other labels", {"p": [{"label": "en", "score": 0.7}], "label": "{ab}"}, None, "label", LabelKind.NAME),
    ("names by other labels", {"probs": {"en": 0.9, "de": 0.1}, "y": "{ab}"}, None, "y", LabelKind.NAME),
    ("beside names of any column", {"p": [{"label": "x", "score": 0.7}], "via": "{ab}"}, None, "via", LabelKind.NAME),
    ("ratings", {"r": [{"label": "a", "score": 4}, {"label": "b", "score": 2}], "label": "{ab}"}, None, "label", LabelKind.NAME),
    ("which hold", {"r": [{"label": "a", "score": 1}, {"label": "b", "score": 0}], "label": "{ab}"}, None, "label", LabelKind.NAME),
    ("spans with scores", {"e": [{"label": "X", "score": 0.9, "start": 0, "end": 4}]}, None, "e", LabelKind.SPANS),
    ("other numbers by name", {"size": {"width": 3, "height": 5}, "label": "{ab}"}, None, "label", LabelKind.NAME),
]  # fmt: skip


@pytest.mark.parametrize(("cells", "teacher", "label", "kind"), [c[1:] for c in ANSWERS], ids=[c[0] for c in ANSWERS])
def test_a_column_of_a_teachers_answers_is_found_by_its_content(
    tmp_path: Path, cells: dict[str, Any], teacher: str | None, label: str | None, kind: LabelKind
) -> None:
    drawn = [{"{ab}": "ab"[i % 2], "{number}": i / 31} for i in range(len(TEXTS))]
    rows = [
        {"text": t, **{k: draw.get(v, v) if isinstance(v, str) else v for k, v in cells.items()}}
        for t, draw in zip(TEXTS, drawn, strict=True)
    ]
    found = guess_columns(DataSource(path=str(write(tmp_path / "a.jsonl", lines(rows)))))
    assert (found.source.teacher.column if found.source.teacher else None) == teacher
    assert (found.source.label if "label" in found.source.model_fields_set else None) == label
    assert found.kind is kind
    if teacher is not None:
        assert f"teacher: the answers in column '{teacher}'" in found.note
        assert all(e.answer is not None for e in read_examples(found.source, kind=kind))


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"query": "{t}", "pos": "{t}", "neg": "a coat", "kind": "{n}"}, {"text": "query", "label": "kind"}),
        ({"text": "{t}", "pos": "{t}", "neg": "a coat", "kind": "{n}"}, {"label": "kind"}),
        ({"sentence": "{t}", "word": "good", "label": "{n}"}, {"text": "sentence"}),
        ({"sentence": "Sentence: 1", "word": "good", "body": "{t}", "label": "{n}"}, {"text": "body", "text_pair": "sentence"}),
        ({"data": {"text": "{t}", "label": "{n}"}, "annotations": [study({"choices": ["x"]}, "choices")]}, {"label": "data.label"}),
    ],
)  # fmt: skip
def test_columns_that_are_named_are_read_as_they_stand(
    tmp_path: Path, row: dict[str, Any], columns: dict[str, str]
) -> None:
    content = "".join(json.dumps(row).replace("{t}", t).replace("{n}", n) + "\n" for t, n in PAIRS)
    examples = read_examples(DataSource(path=str(write(tmp_path / "a.jsonl", content)), **columns))
    assert [(e.text, e.label) for e in examples] == PAIRS


def test_a_recipe_that_names_no_columns_reads_text_and_not_triplets(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines({"text": t, "pos": t, "neg": t} for t in TEXTS))
    examples = read_examples(DataSource(path=str(path)), labelled=False, kind=LabelKind.NONE)
    assert [e.text for e in examples] == TEXTS


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [
        ({"pos_scores": [8.5], "neg_scores": [-4, 1.5]}, [8.5, -4.0, 1.5]),
        ({"margin": [2, -1]}, [2.0, 0.0, 3.0]),
        ({"margin": "2.5"}, None),
        ({"pos_scores": [8.5], "neg_scores": [-4]}, None),
    ],
)
def test_scores_of_triplets_keep_their_differences(
    tmp_path: Path, scores: dict[str, Any], wanted: list[float] | None
) -> None:
    texts = ["the distance", "a red coat", "a lamp"]
    path = write(
        tmp_path / "a.jsonl", lines([{"query": "how far is it", "pos": texts[:1], "neg": texts[1:], **scores}])
    )
    source = DataSource(path=str(path), text="first", text_pair="second", label="score")
    with nullcontext() if wanted else pytest.raises(InputError, match="is a broken record of scored triplets"):
        examples = read_examples(source, kind=LabelKind.SCORE_OR_NONE)
        assert [(e.pair, e.label) for e in examples] == [*zip(texts, wanted or (), strict=True)]


def test_the_encoding_of_a_folder_is_found_or_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for encoding in ("utf-16", "cp1252"):
        files: dict[str, str | bytes] = {f"{n}/{i}.txt": f"{t} café".encode(encoding) for i, (t, n) in enumerate(PAIRS)}
        path = write(tmp_path / "a", files)
        assert all(e.text.endswith("café") for e in read_examples(DataSource(path=str(path))))
        assert capsys.readouterr().err.count(f"a: read as {encoding}") == 1
    with pytest.raises(InputError, match="not UTF-8"):
        read_examples(DataSource(path=str(path), encoding="utf-8"))


def test_all_examples_of_rasa_are_read(tmp_path: Path) -> None:
    [content] = [case[1] for case in CASES if case[0] == "stories.yml"]
    rows = read_rows(DataSource(path=str(write(tmp_path / "a.yml", content))), BadRows("a"))
    texts = [(row["text"], row["intent"]) for _, row in rows]
    assert texts == [(text, name) for name in LABELS for text in ("ask Ann", "so", "or so")]


def test_limits_hold_in_folders_of_texts_and_in_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"good/1.txt": "word " * 400, "bad/1.txt": "a"})
    with pytest.raises(InputError, match=r"longer than 1,048 bytes.*raise max_line_mb"):
        [*read_rows(DataSource(path=str(path), max_line_mb=0.001), BadRows("a"))]
    squad = json.dumps({"data": [{"paragraphs": [{"context": ANN, "qas": [QA] * 30}]}]})
    with pytest.raises(InputError, match="more than 29 rows"):
        [*read_rows(DataSource(path=str(write(tmp_path / "s.json", squad)), max_rows=29), BadRows("a"))]


def test_a_document_of_many_blocks_is_read_piece_by_piece(tmp_path: Path) -> None:
    rows = [{"text": f"{i} " + "wörd " * (i % 977), "label": i % 2, "n": i} for i in range(3000)]
    for indent in (None, 1):
        path = write(tmp_path / "a.json", json.dumps({"a": [1, 2], "data": rows}, indent=indent, ensure_ascii=False))
        assert [row for _, row in read_rows(DataSource(path=str(path)), BadRows("a"))] == rows


# the table of the docs: each row has an example


@pytest.mark.parametrize("form", FILE_FORMS, ids=[form.title for form in FILE_FORMS])
def test_each_form_reads_its_example(tmp_path: Path, form: FileForm) -> None:
    if not form.example:
        return  # Parquet is no text
    name = form.files.split("`")[1] if "`" in form.files else "folder"
    path = write(tmp_path / f"rows{name if name != 'folder' else ''}", form.example)  # type: ignore[arg-type]
    source = DataSource(path=str(path))
    assert find_form(source) is form
    bad = BadRows("a")
    assert [*read_rows(source, bad)]
    assert not bad.count


@pytest.mark.parametrize("shape", RECORD_SHAPES, ids=[shape.title for shape in RECORD_SHAPES])
def test_each_shape_reads_its_example(shape: RecordShape) -> None:
    assert find_record_shape([shape.example]) is shape
    rows = [*shape.expand(shape.example)]
    assert rows
    assert all(name in row for row in rows for name in shape.columns.values())


def test_the_page_of_data_files_is_current() -> None:
    page = runpy.run_path(str(ROOT / "scripts/data_reference.py"))["page"]()
    assert page == (ROOT / "docs/data-files.md").read_text("utf-8"), "run `make reference`"
