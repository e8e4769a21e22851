"""A BERT with a masked-language-model head, random weights and the demo teacher's vocabulary.

No pre-trained masked-language model comes with the project: this one shows that the general stage works, and nothing about
what it is worth.

Run: python lab/random_masked_lm.py FOLDER [--layers 4 --hidden 128 --heads 4]
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM

from pocketbert.core.models.folder import open_model_folder


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        intermediate_size=4 * options.hidden,
        max_position_embeddings=512,
    )
    BertForMaskedLM(config).save_pretrained(options.folder)
    vocabulary = open_model_folder("minilm-l6").path
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copyfile(vocabulary / name, options.folder / name)


if __name__ == "__main__":
    main()
