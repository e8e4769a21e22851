"""The Arm processors that QEMU's user mode emulates right, and the system files that describe them to a guest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CORES = 4
_BASE = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_DOTPROD = f"{_BASE} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"


@dataclass(frozen=True)
class Processor:
    """A processor.

    Attributes:
        name: QEMU's name of it.
        part: Its part number, as ``/proc/cpuinfo`` prints it.
        features: What the kernel lists for it: more than is emulated ends in an illegal instruction.
    """

    name: str
    part: str
    features: str


PROCESSORS = {
    one.name: one
    for one in (
        Processor("cortex-a53", "0xd03", _BASE),
        Processor("cortex-a72", "0xd08", _BASE),
        Processor("cortex-a76", "0xd0b", _DOTPROD),
        Processor("neoverse-n1", "0xd0c", _DOTPROD),
    )
}
DEFAULT = "cortex-a76"


def processor(name: str) -> Processor:
    """The processor of a name; the usual one without a name.

    Raises:
        ValueError: If it is unknown. `max` is refused: that of QEMU 7.2 computes int8 products wrongly, without an error.
    """
    found = PROCESSORS.get(name or DEFAULT)
    if found is None:
        why = "computes int8 models wrongly in QEMU 7.2, without an error" if name.startswith("max") else "is unknown"
        raise ValueError(f"the processor '{name}' {why}; allowed: {', '.join(PROCESSORS)}")
    return found


def write_system_files(one: Processor, root: Path, folder: Path) -> None:
    """Make a prefix for QEMU's ``-L``: the folders of an Arm system, and files that describe the processor.

    Without them a guest reads the files of this machine's own processor, and ONNX Runtime crashes (QEMU 7.2).

    Args:
        one: The processor.
        root: An unpacked Arm system.
        folder: An existing folder.
    """
    for entry in root.iterdir():
        if entry.name not in ("proc", "sys"):
            (folder / entry.name).symlink_to(entry.resolve())
    lines = [
        "BogoMIPS\t: 50.00",
        f"Features\t: {one.features}",
        "CPU implementer\t: 0x41",
        "CPU architecture: 8",
        "CPU variant\t: 0x1",
        f"CPU part\t: {one.part}",
        "CPU revision\t: 0",
    ]
    text = "".join("\n".join([f"processor\t: {n}", *lines, "", ""]) for n in range(CORES))
    system = folder / "sys" / "devices" / "system" / "cpu"
    system.mkdir(parents=True)
    (folder / "proc").mkdir()
    (folder / "proc" / "cpuinfo").write_text(text, encoding="utf-8")
    (system / "kernel_max").write_text(f"{CORES - 1}\n", encoding="utf-8")
    for name in ("possible", "present", "online"):
        (system / name).write_text(f"0-{CORES - 1}\n", encoding="utf-8")
