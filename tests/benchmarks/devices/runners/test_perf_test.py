"""What ONNX Runtime's tool prints and writes, in the formats of its sources and of published logs."""

import pytest

from pocketbert.benchmarks.devices.runners import read_perf_test, read_printed
from support.runner_texts import PRINTED, RESULTS


def test_what_it_prints():
    told = read_printed(PRINTED)
    assert (told.count, told.session_s, told.first_ms, told.peak_rss_bytes) == (5, 0.217932, 196, 271122432)
    assert told.mean_ms == 98.961997
    assert [told.min_ms, told.p50_ms, told.p90_ms, told.p99_ms, told.max_ms] == pytest.approx(
        [95.8204, 99.5086, 101.519, 101.519, 101.519]
    )


def test_what_it_does_not_print_is_absent():
    short = PRINTED.partition("Avg CPU usage:11")[0]
    told = read_printed(short)
    assert (told.count, told.p50_ms, told.p90_ms, told.min_ms) == (5, None, None, None)
    old = "Total time cost:58.8053\nTotal iterations:1000\nAverage time cost:58.8053 ms\nTotal run time:58.8102 s\n"
    told = read_printed(old + "Min Latency is 0.0559777 sec\nP50 Latency is 0.0587108sec\nP999 Latency is 0.06sec\n")
    assert (told.count, told.mean_ms, told.session_s, told.first_ms) == (1000, 58.8053, None, None)
    assert told.p50_ms == pytest.approx(58.7108)


@pytest.mark.parametrize("end", ["Average", "Peak working set size: ", "P999"])
def test_a_text_that_is_cut_short(end):
    with pytest.raises(ValueError, match="cut short"):
        read_printed(PRINTED.partition(end)[0])


def test_results_of_onnx_runtime():
    assert read_perf_test(RESULTS) == pytest.approx([1.83404, 1.90312, 0.015])
    assert read_perf_test("a,b.onnx,0.5,1,2,0\n") == [500]  # a name with a comma


@pytest.mark.parametrize(
    "text", ["", "there is no test data for model x\n", RESULTS.replace(",96,1", ",96,7"), "m,soon,1,2,0\n"]
)
def test_results_of_onnx_runtime_that_are_none(text):
    with pytest.raises(ValueError, match=r"onnxruntime_perf_test (reports no inference|wrote a line)"):
        read_perf_test(text)


def test_results_of_newer_versions_and_of_several_runs():
    newer = "model,0.0015,0.00183404,36696064,96,0\nmodel,0.0015,0.00190312,36696064,96,1\n"
    assert read_perf_test(newer) == pytest.approx([1.83404, 1.90312])
    with pytest.raises(ValueError, match="it holds 2 runs of onnxruntime_perf_test"):
        read_perf_test(RESULTS + RESULTS)
