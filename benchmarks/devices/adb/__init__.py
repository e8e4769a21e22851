"""The device `adb`: an Android phone, measured by executables of LiteRT and ONNX Runtime that the user supplies."""
