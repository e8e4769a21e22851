"""The device `qnn-host`: Qualcomm's NPU without a phone, by the compiler and the emulator of the vendor's package."""
