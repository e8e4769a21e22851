"""A device that runs nothing: it counts instructions as an emulator does, and its times are nonsense."""

from pocketbert.benchmarks.devices import Device, Sample
from pocketbert.benchmarks.load import Load
from pocketbert.core.devices import DeviceInfo, Figure
from pocketbert.core.host.hardware import Machine
from pocketbert.core.types import Format, Provenance

NAME = "dummy"
NONSENSE_MS = 987654.0
"""What its samples call wall time; must be shown nowhere."""
MACHINE = Machine(cpu="Dummy A76", arch="aarch64", isa=["asimddp"], cores=4, system="none", python="none")


class CountingFile:
    engine, engine_version = "counter", "7"

    def __init__(self, file):
        self._per_token = file.path.stat().st_size

    def prepare(self, feeds):
        def burst(numbers):
            tokens = [feeds[n % len(feeds)]["input_ids"].shape[1] for n in numbers]
            return [Sample(NONSENSE_MS, NONSENSE_MS, float(self._per_token * t)) for t in tokens]

        return burst


class CountingWatch:
    def stop(self):
        return Load(before=None, after=None, others=None, thermal="cool")


class CountingConnection:
    method = "Instructions are counted."

    def __init__(self, argument):
        self.argument, self.opened, self.closed = argument, [], False

    def machine(self):
        return MACHINE

    def versions(self):
        return {"counter": "7"}

    def lengths(self, file):
        return ()

    def cold_start(self, file, ids, threads, profile_runs):
        return None

    def open(self, file, threads):
        self.opened.append((file.path.name, threads))
        return CountingFile(file)

    def watch(self):
        return CountingWatch()

    def close(self):
        self.closed = True


def counting_device(made):
    """The device; every connection to it is appended to `made`."""

    def connect(argument):
        made.append(CountingConnection(argument))
        return made[-1]

    info = DeviceInfo(
        NAME,
        {Figure.GUEST_INSTRUCTIONS: Provenance.EMULATED},
        "a counter in this process",
        argument="CPU",
        optional=True,
    )
    return Device(info, connect, lambda format, _: "" if format is Format.ONNX else "it takes ONNX only")
