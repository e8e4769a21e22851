"""A device for the tests of this folder."""

import pytest

from support import adb_device


@pytest.fixture(scope="session")
def phone(tmp_path_factory):
    """A device; tests that end it start another one."""
    why_not = adb_device.missing()
    if why_not:
        pytest.skip(why_not)
    running = adb_device.start(tmp_path_factory.mktemp("phone"))
    yield running
    running.stop()
