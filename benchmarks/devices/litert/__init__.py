"""The device `litert-npu`: TFLite files compiled ahead of time by LiteRT's plug-ins of the vendors."""
