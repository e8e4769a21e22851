"""All platforms by name."""

from __future__ import annotations

from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.pipeline.phone.platforms.android import Android
from pocketbert.pipeline.phone.platforms.ios import Ios
from pocketbert.pipeline.phone.platforms.platform import AppPlatform
from pocketbert.pipeline.phone.platforms.server import Server
from pocketbert.pipeline.phone.platforms.web import Web

PLATFORMS: dict[str, AppPlatform] = {p.name: p for p in (Android(), Ios(), Web(), Server())}


def platform_named(name: str) -> AppPlatform:
    """Find a platform.

    Raises:
        InputError: If there is none of this name.
    """
    if name not in PLATFORMS:
        raise InputError(Problem("--for", f"'{name}' is not a platform; {nearest(name, [*PLATFORMS])}."))
    return PLATFORMS[name]
