"""The forms of Ethos-U that Arm's compiler knows, and the clock rates and memories that it assumes around them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pocketbert.core.devices import DEVICES, VELA
from pocketbert.core.errors import nearest

NPUS = {
    **{f"ethos-u55-{macs}": ("Ethos_U55_High_End_Embedded", "Shared_Sram") for macs in (32, 64, 128, 256)},
    **{f"ethos-u65-{macs}": ("Ethos_U65_High_End", "Dedicated_Sram_384KB") for macs in (256, 512)},
    **{f"ethos-u85-{macs}": ("Ethos_U85_SYS_DRAM_Low", "Dedicated_Sram_384KB") for macs in (128, 256)},
    **{f"ethos-u85-{macs}": ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB") for macs in (512, 1024)},
    "ethos-u85-2048": ("Ethos_U85_SYS_DRAM_High", "Dedicated_Sram_384KB"),
}
"""System and memory mode that each is estimated with where none are named. The systems are those of Arm's ML Embedded Evaluation
Kit. It lets a dedicated SRAM have any size; 384 kB is what vela takes by default."""
SYSTEMS = {
    "Ethos_U55_Deep_Embedded": False,
    "Ethos_U55_High_End_Embedded": False,
    "Ethos_U65_Embedded": False,
    "Ethos_U65_Mid_End": True,
    "Ethos_U65_High_End": True,
    "Ethos_U65_Client_Server": True,
    "Ethos_U85_SYS_Flash_Low": False,
    "Ethos_U85_SYS_Flash_High": False,
    "Ethos_U85_SYS_DRAM_Low": True,
    "Ethos_U85_SYS_DRAM_Mid": True,
    "Ethos_U85_SYS_DRAM_High": True,
}
"""Systems of vela's ``Arm/vela.ini``, and whether they have DRAM; the others have flash, which nothing is written to."""
DEDICATED = "Dedicated_Sram"
MEMORY_MODES = (
    "Sram_Only",
    "Shared_Sram",
    DEDICATED,
    f"{DEDICATED}_256KB",
    f"{DEDICATED}_384KB",
    f"{DEDICATED}_512KB",
)
"""Memory modes of the same file."""


@dataclass(frozen=True)
class VelaTarget:
    """What is compiled for.

    Attributes:
        npu: The NPU, as vela calls it.
        system: Its system configuration.
        memory: Its memory mode.
    """

    npu: str
    system: str
    memory: str

    @property
    def words(self) -> str:
        """For tables."""
        return f"Arm {self.npu.replace('ethos-u', 'Ethos-U')} with {self.system}, {self.memory}"


def vela_target(argument: str) -> VelaTarget:
    """Read what follows ``vela:``, such as ``ethos-u55-128`` or ``ethos-u85-256@Ethos_U85_SYS_Flash_High+Sram_Only``.

    Raises:
        ValueError: If vela knows no such NPU, system or memory mode, or they do not go together.
    """
    given = re.fullmatch(DEVICES[VELA].pattern, argument, re.ASCII)
    assert given is not None  # names of devices are checked when they are read
    npu, system, memory = given["npu"], given["system"], given["memory"]
    if npu not in NPUS:
        raise ValueError(f"unknown configuration '{npu}'; {nearest(npu, list(NPUS))}")
    if system is None:
        return VelaTarget(npu, *NPUS[npu])
    fitting = [name for name in SYSTEMS if name.startswith(f"Ethos_{npu.split('-')[1].upper()}_")]
    if system not in fitting:
        raise ValueError(f"'{system}' is no system of {npu}; {nearest(system, fitting)}")
    if memory not in MEMORY_MODES:
        raise ValueError(f"unknown memory mode '{memory}'; {nearest(memory, list(MEMORY_MODES))}")
    if memory.startswith(DEDICATED) and not SYSTEMS[system]:
        raise ValueError(
            f"'{memory}' keeps activations outside of the SRAM, and {system} has nothing to write to there; "
            "allowed: Sram_Only, Shared_Sram"
        )
    return VelaTarget(npu, system, memory)
