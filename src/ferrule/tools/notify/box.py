"""`notify` as a project sets it up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ferrule.errors import SetupError
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.templates import texts_in
from ferrule.executors.variables import expand_variables
from ferrule.sources.function import tool_of
from ferrule.spec import Limits, Tool, ToolSpec
from ferrule.tools.notify.config import ChannelConfig, NotifyConfig
from ferrule.tools.notify.notifier import Notifier

NO_CHANNEL: Final = (
    'a channel to send messages by: write [tools.notify.channels.<name>] in ferrule.toml, with kind = "webhook", '
    '"email" or "log"'
)
OUTPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "sent": {"type": "boolean"},
        "channel": {"type": "string"},
        "path": {"type": "string", "description": "The file it was written to."},
        "refused": {"type": "object", "description": "Recipients the mail server does not take, and why."},
        "untrusted": {"type": "boolean", "description": "There are words of the mail server in it."},
    },
}
AFTERWARDS: Final = 5.0
"""Seconds beyond those for sending, to tell what came of it."""


def notify_tools(
    config: NotifyConfig | None = None,
    *,
    root: Path | None = None,
    guard: AddressGuard | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Tool]:
    """`notify`, ready if at least one of its channels is. Paths of logs and certificates start at `root`."""
    config = config or NotifyConfig()
    notifier = Notifier(config, root=root or Path(), guard=guard or AddressGuard(), environ=environ)
    made = tool_of(notifier.notify)
    return [replace(made, spec=_spec(made, config), needs=_needs(config, environ))]


def _spec(made: Tool, config: NotifyConfig) -> ToolSpec:
    """The tool's spec with what only the configuration knows: the channels, and the time they have."""
    [capability] = made.spec.capabilities
    schema = {**capability.schema, "properties": dict(capability.schema["properties"])}
    known = ", ".join(f"{name} ({channel.kind})" for name, channel in config.channels.items())
    if known:
        said = f"the channel to send it by: {known}" + ("; may be left out" if len(config.channels) == 1 else "")
        schema["properties"]["channel"] = {**schema["properties"]["channel"], "description": said}
    return replace(
        made.spec,
        capabilities=[replace(capability, parameters=schema, output=OUTPUT)],
        limits=Limits(timeout=config.timeout + AFTERWARDS),
    )


def _needs(config: NotifyConfig, environ: Mapping[str, str]) -> str:
    if not config.channels:
        return NO_CHANNEL
    lacking = {name: _lacks(channel, environ) for name, channel in config.channels.items()}
    if not all(lacking.values()):
        return ""
    return "; ".join(f"for the channel {name!r} {lack}" for name, lack in lacking.items())


def _lacks(channel: ChannelConfig, environ: Mapping[str, str]) -> str:
    """What a channel cannot be used without, in words."""
    if channel.kind == "email" and find_spec("aiosmtplib") is None:
        return "the package aiosmtplib: pip install 'ferrule[notify]'"
    try:
        for text in texts_in(asdict(channel)):
            expand_variables(text, environ)
    except SetupError as error:
        return str(error)
    return ""
