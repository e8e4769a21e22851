"""Counts of instructions repeat within 0.5 % between two emulators, and other work is another count."""

import numpy as np
import pytest

WITHIN = 0.005


@pytest.mark.slow
def test_the_total_of_thirty_inferences_repeats_and_other_work_does_not(tools, files, script):
    program = script("arm64_totals")

    def feed(tokens):
        ids = np.array([[2, 7, 8, 9, 3, *[5] * (tokens - 5)]])
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    counted = [(files[1].file, feed(16)), (files[1].file, feed(20)), (files[0].file, feed(16))]
    first, second = (program.totals("qemu-arm64:neoverse-n1", counted) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert program.apart([one, other]) < WITHIN
    assert program.apart([first[0], second[1]]) > WITHIN  # four tokens more
    assert program.apart([first[0], second[2]]) > WITHIN  # another file
    [more] = program.totals("qemu-arm64:neoverse-n1", counted[:1], inferences=31)
    assert program.apart([first[0], more]) > WITHIN


def test_totals_that_differ_by_half_a_percent_are_apart(script):
    program = script("arm64_totals")
    assert program.apart([1000, 1000, 1004]) < WITHIN < program.apart([1000, 1006, 1001])
