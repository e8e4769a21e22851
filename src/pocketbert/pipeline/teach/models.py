"""Teachers that are models of transformers, of whatever family: classifiers, taggers, readers, rerankers, encoders of sentences.

`open_teacher_model` opens one by transformers' Auto classes; code of a model's folder is never run, and weights are read from
safetensors files only. `ZeroShotTeacher` answers with labels that a model of inference never saw, by their descriptions.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pocketbert.core.errors import InputError, Problem, first_line, shorten_list
from pocketbert.core.models.folder import locate_model
from pocketbert.core.predict.predictor import pool_embeddings
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, MODULES_FILE, read_pooling
from pocketbert.core.tasks import ScoreFunction, TaskName, read_heads, task_of
from pocketbert.pipeline.teach.answering import AnswerForm, Array, AskedRow

_LONGEST = 512
"""Tokens that a text is cut at, where the model takes longer ones."""
_STRIDE = 128
_HEADS = {
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
}
_TASK_HEADS = {
    TaskName.TEXT_CLASSIFICATION: "ForSequenceClassification",
    TaskName.MULTI_LABEL: "ForSequenceClassification",
    TaskName.REGRESSION: "ForSequenceClassification",
    TaskName.TOKEN_CLASSIFICATION: "ForTokenClassification",
    TaskName.QUESTION_ANSWERING: "ForQuestionAnswering",
    TaskName.FEATURE_EXTRACTION: "",
}


class _Model:
    """A transformers model with its tokenizer, and the task that its head is for.

    Without weights, which are then not read from the disk, it is checked and described, and does not run.
    """

    def __init__(self, name: str, task: str | None, max_length: int | None, with_weights: bool) -> None:
        import torch
        import transformers

        self.title = name
        path, _ = locate_model(name, None, "-m/--model")
        _check_safetensors(path)
        transformers.utils.logging.disable_progress_bar()  # the answers have one
        logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # a warning to the authors of libraries
        safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
        place = {} if with_weights else {"device_map": "meta"}  # the names of the weights are read and compared
        try:
            config = transformers.AutoConfig.from_pretrained(path, **safe)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(path, **safe)
            self.head = _find_head(config, path, task)
            auto = getattr(transformers, _HEADS.get(self.head, "AutoModel"))
            self.model, info = auto.from_pretrained(
                path, use_safetensors=True, output_loading_info=True, **place, **safe
            )
        except InputError:
            raise
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            reason = first_line(error)
            what = f"transformers does not open it: {reason:.300}"
            raise InputError(
                Problem(name, what, "A folder needs config.json, a tokenizer and .safetensors weights.")
            ) from error
        if self.head and (untrained := sorted(key for key in info["missing_keys"] if "position_ids" not in key)):
            what = f"its checkpoint lacks weights, which would answer at random: {shorten_list(untrained)}."
            raise InputError(
                Problem(name, what, "Give a fine-tuned model, or --task feature-extraction for its vectors.")
            )
        device = torch.accelerator.current_accelerator() if with_weights and torch.accelerator.is_available() else None
        self.model.eval().float().to(device)
        self.config, self.path = self.model.config, path
        if self.tokenizer.pad_token is None:  # decoders have none
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        if getattr(self.config, "pad_token_id", None) is None:
            self.config.pad_token_id = self.tokenizer.pad_token_id
        self.tokenizer.padding_side = "right"
        self.length = max_length or _find_length(self.config, self.tokenizer)
        self._inputs = {*inspect.signature(self.model.forward).parameters}

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None, **more: Any) -> Any:
        """Tokenize texts or pairs to tensors, cut at the longest input."""
        settings = {"truncation": True, "max_length": self.length, "padding": True, "return_tensors": "pt", **more}
        return self.tokenizer(list(texts), list(pairs) if pairs is not None else None, **settings)

    def run(self, encoded: Mapping[str, Any]) -> Any:
        """Run the model on tokenized rows, without gradients, on the GPU if there is one. The outputs are on the CPU."""
        import torch

        names = {"input_ids", "attention_mask", "token_type_ids"} & self._inputs
        device = self.model.device
        with torch.inference_mode():
            outputs = self.model(**{name: encoded[name].to(device) for name in sorted(names) if name in encoded})
        return SimpleNamespace(
            **{name: value.cpu() for name, value in outputs.items() if isinstance(value, torch.Tensor)}
        )


def _check_safetensors(path: Path) -> None:
    """Check that a model folder has weights in safetensors files.

    Raises:
        InputError: If it has none.
    """
    if not any(path.glob("*.safetensors")):
        what = "has no .safetensors weights; other checkpoints may run code when they are read."
        fix = "Convert it where you trust it: AutoModel.from_pretrained(folder).save_pretrained(folder)"
        raise InputError(Problem(str(path), what, fix))


def _find_head(config: Any, path: Path, task: str | None) -> str:
    """Return the suffix of the model class whose head gives the answers, such as ``ForTokenClassification``.

    It is empty for an encoder whose text vectors are the answers.

    Args:
        config: The model's configuration.
        path: Folder of the model.
        task: Task that the user names; None for the task of the class in the configuration.

    Raises:
        InputError: If the model has several heads, a column cannot hold answers of the task, or no task is named and the class
            in the configuration has no head that answers.
    """
    labels = [str(name) for _, name in sorted((config.id2label or {}).items())]
    heads = read_heads(config.to_dict(), labels, f"{path}/config.json")
    if heads is not None:
        what = f"has several heads ({', '.join(heads)}), and a column holds the answers of one."
        fix = "Answer with pocketbert predict --json, or give a model with one head."
        raise InputError(Problem(str(path), what, fix))
    if task is not None:
        name = task_of(task, "--task").name
        if name not in _TASK_HEADS:
            allowed = ", ".join(_TASK_HEADS)
            raise InputError(Problem("--task", f"'{task}' has no answers that a column holds; allowed: {allowed}."))
        return _TASK_HEADS[name]
    architecture = str((config.architectures or [""])[0])
    for suffix in _HEADS:
        if architecture.endswith(suffix):
            return suffix
    if (path / MODULES_FILE).is_file():
        return ""
    what = f"its class '{architecture}' has no head that answers."
    raise InputError(Problem(str(path), what, "Give a fine-tuned model, or --task feature-extraction for its vectors."))


def _find_length(config: Any, tokenizer: Any) -> int:
    """Return the longest input in tokens that model and tokenizer take, at most `_LONGEST`."""
    positions = getattr(config, "max_position_embeddings", None) or _LONGEST
    if positions % 8 == 2:  # RoBERTa's kin count positions from 2
        positions -= 2
    return int(min(positions, tokenizer.model_max_length, _LONGEST))


def open_teacher_model(
    name: str, task: str | None = None, max_length: int | None = None, batch: int = 32, with_weights: bool = True
) -> ModelTeacher:
    """Open a model of transformers as a teacher that answers rows.

    Args:
        name: Folder, Hub name, or the demo teacher's name.
        task: Task that the model is used for; None for the task of the class in its configuration.
        max_length: Longest input in tokens; None for what the model takes, at most 512.
        batch: Number of rows that the model computes at once.
        with_weights: Whether it is to answer. If not, its weights are not read: form and labels of its answers are known, and all
            errors are raised.

    Raises:
        InputError: If the model cannot be opened, has no safetensors weights, has several heads, or has no trained head.
    """
    return ModelTeacher(_Model(name, task, max_length, with_weights), task, batch)


class ModelTeacher:
    """A fine-tuned model that answers rows; see `Teacher`.

    Args:
        model: The opened model.
        task: Task that the model is used for; None for the task of the class in its configuration.
        batch: Number of rows that the model computes at once.
    """

    def __init__(self, model: _Model, task: str | None, batch: int) -> None:
        self._model, self._batch, self.title = model, batch, model.title
        config = model.config
        self.names: tuple[str, ...] = ()
        match model.head:
            case "ForSequenceClassification":
                self.form = _form_of(config, task)
            case "ForTokenClassification":
                self.form = AnswerForm.TAGS
            case "ForQuestionAnswering":
                self.form = AnswerForm.SPAN
            case _:
                self.form = AnswerForm.VECTOR
                self._pooling = read_pooling(model.path) or DEFAULT_POOLING
        if self.form in (AnswerForm.LABEL, AnswerForm.LABELS, AnswerForm.TAGS):
            self.names = tuple(str(config.id2label[i]) for i in range(config.num_labels))

    def answer(self, rows: Sequence[AskedRow]) -> list[Array]:
        """Return the model's answer for each row; see `Teacher.answer`."""
        answers: list[Array] = [np.zeros(0)] * len(rows)
        for chosen in _by_length(rows, self._batch):
            some = [rows[i] for i in chosen]
            for i, answer in zip(chosen, self._answer(some), strict=True):
                answers[i] = answer
        return answers

    def _answer(self, rows: Sequence[AskedRow]) -> list[Array]:
        """Run the model on a batch of rows and return an array for each, in the teacher's form of answer.

        These are probabilities of the labels, the number of a regression, the vector of a text, probabilities of the tags of
        each word, or scores of spans.
        """
        if self.form is AnswerForm.TAGS:
            return self._answer_tags(rows)
        if self.form is AnswerForm.SPAN:
            return [self._answer_span(row) for row in rows]
        pairs = [row.pair or "" for row in rows] if any(row.pair is not None for row in rows) else None
        if self.form is AnswerForm.VECTOR:
            pairs = None
        encoded = self._model.encode([row.text for row in rows], pairs)
        outputs = self._model.run(encoded)
        if self.form is AnswerForm.VECTOR:
            states, mask = outputs.last_hidden_state.numpy(), encoded["attention_mask"].numpy()
            return [*pool_embeddings(states, mask, self._pooling).astype(np.float64)]
        logits = outputs.logits.numpy().astype(np.float64)
        if self.form is AnswerForm.LABEL:
            return [*apply_score_function(logits, ScoreFunction.SOFTMAX)]
        score = ScoreFunction.SIGMOID if self.form is AnswerForm.LABELS else ScoreFunction.NONE
        return [*apply_score_function(logits, score)]

    def _answer_tags(self, rows: Sequence[AskedRow]) -> list[Array]:
        """Return for each unit of each text the tag probabilities of the token that holds the unit's first character.

        Units behind the cut of a long text get the tag ``O``, or the first tag if there is no ``O``.
        """
        encoded = self._model.encode([row.text for row in rows], None, return_offsets_mapping=True)
        p = apply_score_function(self._model.run(encoded).logits.numpy(), ScoreFunction.SOFTMAX)
        outside = self.names.index("O") if "O" in self.names else 0
        answers = []
        for row, values, offsets in zip(rows, p, encoded["offset_mapping"].numpy(), strict=True):
            units = row.units()
            answer = np.zeros((len(units), len(self.names)))
            answer[:, outside] = 1
            real = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
            ends = offsets[real, 1]
            for i, (start, _) in enumerate(units):
                # tokens may begin with the blank before a word, and end with it
                place = int(np.searchsorted(ends, start, side="right"))
                if place < len(real):
                    answer[i] = values[real[place]]
            answers.append(answer)
        return answers

    def _answer_span(self, row: AskedRow) -> Array:
        """Return for each character of a context the probabilities that the answer starts and ends there.

        They are computed from the logits of all windows of the context.
        """
        context = row.pair or ""
        stride = min(_STRIDE, self._model.length // 4)
        more = {"truncation": "only_second", "stride": stride, "return_overflowing_tokens": True}
        encoded = self._model.encode([row.text], [context], return_offsets_mapping=True, **more)
        answer = np.full((len(context) + 1, 2), -np.inf)
        answer[-1] = np.inf
        for first in range(0, len(encoded["input_ids"]), self._batch):
            part = {key: value[first : first + self._batch] for key, value in encoded.items()}
            outputs = self._model.run(part)
            logits = np.stack([outputs.start_logits.numpy(), outputs.end_logits.numpy()], -1).astype(np.float64)
            for i, values in enumerate(logits):
                # a question has no answer in a context if no window has one (Devlin et al. 2019, section 4.3)
                answer[-1] = np.minimum(answer[-1], values[0])
                for token, part_of in enumerate(encoded.sequence_ids(first + i)):
                    start, end = (int(v) for v in part["offset_mapping"][i][token])
                    if part_of == 1 and end > start:
                        answer[start, 0] = max(answer[start, 0], values[token, 0])
                        answer[end - 1, 1] = max(answer[end - 1, 1], values[token, 1])
        return apply_score_function(answer.T, ScoreFunction.SOFTMAX).T


class ZeroShotTeacher:
    """A model of inference that chooses among labels that it was not trained on.

    It computes whether the text entails the hypothesis of each label. The score of a label is the logit of entailment
    less that of contradiction (Yin et al. 2019, arXiv 1909.00161, section 5).

    Args:
        model: The opened model.
        labels: By label, the words that the hypothesis uses for it.
        template: Text of the hypothesis, in which {} is replaced by these words.
        several: Whether a text may have several labels.
        batch: Number of pairs of text and label that the model computes at once.

    Raises:
        InputError: If the model has no outputs for entailment and contradiction.
    """

    def __init__(self, model: _Model, labels: Mapping[str, str], template: str, several: bool, batch: int) -> None:
        self._model, self._batch, self.title = model, batch, model.title
        self.names = tuple(labels)
        self.form = AnswerForm.LABELS if several else AnswerForm.LABEL
        self._hypotheses = [template.format(text) for text in labels.values()]
        outputs = {str(name).lower(): int(i) for i, name in (model.config.id2label or {}).items()}
        found = [
            next((i for name, i in outputs.items() if name.startswith(begin)), None)
            for begin in ("entail", "contradict")
        ]
        if None in found:
            what = f"its labels are {shorten_list([*outputs])}; a model of inference has entailment and contradiction."
            raise InputError(Problem(model.title, what, "Give a model that was trained on MNLI, XNLI or the like."))
        self._entailment, self._contradiction = (int(i) for i in found if i is not None)

    def answer(self, rows: Sequence[AskedRow]) -> list[Array]:
        """Return the probability of each label for each row; see `Teacher.answer`."""
        asked = [
            AskedRow(row.text if row.pair is None else f"{row.text}\n{row.pair}", h)
            for row in rows
            for h in self._hypotheses
        ]
        scores = np.zeros(len(asked))
        for chosen in _by_length(asked, self._batch):
            encoded = self._model.encode(
                [asked[i].text for i in chosen], [asked[i].pair or "" for i in chosen], truncation="only_first"
            )
            logits = self._model.run(encoded).logits.numpy().astype(np.float64)
            scores[chosen] = logits[:, self._entailment] - logits[:, self._contradiction]
        table = scores.reshape(len(rows), len(self._hypotheses))
        score = ScoreFunction.SIGMOID if self.form is AnswerForm.LABELS else ScoreFunction.SOFTMAX
        return [*apply_score_function(table, score)]


def open_zero_shot(
    name: str,
    labels: Mapping[str, str],
    template: str,
    several: bool = False,
    max_length: int | None = None,
    batch: int = 32,
    with_weights: bool = True,
) -> ZeroShotTeacher:
    """Open a model of inference as a teacher of labels that it was not trained on.

    See `ZeroShotTeacher`, and `open_teacher_model` for `with_weights`.

    Raises:
        InputError: If the model cannot be opened, or is no model of inference.
    """
    model = _Model(name, TaskName.TEXT_CLASSIFICATION, max_length, with_weights)
    return ZeroShotTeacher(model, labels, template, several, batch)


def _form_of(config: Any, task: str | None) -> AnswerForm:
    """Return the form of a classifier's answers: a number, one label, or several labels.

    The task that the user names decides between one and several labels, else the model's configuration.
    """
    if config.num_labels == 1:
        return AnswerForm.SCORE
    several = task == TaskName.MULTI_LABEL or (task is None and config.problem_type == "multi_label_classification")
    return AnswerForm.LABELS if several else AnswerForm.LABEL


def _by_length(rows: Sequence[AskedRow], batch: int) -> Iterator[list[int]]:
    """Yield the indices of rows in batches of similar length."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].text) + len(rows[i].pair or ""))
    for first in range(0, len(order), batch):
        yield order[first : first + batch]
