"""Learned ranges are found by a product's weights, in whatever orientation and precision a file holds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pocketbert.core.families.weight_records import (
    LearnedRanges,
    ProductRanges,
    product_fingerprint,
    read_learned_ranges,
    write_learned_ranges,
)
from pocketbert.core.types import Format, Runtime, Scheme

WEIGHT = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def learned() -> LearnedRanges:
    products = {product_fingerprint(WEIGHT): ProductRanges(inputs=(-1.0, 2.0))}
    return LearnedRanges(scheme=Scheme.A8W8, format=Format.ONNX, products=products)


def test_orientation_precision_and_empty_axes_make_no_difference() -> None:
    for other in (WEIGHT.T, WEIGHT.astype(np.float16), WEIGHT[:, :, None, None], np.asfortranarray(WEIGHT)):
        assert learned().of(other).inputs == (-1.0, 2.0)
    changed = WEIGHT.copy()
    changed[0, 0] += 0.01
    assert learned().of(changed).inputs is None
    assert learned().of(WEIGHT[::-1]).inputs is None


def test_a_folder_keeps_the_ranges_of_its_scheme(tmp_path: Path) -> None:
    assert read_learned_ranges(tmp_path, Scheme.A8W8) is None
    write_learned_ranges(tmp_path, learned())
    assert read_learned_ranges(tmp_path, Scheme.A8W8) == learned()
    assert read_learned_ranges(tmp_path, Scheme.W4) is None, "another scheme has other ranges"
    assert read_learned_ranges(tmp_path, Scheme.A8W8, Runtime.NPU) is None, "and so has the file for a runtime"
