"""Devices that models are measured on: the protocol, the registry, one module per device.

A package brings a device of its own with `register_device`; what it must implement is `Connection` and `OpenedFile`.
"""

from pocketbert.benchmarks.devices.protocol import (
    Burst,
    Compiled,
    Compiler,
    Connection,
    Device,
    OpenedFile,
    Sample,
    Watch,
)
from pocketbert.benchmarks.devices.table import connect, device, probe, refusals, register_device, unregister_device

__all__ = [
    "Burst",
    "Compiled",
    "Compiler",
    "Connection",
    "Device",
    "OpenedFile",
    "Sample",
    "Watch",
    "connect",
    "device",
    "probe",
    "refusals",
    "register_device",
    "unregister_device",
]
