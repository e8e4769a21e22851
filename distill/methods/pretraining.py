"""Pre-training of a teacher on plain text: masked LM and next sentence, as for BERT and IB-BERT."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.heads.head import IGNORED
from pocketbert.distill.capture.lm_heads import LmHead, places
from pocketbert.distill.losses.general import masked_lm, next_sentence
from pocketbert.distill.text.pairs import NEXT_SENTENCE
from pocketbert.distill.training.terms import Term


class Pretraining:
    """Objective: ``L_MLM + L_NSP`` of BERT (Devlin et al. 2019, arXiv 1810.04805, section 3.1), which IB-BERT is trained with.

    Only hidden tokens reach the vocabulary projection.

    Args:
        model: What will be trained, not yet wrapped: with both heads, or the masked-LM head alone.
        family: Its row of the family table.
        next_sentence: Whether pairs are judged too; batches then come from `pocketbert.distill.text.general_set.GeneralSet`
            with pairs.
        where: For errors.

    Attributes:
        weights: ``mlm``, and ``next_sentence`` where wanted; 1 each.

    Raises:
        InputError: If the model lacks a head that is wanted.
    """

    def __init__(self, model: Any, family: Family, next_sentence: bool = True, where: str = "model") -> None:
        self.family, self._head = family, LmHead(model, where)
        if next_sentence and not self._head.judges_pairs:
            raise InputError(
                Problem(
                    where,
                    f"{type(model).__name__} has no next-sentence head.",
                    f"Load it as {family.classes}ForPreTraining, or leave next_sentence out.",
                )
            )
        self.weights = {"mlm": 1.0, **({"next_sentence": 1.0} if next_sentence else {})}

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Hidden tokens and pairs; see `pocketbert.distill.training.terms.Counting`."""
        labels = {"mlm": "labels", "next_sentence": NEXT_SENTENCE}
        return {name: (batch[labels[name]] != IGNORED).sum() for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Terms ``mlm`` and, where wanted, ``next_sentence``.

        Args:
            model: The model, or what wraps it.
            batch: The family's inputs (with hidden tokens) and ``labels`` (original ids of these, else -100), [B, S]
                each; for pairs ``next_sentence_label`` too, [B]. More is ignored.
        """
        inputs = {name: batch[name] for name in self.family.inputs}
        hidden = places(batch["labels"] != IGNORED)
        made = self._head.run(model, inputs, hidden)
        terms = {"mlm": masked_lm(made.logits, batch["labels"].flatten()[hidden])}
        if made.next_sentence is not None and "next_sentence" in self.weights:
            terms["next_sentence"] = next_sentence(made.next_sentence, batch[NEXT_SENTENCE])
        return terms
