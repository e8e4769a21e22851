"""What int8 products are on this CPU where an engine is not told to add in 32 bits."""

from __future__ import annotations

from pocketbert.core.host.hardware import machine

SATURATES = not {"avx512_vnni", "avx_vnni", "asimd"} & {*machine().isa}
"""Whether they saturate, as on x86 without VNNI, in OpenVINO and in ONNX Runtime's sessions with default settings."""
