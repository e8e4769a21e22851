"""Devices that FAKE_IPHONES names, comma-separated; fields, states and errors as in coremltools 9.0."""

import os
from dataclasses import dataclass, replace
from enum import Enum


@dataclass(frozen=True)
class AppSigningCredentials:
    development_team: str | None = ""
    provisioning_profile_uuid: str | None = None
    bundle_identifier: str | None = None


class DeviceType(Enum):
    MAC = "mac"
    IPHONE = "iphone"


class DeviceState(Enum):
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"


@dataclass(frozen=True)
class Device:
    name: str
    type: DeviceType
    identifier: str
    udid: str
    os_version: str
    os_build_number: str
    developer_mode_state: str
    state: DeviceState
    session: object | None

    @staticmethod
    def get_connected_devices(device_type):
        names = [n for n in os.environ.get("FAKE_IPHONES", "").split(",") if n]
        ids = enumerate(names)
        state = DeviceState.CONNECTED
        return [Device(n, device_type, f"id{i}", f"udid{i}", "26.1", "23B85", "enabled", state, None) for i, n in ids]

    async def prepare_for_model_debugging(self, credentials=None, working_directory=None, clean=False):
        if not (credentials.development_team or credentials.provisioning_profile_uuid):
            raise ValueError("Invalid signing credentials")
        return replace(self, session=object())
