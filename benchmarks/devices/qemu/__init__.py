"""The device `qemu-arm64`: an emulated Arm processor, for answers and counts of instructions, never for times."""
