"""The steps that train the student: each stage of `distill`, with each seed, and the student that they end with.

`list_student_steps` names the settings and file contents that decide each step; the work itself is passed in by
`pocketbert.pipeline.steps`, whose steps these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pocketbert.core.recipe.recipe import Recipe
from pocketbert.pipeline.inputs import Inputs, section_settings
from pocketbert.pipeline.learn.transfer import TRANSFER, mixes_transfer
from pocketbert.pipeline.learn.vocabulary import VOCABULARY
from pocketbert.pipeline.run_folder import Step, StepPaths

TRAIN = ("torch", "transformers", "tokenizers", "accelerate", "numpy")
"""Distributions that decide trained weights."""
CORPUS, AUGMENTED = "corpus", "augmented"
"""Names of steps that training stages read from, and of their outputs."""


def list_student_steps(
    inputs: Inputs,
    seeds: Sequence[int],
    make_stage: Callable[[int, int, StepPaths], Sequence[str]],
    make_student: Callable[[StepPaths], Sequence[str]],
) -> list[Step]:
    """Return a training step for each stage of `distill` with each seed, and the step that scores the student.

    Args:
        inputs: The recipe with its models and files.
        seeds: Seeds of the trainings, the recipe's own first.
        make_stage: Function that trains a stage, given the stage's index and the seed.
        make_student: Function that writes the student's folder.
    """
    stages = [_list_stage_steps(inputs, seed, make_stage) for seed in seeds]
    pruned = [VOCABULARY] if inputs.recipe.prunes_vocabulary else []
    student = Step(
        name="student",
        title="student",
        output="student",
        settings={**inputs.student_settings(), **(inputs.training_settings() if len(seeds) > 1 else {})},
        contents=inputs.student_contents(),
        needs=("teacher", *(steps[-1].name for steps in stages), *pruned),
        make=make_student,
        libraries=TRAIN,
    )
    return [*(step for steps in stages for step in steps), student]


def _list_stage_steps(
    inputs: Inputs, seed: int, make_stage: Callable[[int, int, StepPaths], Sequence[str]]
) -> list[Step]:
    """Return a training step for each stage of the recipe's `distill` with one seed.

    A general stage reads plain text and the pre-trained model. The other stages read the task's teacher and rows.
    """
    recipe, steps = inputs.recipe, list[Step]()
    for number, stage in enumerate(recipe.distill):
        settings = {**inputs.student_settings(), "seed": seed, "distill": {str(number): section_settings(stage)}}
        settings |= inputs.training_settings() if stage.predicts else {}
        contents = inputs.student_contents()
        if stage.exported_format is not None:
            settings["files that it trains for"] = inputs.export_settings(stage.exported_format)
            settings |= inputs.calibration_settings()
        if stage.general:
            contents |= {"teacher.model": inputs.model.digest, **inputs.stage_digests(number)}
            if inputs.general_head is not None:
                settings["heads that the general stages train"] = inputs.general_head
            needs = [CORPUS]
        else:
            needs = ["teacher"]
            needs += [AUGMENTED] if stage.on_augmented else []
            needs += [TRANSFER] if mixes_transfer(recipe) and stage.is_taught(recipe.task) else []
            if recipe.data.mix is not None:
                settings["data"] = {"mix": section_settings(recipe.data.mix)}
            needs += [VOCABULARY] if recipe.prunes_vocabulary else []
        another = seed != recipe.seed
        step = Step(
            name=f"distill.{number}{f'.seed-{seed}' if another else ''}",
            title=f"distill.{number}, method {stage.method}{f', seed {seed}' if another else ''}",
            output=stage_folder(recipe, number, seed),
            settings=settings,
            contents=contents,
            needs=(*needs, *(before.name for before in steps[-1:])),
            make=partial(make_stage, number, seed),
            libraries=TRAIN,
            trains=True,
        )
        steps.append(step)
    return steps


def stage_folder(recipe: Recipe, number: int, seed: int) -> str:
    """Return the output folder of a `distill` stage, relative to the run folder.

    Args:
        recipe: The recipe.
        number: Index of the stage in `distill`.
        seed: Seed of the training; the recipe's own seed is not part of the folder's name.
    """
    return f"distill/{number}" if seed == recipe.seed else f"distill/seed-{seed}/{number}"
