"""XLM."""

from __future__ import annotations

from pocketbert.core.families.config import MAX_LAYERS
from pocketbert.core.families.family import (
    IDS_MASK,
    ONE_SEGMENT,
    ExportForm,
    Family,
    GraphInput,
    Meaning,
    TokenizerKind,
)

_LANGUAGE = ExportForm(
    "language",
    "The language of the text is an input, from the data column language.",
    (
        GraphInput(
            "langs",
            "language",
            Meaning.LANGUAGE,
            "Number of the text's language, the same at each token.",
            count_key="n_langs",
            names_key="lang2id",
        ),
    ),
    needs={"n_langs": (1, 2), "use_lang_emb": (1, 1)},
)

ROWS = (
    Family(
        name="xlm",
        title="XLM",
        model_types=("xlm",),
        classes="XLM",
        tokenizer=TokenizerKind.WORD_BPE,
        inputs=IDS_MASK,
        layer_path="transformer.layer_norm2",
        layer_lists=("transformer.attentions", "transformer.layer_norm1", "transformer.ffns"),
        head_suffixes={"ForQuestionAnswering": "ForQuestionAnsweringSimple", "ForMaskedLM": "WithLMHeadModel"},
        lm_head="pred_layer",
        largest={"emb_dim": 1 << 14, "n_layers": MAX_LAYERS, "n_heads": MAX_LAYERS, "n_langs": 1 << 10},
        fixed={
            "causal": False,
            "asm": False,
            "is_encoder": True,
            "summary_proj_to_labels": True,
            "summary_use_proj": True,
        },
        invalid_tasks={"multiple-choice": "its class reads the numbers of a classifier instead of the pooled state"},
        limits=(
            ONE_SEGMENT,
            "files of the form text, and training, take config.json's lang_id as the language of all tokens, where the "
            "model has several; transformers adds no language where langs is missing",
            "token types are not passed: XLM would add the embedding of the word with the number of the type",
            "words are split by Moses' rules for English, whatever the language, as XLMTokenizer does without lang; "
            "Chinese, Japanese and Thai words need other programs",
            "tokenizer.json differs from XLMTokenizer where an accent is a separate character, at a capital sigma that "
            "ends a word, at digits around a no-break space, at several commas or periods behind a quotation mark, and "
            "at letters that are newer than sacremoses",
            "of a pair that is too long, the longer text keeps the odd token, or the second of two equally long ones, as "
            "with every tokenizer.json; XLMTokenizer always gives it to the first",
            "question answering takes XLMForQuestionAnsweringSimple; the beam search of XLMForQuestionAnswering is not "
            "computed",
            "its feed-forward part is always four times as wide as the model: student.intermediate has no effect there "
            "and is refused, and so is student.init: pruned",
        ),
        capture="self-attention",
        adapter="language-encoder",
        checkpoints="xlm",
        forms=(_LANGUAGE,),
        tiny={"emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "pad_token_id": 2},
    ),
)
