"""`browser_navigator` as a project sets it up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec

from ferrule.errors import SetupError
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.sources.function import tool_of
from ferrule.spec import Tool
from ferrule.tools.browser.chromium import VARIABLE, find_chromium
from ferrule.tools.browser.navigator import PATIENCE, BrowserNavigator


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserConfig:
    chromium: str | None = None
    """The program to run; none: the first of the system's."""
    patience: float = PATIENCE
    """Seconds an element may take to appear."""


def browser_tools(
    config: BrowserConfig | None = None, *, guard: AddressGuard | None = None, environ: Mapping[str, str] = os.environ
) -> list[Tool]:
    config = config or BrowserConfig()
    program = config.chromium or environ.get(VARIABLE)
    navigator = BrowserNavigator(guard=guard, chromium=program, patience=config.patience)
    return [replace(tool_of(navigator), needs=_needs(program))]


def _needs(program: str | None) -> str:
    if find_spec("playwright") is None:
        return "the package playwright: pip install 'ferrule[browser]'"
    try:
        find_chromium(program)
    except SetupError as error:
        return f"a browser. {error}"
    return ""
