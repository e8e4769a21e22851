"""`selftest.json`: what an app compares its answers with is what the files answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import pocketbert
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.predict.scores import apply_temperature
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TaskName
from pocketbert.pipeline.gates.confidence import _ROWS, _read_selftest, _tolerance_at_temperature, write_selftest
from support.card_folders import folder as listed

TOKENS = '{"text": "%s", "ids": [1, 5, 2]}\n'


def test_the_default_file_answers_as_the_self_test_says(finished_tflite: Path) -> None:
    phone = finished_tflite / "phone"
    artefacts, test = read_artefacts(phone), _read_selftest(phone)
    assert "selftest.json" in {r.path for r in artefacts.files}
    assert (test.values, len(test.rows)) == ("probabilities", _ROWS)
    assert {p for row in test.rows for p in row.answers} == {r.path for r in artefacts.models()}
    tokenizer = TextTokenizer(phone, artefacts.processing.max_length)
    model = pocketbert.load(phone)
    path = artefacts.default_model().path
    for row in test.rows:
        assert tokenizer.encode([row.text])[0].ids.tolist() == row.ids
        prediction = model.predict([row.text])[0]
        expected = row.answers[path]
        given = [prediction.scores[name] for name in artefacts.labels]
        np.testing.assert_allclose(given, expected.values, rtol=0, atol=min(expected.tolerance, 1e-3))
        assert sum(expected.values) == pytest.approx(1, abs=1e-5)


def golden(text: str, label: str, outputs: list[float], **more: object) -> GoldenRow:
    paths = [r.path for r in listed(TaskName.TEXT_CLASSIFICATION).models()]
    return GoldenRow.model_validate(
        {
            "text": text,
            "label": label,
            "reference": outputs,
            "outputs": dict.fromkeys(paths, outputs),
            "tolerance": dict.fromkeys(paths, 0.2),
            **more,
        }
    )


def written(folder: Path, rows: list[GoldenRow], task: TaskName = TaskName.TEXT_CLASSIFICATION) -> list[str]:
    (folder / "golden.jsonl").write_text("".join(r.model_dump_json() + "\n" for r in rows))
    (folder / "golden_tokens.jsonl").write_text("".join(TOKENS % r.text for r in rows if isinstance(r.text, str)))
    write_selftest(folder, listed(task))
    return [str(row.text) for row in _read_selftest(folder).rows]


def test_clear_short_texts_with_different_labels_come_first(tmp_path: Path) -> None:
    rows = [
        golden("drawn", "no", [3.0, 0.0], drawn=True),
        golden("close to the other label", "yes", [0.0, 0.3]),
        golden("wrong", "no", [0.0, 3.0]),
        golden("a longer clear text", "no", [3.0, 0.0]),
        golden("clear", "no", [3.0, 0.0]),
        golden("clear as well", "yes", [0.0, 3.0]),
        golden("very clear, too", "yes", [0.0, 3.0]),
    ]
    assert written(tmp_path, rows) == ["clear", "clear as well", "very clear, too", "a longer clear text", "wrong"]
    first = _read_selftest(tmp_path).rows[0]
    assert (first.ids, first.label) == ([1, 5, 2], "no")
    assert first.answers["onnx/model.onnx"].values == pytest.approx([0.9525741, 0.0474259])
    assert first.answers["onnx/model.onnx"].tolerance == pytest.approx(0.1, abs=1e-6)
    # MediaPipe's file answers with probabilities itself
    assert first.answers["tflite/mediapipe.tflite"].values == [3.0, 0.0]
    assert first.answers["tflite/mediapipe.tflite"].tolerance == pytest.approx(0.2, abs=1e-6)


def test_parts_of_outputs_stay_outputs(tmp_path: Path) -> None:
    rows = [golden(f"text {i}", "", [1.0, 2.0], columns=[4, 7]) for i in range(6)]
    written(tmp_path, rows)
    test = _read_selftest(tmp_path)
    assert test.values == "outputs"
    assert test.rows[0].columns == [4, 7]
    assert test.rows[0].answers["onnx/model.onnx"].values == [1.0, 2.0]


def test_fewer_rows_than_five_are_all_written(tmp_path: Path) -> None:
    assert written(tmp_path, [golden("one", "no", [3.0, 0.0]), golden("two", "yes", [0.0, 3.0])]) == ["one", "two"]


@given(
    arrays(np.float64, (2, 4), elements=st.floats(0.001, 1)), st.floats(0.2, 5), st.floats(0, 0.05), st.integers(0, 3)
)
def test_the_tolerance_of_probabilities_holds_at_a_temperature(
    numbers: np.ndarray, temperature: float, step: float, place: int
) -> None:
    first = numbers[0] / numbers[0].sum()
    second = np.abs(first + step * (np.arange(4) == place) - step * (np.arange(4) == (place + 1) % 4))
    second /= second.sum()
    tolerance = float(np.abs(first - second).max())
    apart = np.abs(apply_temperature(first, temperature, True) - apply_temperature(second, temperature, True)).max()
    assert apart <= _tolerance_at_temperature(first, tolerance, temperature) + 1e-9
    assert _tolerance_at_temperature(first, tolerance, 1.0) == tolerance
