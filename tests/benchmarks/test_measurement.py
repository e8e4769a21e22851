import json

import pytest
from pydantic import ValidationError

from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.core.errors import InputError


def test_a_result_reads_back_what_it_wrote(result, tmp_path):
    path = tmp_path / "benchmark.json"
    result.write(path)
    assert BenchmarkResult.read(path) == result


def test_newer_files_of_the_same_major_schema_are_read(result, tmp_path):
    path = tmp_path / "benchmark.json"
    content = json.loads(result.model_dump_json())
    content["schema_version"] = "2.7"
    content["measurements"][0]["energy_mj"] = 3
    path.write_text(json.dumps(content))
    assert BenchmarkResult.read(path).measurements == result.measurements


@pytest.mark.parametrize("version", ["1.1", "", None])
def test_other_schemas_are_refused(result, tmp_path, version):
    path = tmp_path / "benchmark.json"
    content = json.loads(result.model_dump_json())
    content["schema_version"] = version
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"cannot be read; this version reads 2\.1"):
        BenchmarkResult.read(path)


def test_broken_files_name_the_place(result, tmp_path):
    path = tmp_path / "benchmark.json"
    content = json.loads(result.model_dump_json())
    del content["measurements"][0]["engine"]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"measurements\.0\.engine"):
        BenchmarkResult.read(path)
    path.write_text("[]")
    with pytest.raises(InputError, match="cannot be read"):
        BenchmarkResult.read(path)


def test_no_measurement_without_provenance(result):
    content = result.measurements[0].model_dump()
    del content["provenance"]
    with pytest.raises(ValidationError, match="provenance"):
        Measurement.model_validate(content)


def test_find_and_compare(result):
    assert result.find("student int8", 2, 16).threads == 2
    assert result.find("student int8", 3, 16) is None
    assert result.compare("student int8", 1, "text").length == "text"
    assert result.compare("teacher fp32", 1, "text") is None
