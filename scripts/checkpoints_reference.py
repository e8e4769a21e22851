"""Write docs/checkpoints.md from what the code reads: one row per shape of a checkpoint.

Run: python scripts/checkpoints_reference.py > docs/checkpoints.md
"""

from __future__ import annotations

from collections.abc import Iterator

from pocketbert.core.disk.weight_files import WEIGHTS_FILE
from pocketbert.core.families import all_families
from pocketbert.core.models.adapters import ADAPTER_FILE, CHANGING_STARTS, TASK_SUFFIXES
from pocketbert.core.models.folder import ACTIVATION_SCORES, DEMO_TEACHER, HEADS
from pocketbert.core.predict.sentence_settings import (
    ACTIVATIONS,
    CUT_KEY,
    DENSE,
    LAYER_NORM,
    MODULES_FILE,
    NORMALIZE,
    POOLING_TITLES,
    SETTINGS_FILE,
)

HEAD = """# Checkpoints that are read

Generated from the code by `scripts/checkpoints_reference.py`. All of this holds wherever a model is named: `export -m`, `teacher.model`, `student.model`. Architectures and their tasks stand in
[Families](lab/families.md). Nothing is unpickled and no code of a checkpoint is run; sizes are bounded while reading, and what does not fit is refused with the names of the weights.

| shape | found by | what happens |
|---|---|---|"""
FOOT = """
## Adapters

```bash
pocketbert export -m ADAPTER -o phone                                  # its base is found by base_model_name_or_path
pocketbert export -m BASE --adapter ONE --adapter TWO -o phone         # one after another
pocketbert run recipe.yaml teacher.model=BASE 'teacher.adapters=[ONE]' # as a teacher
```

The merged weights were compared with those of peft 0.21.2 on 2026-11-28: 24 adapters of BERT, RoBERTa, DistilBERT and DeBERTa v2 (rsLoRA, DoRA, patterns, biases, embeddings, single tokens, whole modules, two adapters)
differ by at most 4.8e-7. peft is not needed."""


def quoted(names: object) -> str:
    """Return names as code in Markdown, with commas between them."""
    return ", ".join(f"`{name}`" for name in names)  # type: ignore[attr-defined]


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table: shape of a checkpoint, how it is recognised, and what happens."""
    yield "folder of transformers", f"`config.json`, `{WEIGHTS_FILE}`", "read in fp32, whatever type the weights have"
    yield (
        "pickled weights",
        "`pytorch_model.bin`",
        "plain tensors, also below `state_dict`, are read without running anything; other content is refused",
    )
    yield (
        "weights in several parts",
        f"`{WEIGHTS_FILE}.index.json`, `pytorch_model.bin.index.json`",
        "all parts are read; each weight has to be in one of them",
    )
    yield (
        "names behind a wrapper",
        "one beginning of all names, as `module.` or `model.`",
        "it is left out, with a note",
    )
    heads = ", ".join(f"`...{ending}`" for ending in sorted({*(e for e, _ in HEADS), "ForTokenClassification"}))
    yield (
        "no class in `config.json`",
        "no `architectures`",
        f"the names of the weights decide between {heads}; else `--task`",
    )
    yield "no label names", "no `id2label`", "`LABEL_0`, `LABEL_1`, ..., with a note; `--labels` names them"
    released = [f"{f.title} (`{f.released_config.file}`)" for f in all_families() if f.released_config is not None]
    yield "folder as its authors released it", ", ".join(released), "read as if it had a `config.json`"
    yield (
        "name on the Hub, demo teacher",
        f"`org/model`, `{DEMO_TEACHER}`",
        "downloaded where the Hub answers; checked by its sha256",
    )
    yield from adapter_rows()
    yield from sentence_rows()


def adapter_rows() -> Iterator[tuple[str, str, str]]:
    """Yield the rows on adapters."""
    tasks = quoted(TASK_SUFFIXES)
    yield (
        "LoRA adapter of peft",
        f"`{ADAPTER_FILE}`",
        f"merged into its base, without peft; also rsLoRA, DoRA, `rank_pattern`, `alpha_pattern`; tasks {tasks}",
    )
    yield (
        "patterns of an adapter",
        "`rank_pattern`, `alpha_pattern`",
        r"names, `.`, `\.`, `.*`, `\d+`, `[0-9]+`, alternatives of these, `^` and `$`; others are refused",
    )
    yield (
        "base of an adapter",
        "`base_model_name_or_path`",
        "a folder, or a name on the Hub with or without an owner; no adapter",
    )
    yield (
        "several adapters",
        "`--adapter`, `teacher.adapters`",
        "merged one after another; the licences of all are kept",
    )
    yield (
        "modules saved whole",
        "`modules_to_save`, biases, `trainable_token_indices`",
        "replace those of the base; a new head decides task and labels",
    )
    changing = ", ".join(f"`{start}`" for start in CHANGING_STARTS)
    yield (
        "other adapters",
        "`peft_type`, `init_lora_weights`",
        f"refused: other kinds than `LORA`, and starts that change the base ({changing})",
    )


def sentence_rows() -> Iterator[tuple[str, str, str]]:
    """Yield the rows on sentence-transformers models."""
    for kind, title in POOLING_TITLES.items():
        yield "sentence encoder", f"`{MODULES_FILE}`, pooling `{kind}`", f"{title}, in the files of all formats"
    yield "several poolings", "`pooling_mode` with several names or flags", "concatenated in that order"
    yield (
        f"`{DENSE}` behind the pooling",
        f"`{MODULES_FILE}`",
        f"in the files; activations {quoted(ACTIVATIONS)}, without a name `Tanh`",
    )
    yield (
        f"`{LAYER_NORM}`, `{NORMALIZE}`, `Dropout`",
        f"`{MODULES_FILE}`, in any order",
        "in the files; dropout does nothing",
    )
    yield (
        "encoder in a folder of its own",
        f"`{MODULES_FILE}`, as `0_Transformer`",
        "linked with the modules; nothing is written into the folder",
    )
    yield (
        "vectors that are cut",
        f"`{CUT_KEY}` of `{SETTINGS_FILE}`",
        "the files give the first numbers, which are not scaled again; `answer.normalize: true` does",
    )
    yield "prompts, similarity", f"`{SETTINGS_FILE}`", "the default prompt is put in front; others by `--prompt`"
    yield (
        "reranker (CrossEncoder)",
        f"one output; `{SETTINGS_FILE}` or `config.json`",
        f"scores as `CrossEncoder.predict`, activations {quoted(ACTIVATION_SCORES)}; `predict --query` ranks passages",
    )


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(f"| {' | '.join(row)} |" for row in rows()), FOOT]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
