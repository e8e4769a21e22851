"""Lets the script believe that it runs on a Mac; only tests put this folder on PYTHONPATH."""

import platform

platform.system = lambda: "Darwin"
platform.mac_ver = lambda: ("15.1", ("", "", ""), "arm64")
