import pytest

from pocketbert.benchmarks.devices.table import DEVICES, device
from pocketbert.core.errors import InputError
from pocketbert.core.types import Provenance


def test_the_known_devices_measure():
    assert [d.name for d in DEVICES] == ["local", "coreml"]
    assert device("coreml").provenance is Provenance.MEASURED
    assert device("local").provenance is Provenance.MEASURED


def test_an_unknown_device_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'local'"):
        device("locla")
