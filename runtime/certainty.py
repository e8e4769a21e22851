"""How sure the answers of each file of a folder are: its temperature, and the probability below which a label is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pocketbert.core.artefacts import Artefacts
from pocketbert.core.predict.answers import Answer, marked
from pocketbert.core.predict.confidence import tempered
from pocketbert.core.predict.readout import Matrix


class Certainty:
    """The temperatures and thresholds of a folder's files.

    Args:
        folder: The artefact folder.
        artefacts: Its list.
    """

    def __init__(self, folder: Path, artefacts: Artefacts) -> None:
        self._temperatures = {folder / r.path: r.temperature for r in artefacts.models()}
        self._unknown = {folder / r.path: artefacts.unknown_below(r) for r in artefacts.models()}

    def tempered(self, outputs: Matrix, file: Path, inside: bool) -> Matrix:
        """Outputs at the temperature of the file that computed them.

        Args:
            outputs: Its logits or probabilities.
            file: Its path.
            inside: Whether it computed the softmax itself.
        """
        return tempered(outputs, self._temperatures.get(file, 1.0), inside)

    def marked(self, answers: Sequence[Answer], files: Mapping[int, Path]) -> list[Answer]:
        """Answers with the mark of those that are unknown, where a file of the folder has a threshold.

        Args:
            answers: One per text.
            files: The file that computed each, by its number.
        """
        if not any(least is not None for least in self._unknown.values()):
            return [*answers]
        return marked(answers, [self._unknown.get(files[row]) for row in range(len(answers))])
