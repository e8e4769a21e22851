"""In which layouts the authors publish their checkpoints; names only, nothing is downloaded."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """Checkpoints of one layout.

    Attributes:
        row: Name or `model_type` of the row that reads them; listed where the table has it.
        system: What people call the system.
        names: Names of checkpoints.
        files: What is in their folders.
    """

    row: str
    system: str
    names: str
    files: str


_BIN, _BOTH = "`pytorch_model.bin`", "`model.safetensors` and `pytorch_model.bin`"
CHECKPOINTS = (
    Published(
        "bert",
        "BERT",
        "`google-bert/bert-base-uncased`",
        f"{_BOTH}, `vocab.txt`, `tokenizer.json`; `LayerNorm.gamma` and `beta`",
    ),
    Published("bert", "SpanBERT", "`SpanBERT/spanbert-base-cased`", f"{_BIN}, `vocab.txt`; no `tokenizer.json`"),
    Published(
        "bert",
        "TinyBERT",
        "`huawei-noah/TinyBERT_General_4L_312D`",
        f"{_BIN} with `fit_dense` or `fit_denses`, `vocab.txt`",
    ),
    Published(
        "bert",
        "BERT-wwm",
        "`hfl/chinese-bert-wwm-ext`, `hfl/chinese-roberta-wwm-ext`",
        f"{_BIN}, `vocab.txt`, `tokenizer.json`; the second one is BERT too, by its `model_type`",
    ),
    Published("bert", "MacBERT", "`hfl/chinese-macbert-base`", f"{_BIN}, `vocab.txt`, `tokenizer.json`"),
    Published(
        "bert",
        "StructBERT",
        "`en_model` and `ch_model` of github.com/alibaba/AliceMind",
        "one file of weights without the prefix `bert.`, with `gamma` and `beta`; a configuration file, `vocab.txt`",
    ),
    Published(
        "ernie", "ERNIE (Baidu)", "`nghuyong/ernie-3.0-base-zh`, `nghuyong/ernie-2.0-base-en`", f"{_BIN}, `vocab.txt`"
    ),
    Published(
        "electra",
        "ELECTRA",
        "`google/electra-small-discriminator`, `google/electra-base-generator`",
        f"{_BIN}, `vocab.txt`, `tokenizer.json`",
    ),
    Published(
        "roberta", "RoBERTa", "`FacebookAI/roberta-base`", f"{_BOTH}, `vocab.json` and `merges.txt`, `tokenizer.json`"
    ),
    Published(
        "xlm-roberta", "XLM-R", "`FacebookAI/xlm-roberta-base`", f"{_BOTH}, `sentencepiece.bpe.model`, `tokenizer.json`"
    ),
    Published(
        "camembert", "CamemBERT", "`almanach/camembert-base`", f"{_BOTH}, `sentencepiece.bpe.model`, `tokenizer.json`"
    ),
    Published(
        "roberta-prelayernorm",
        "RoBERTa-PreLayerNorm",
        "`andreasmadsen/efficient_mlm_m0.40`",
        f"{_BOTH}, `vocab.json`, `merges.txt`, `tokenizer.json`",
    ),
    Published(
        "mpnet",
        "MPNet",
        "`microsoft/mpnet-base`, `sentence-transformers/all-mpnet-base-v2`",
        f"{_BOTH}, `vocab.txt`, `tokenizer.json`",
    ),
    Published(
        "distilbert", "DistilBERT", "`distilbert/distilbert-base-uncased`", f"{_BOTH}, `vocab.txt`, `tokenizer.json`"
    ),
    Published("mobilebert", "MobileBERT", "`google/mobilebert-uncased`", f"{_BIN}, `vocab.txt`, `tokenizer.json`"),
    Published(
        "squeezebert",
        "SqueezeBERT",
        "`squeezebert/squeezebert-uncased`, `squeezebert/squeezebert-mnli`",
        f"{_BIN}, `vocab.txt`, `tokenizer.json`",
    ),
    Published("albert", "ALBERT", "`albert/albert-base-v2`", f"{_BOTH}, `spiece.model`, `tokenizer.json`"),
    Published("modernbert", "ModernBERT", "`answerdotai/ModernBERT-base`", f"{_BOTH}, `tokenizer.json`"),
    Published("deberta", "DeBERTa", "`microsoft/deberta-base`", f"{_BIN}, `vocab.json` and `merges.txt`"),
    Published("deberta-v2", "DeBERTa v2", "`microsoft/deberta-v2-xlarge`", f"{_BIN}, `spm.model`"),
    Published(
        "deberta-v2", "DeBERTa v3", "`microsoft/deberta-v3-base`, `microsoft/deberta-v3-small`", f"{_BIN}, `spm.model`"
    ),
    Published("xlnet", "XLNet", "`xlnet/xlnet-base-cased`", f"{_BOTH}, `spiece.model`, `tokenizer.json`"),
    Published(
        "xlm",
        "XLM",
        "`FacebookAI/xlm-mlm-en-2048`, `FacebookAI/xlm-mlm-100-1280`",
        f"{_BOTH}, `vocab.json` and `merges.txt`; words are cut by Moses' rules first",
    ),
    Published("longformer", "Longformer", "`allenai/longformer-base-4096`", f"{_BOTH}, `vocab.json` and `merges.txt`"),
    Published(
        "ernie_thu",
        "ERNIE (Tsinghua)",
        "`ernie_base` of github.com/thunlp/ERNIE",
        f"{_BIN}, `ernie_config.json`, `vocab.txt`; the entity vectors are a second archive (`entity2vec.vec`, `entity2id.txt`)",
    ),
)
