"""A mini IB-BERT, pre-trained by masked LM and next sentence: a teacher that MobileBERT students of a machine without GPU can learn from.

No IB-BERT checkpoint was ever published. This one has six blocks, a quarter as wide as IB-BERT-large's everywhere
(`pocketbert.distill.students.mobilebert.mini_teacher_config`). Started again with the same arguments, it goes on from
its last checkpoint.

Run: python lab/pretrain_ib_bert.py TOKENIZER CORPUS OUT [--steps 20000 --batch 64 --length 64 --seed 0]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from pocketbert.core.disk.files import sha256_json
from pocketbert.core.disk.ownership import claim_folder, remove
from pocketbert.core.disk.workspace import build_folder
from pocketbert.core.families import family_of
from pocketbert.core.models.checkpoints import save_tokenizer
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.data import CorpusSection, CorpusSource
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.seeds import derive_seed
from pocketbert.core.types import MaskingKind
from pocketbert.distill.methods.mobilebert import Pretraining
from pocketbert.distill.students.ib_bert import IbBertForPreTraining
from pocketbert.distill.students.mobilebert import mini_teacher_config
from pocketbert.distill.text.masking import masking_of
from pocketbert.distill.text.pairs import GeneralSet, pairs_of
from pocketbert.distill.training.loop import train
from pocketbert.pipeline.learn.corpora import open_corpora, write_corpora

PURPOSE = "pretrain"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, help="folder with tokenizer.json of a WordPiece vocabulary")
    parser.add_argument("corpus", type=Path, help=".jsonl[.gz], .csv, .tsv or .parquet with a column 'text'")
    parser.add_argument("out", type=Path, help="folder to write; must not be there")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="longest row in tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"{options.out} is there already")
    return options


def main() -> None:
    """Write the folder."""
    options = arguments()
    # of other settings, a checkpoint is no beginning
    settled = sha256_json({k: str(v) for k, v in vars(options).items()})[:8]
    work = options.out.parent / f".{options.out.name}.{settled}.work"
    with claim_folder(work, "pre-training of an IB-BERT"):
        section = CorpusSection(sources=[CorpusSource(path=str(options.corpus))], length=options.length)
        if not (work / "corpus").is_dir():
            with build_folder(work / "corpus") as folder:
                write_corpora(section, options.tokenizer, folder)
        rows = open_corpora(section, options.tokenizer, work / "corpus", options.seed)
        vocabulary = len(rows.counts)

        config = mini_teacher_config(vocabulary)
        family = family_of(config.model_type)
        tokenizer = TextTokenizer(options.tokenizer, options.length, padding_side=family.padding_side)
        config.pad_token_id = tokenizer.pad_id
        torch.manual_seed(derive_seed(options.seed, PURPOSE))
        model = IbBertForPreTraining(config)
        masking = masking_of(MaskingKind.DYNAMIC, rows.counts, tokenizer, options.seed, PURPOSE)
        pairs = pairs_of(tokenizer, vocabulary, options.seed, PURPOSE)
        data = GeneralSet(rows, tokenizer, masking, pairs)
        settings = Optimisation(steps=options.steps, batch=options.batch, lr=options.lr)

        started = time.process_time()
        made = train(model, Pretraining(model, family), data, settings, options.seed, PURPOSE, work / "checkpoint")
        for record in made.history[:: max(1, len(made.history) // 20)]:
            terms = ", ".join(f"{name} {value:.3f}" for name, value in record.terms.items())
            print(f"step {record.step}: {terms}")
        print(f"{time.process_time() - started:.0f} s of CPU time, {made.dtype}, {made.threads} threads")
        with build_folder(options.out) as folder:
            model.save_pretrained(folder)
            save_tokenizer(options.tokenizer, config.max_position_embeddings, folder)
        remove(work)


if __name__ == "__main__":
    main()
