"""Options that several commands share, each named as its recipe key or as the Hugging Face tools name it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipe = Annotated[str, typer.Argument(help="Recipe file, or the name of a shipped one (`pocketbert recipes ls`).")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Recipe keys to set, e.g. seed=3 data.train.path=my.jsonl."),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")]
OptionalOutput = Annotated[Path | None, typer.Option("-o", "--output", help="Run folder; default runs/NAME.")]
Model = Annotated[
    str, typer.Option("-m", "--model", help="Model folder, Hub name, or 'minilm-l6'. (recipe: teacher.model)")
]
Folder = Annotated[Path, typer.Option("-m", "--model", help="Artefact folder.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of every random choice. (recipe: seed)")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace results made with other settings.")]
ResumeAnyway = Annotated[
    bool, typer.Option("--resume-anyway", help="Take what other library versions made as it is; it is recorded.")
]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON on stdout.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Text = Annotated[str, typer.Option("--text", help="Column of the text. (recipe: data.eval.text)")]
TextPair = Annotated[
    str | None, typer.Option("--text-pair", help="Column of the second text. (recipe: data.eval.text_pair)")
]
Label = Annotated[str, typer.Option("--label", help="Column of the label. (recipe: data.eval.label)")]
