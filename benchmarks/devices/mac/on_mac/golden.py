"""Read the golden rows of an artefact folder."""

from __future__ import annotations

import json
from pathlib import Path


class Golden:
    """Golden rows of the folder: real token ids to measure with, and the answers that the packages should give."""

    def __init__(self, folder: Path) -> None:
        def lines(name: str) -> list[str]:
            path = folder / name
            # not splitlines(): texts may hold the line separators that JSON does not escape
            return path.read_text(encoding="utf-8").strip().split("\n") if path.is_file() else []

        listed = json.loads("".join(lines("artifacts.json")) or "{}")
        processing = listed.get("processing", {})
        prompt = (processing.get("prompts") or {}).get(processing.get("default_prompt"), "")

        def as_tokenized(text: str | list[str]) -> str:
            # golden_tokens.jsonl has what the tokenizer gets: the default prompt is in front of the (first) text
            return json.dumps(prompt + text if isinstance(text, str) else [prompt + text[0], *text[1:]])

        self.tokens = {json.dumps(r["text"]): r for r in map(json.loads, lines("golden_tokens.jsonl"))}
        keyed = [(self.tokens.get(as_tokenized(r["text"])), r) for r in map(json.loads, lines("golden.jsonl"))]
        self.extra = sorted({n for r in self.tokens.values() for n in r.get("inputs", {})})  # made of other columns
        self.rows = [(tokens, r) for tokens, r in keyed if tokens is not None]
        self.listed = {r["path"]: r["sha256"] for r in listed.get("files", [])}
        self.left = processing.get("padding_side") == "left"
        self.pad_id = json.loads("".join(lines("config.json")) or "{}").get("pad_token_id") or 0
        added = json.loads("".join(lines("tokenizer.json")) or "{}").get("added_tokens") or []
        added = added if listed.get("task") == "fill-mask" else []  # whose rows record masked tokens alone
        self.masks = {token["id"] for token in added if token["content"] in ("[MASK]", "<mask>")}
        single = [r["ids"] for r in self.tokens.values() if isinstance(r["text"], str) and len(r["ids"]) > 2]
        self._inner = [i for ids in single for i in ids[1:-1]] or list(range(1, 91))
        self._ends = (single[0][0], single[0][-1]) if single else (1, 1)
        self.inputs = "tokens of the golden rows" if single else "ids 1 to 90: no golden_tokens.jsonl here"

    def of_length(self, length: int) -> list[int]:
        """Exactly this number of ids: the golden texts joined between the first one's special tokens."""
        inner = (self._inner * (length // len(self._inner) + 1))[: max(0, length - 2)]
        return [self._ends[0], *inner, self._ends[1]][:length]
