"""`notify`: sends a message to people through a channel that the project has configured."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ferrule.core.call import ToolExecutionContext
from ferrule.core.content import encode_json
from ferrule.core.names import did_you_mean
from ferrule.core.spec import Tool, ToolCategory
from ferrule.core.variables import expand_variables, find_strings
from ferrule.errors import ExecutionFailed, Retry, SetupError
from ferrule.http.guard import AddressGuard
from ferrule.kinds.function.decorator import tool
from ferrule.kinds.function.tools import tool_of
from ferrule_tools._tool_setup import configure_tool, describe_missing_package, describe_needs, limit_seconds
from ferrule_tools.files.path_rules import Parts
from ferrule_tools.files.workspace import Workspace, convert_file_errors, display_path
from ferrule_tools.notify.channels import EmailChannel, WebhookChannel
from ferrule_tools.notify.config import ChannelConfig, Level, Notice, NotifyConfig

logger = logging.getLogger("ferrule.notify")

NO_CHANNEL: Final = (
    'a channel to send messages by: write [tools.notify.channels.<name>] in ferrule.toml, with kind = "webhook", '
    '"email" or "log"'
)
_OUTPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "sent": {"type": "boolean"},
        "channel": {"type": "string"},
        "path": {"type": "string", "description": "The file it was written to."},
        "refused": {"type": "object", "description": "Recipients that the mail server refused, and why."},
        "untrusted": {"type": "boolean", "description": "It contains text from the mail server."},
    },
}
_EXTRA_TIME: Final = 5.0
"""Seconds beyond those for sending, to report the outcome."""
_SENDING_SHARE: Final = 0.8
"""The share of the caller's timeout for sending; the rest is for reporting the outcome."""
_LOG_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def notify_tools(
    config: NotifyConfig | None = None,
    *,
    root: Path | None = None,
    guard: AddressGuard | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Tool]:
    """Return `notify`, ready if at least one channel is ready. Paths of logs and certificates start at `root`."""
    config = config or NotifyConfig()
    notifier = Notifier(config, root=root or Path(), guard=guard or AddressGuard(), environ=environ)
    missing = {name: _describe_missing_settings(channel, environ) for name, channel in config.channels.items()}
    parameters = {}
    if config.channels:
        listed = ", ".join(f"{name} ({channel.kind})" for name, channel in config.channels.items())
        optional = "; may be left out" if len(config.channels) == 1 else ""
        parameters["channel"] = {"description": f"the channel to send it by: {listed}{optional}"}
    return [
        configure_tool(
            tool_of(notifier.notify),
            output=_OUTPUT,
            timeout=config.timeout + _EXTRA_TIME,
            parameters=parameters,
            needs=describe_needs(missing, "channel", NO_CHANNEL),
        )
    ]


def _describe_missing_settings(channel: ChannelConfig, environ: Mapping[str, str]) -> str:
    """Return what is missing before a channel can be used; an empty text if nothing."""
    if channel.kind == "email" and (missing := describe_missing_package("aiosmtplib", "notify")):
        return missing
    try:
        for text in find_strings(asdict(channel)):
            expand_variables(text, environ)
    except SetupError as error:
        return str(error)
    return ""


class Notifier:
    """The channels of a project."""

    def __init__(self, config: NotifyConfig, *, root: Path, guard: AddressGuard, environ: Mapping[str, str]) -> None:
        self._config, self._root, self._guard, self._environ = config, root, guard, environ

    # Neither read-only nor idempotent, so it is never retried automatically: people would get the message twice.
    @tool(
        category=ToolCategory.NOTIFICATION,
        tags=["notify", "send", "message", "alert", "email", "slack", "webhook", "通知", "消息", "提醒", "邮件"],
        examples=[
            {"message": "The nightly backup has finished."},
            {"message": "磁盘空间不足 5%", "title": "服务器 web-1", "level": "warning"},
        ],
    )
    async def notify(
        self,
        message: str,
        title: str | None = None,
        channel: str | None = None,
        level: Level = "info",
        context: ToolExecutionContext | None = None,
    ) -> dict[str, Any]:
        """Notify people by chat, by mail or in a log, as the project has configured it. 向相关人员发送通知。

        The channel determines the recipients. Each call sends the message once.

        Args:
            message: what people should know, in plain text
            title: what it is about, in a few words
            channel: the channel to send it by
            level: how urgent it is
        """
        name = self._choose_channel_name(channel)
        notice = Notice.of(message, title, level)
        seconds = limit_seconds(context, self._config.timeout, _SENDING_SHARE)
        try:
            details = await self._build_channel(name).send(notice, seconds)
        except SetupError as error:
            raise ExecutionFailed(f"The channel {name!r} is not set up: {error}. Nothing was sent.") from error
        return {"sent": True, "channel": name, **details}

    def _choose_channel_name(self, channel: str | None) -> str:
        names = list(self._config.channels)
        if channel is None and len(names) != 1:
            raise Retry(f"Say which channel to use: {', '.join(names)}.")
        name = channel or names[0]
        if name not in names:
            raise Retry(
                f"There is no channel {name!r}.{did_you_mean(name, names)} The channels are: {', '.join(names)}."
            )
        return name

    def _build_channel(self, name: str) -> WebhookChannel | EmailChannel | LogChannel:
        config = self._config.channels[name]
        if config.kind == "webhook":
            return WebhookChannel(name, config, self._guard, self._environ)
        if config.kind == "email":
            return EmailChannel(name, config, self._root, self._environ)
        return LogChannel(name, config, self._root)


class LogChannel:
    """Writes each notice as one line of JSON, to the end of a file or to the logger `ferrule.notify`."""

    def __init__(self, name: str, config: ChannelConfig, root: Path) -> None:
        self._name, self._path, self._root = name, config.path, root

    async def send(self, notice: Notice, seconds: float) -> dict[str, Any]:
        line = encode_json(
            {
                "time": notice.created_at.isoformat(timespec="milliseconds"),
                "level": notice.level,
                "channel": self._name,
                "title": notice.title,
                "message": notice.message,
            }
        )
        if not self._path:
            _log_line(_LOG_LEVELS[notice.level], line.decode())
            return {}
        workspace = Workspace.at(self._root, protected=(), secret=())  # the user has chosen the path
        parts = workspace.file_parts(self._path)
        _append_line(workspace, parts, line + b"\n")
        return {"path": display_path(parts)}


def _log_line(level: int, line: str) -> None:
    # Without any logging set up, Python writes warnings and errors to the standard error.
    uses_last_resort = logging.lastResort is not None and level >= logging.lastResort.level
    if not (logger.isEnabledFor(level) and (logger.hasHandlers() or uses_last_resort)):
        raise ExecutionFailed(
            f"The logger 'ferrule.notify' has no handler for level {logging.getLevelName(level)}: set up logging, or "
            "give the channel a path in the configuration. Nothing was written."
        )
    logger.log(level, "%s", line)


def _append_line(workspace: Workspace, parts: Parts, line: bytes) -> None:
    """Append a line with a single write, so that lines of concurrent writers stay whole."""
    with workspace.open_folder(parts[:-1], create=True) as folder, convert_file_errors(parts):
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(parts[-1], flags, 0o600, dir_fd=folder)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise ExecutionFailed(
                    f"{display_path(parts)!r} is not a plain file: nothing was written. Set another path."
                )
            # If a full disk once cut a line short, this line still starts on a new line.
            ends_with_newline = status.st_size == 0 or os.pread(file, 1, status.st_size - 1) == b"\n"
            data = line if ends_with_newline else b"\n" + line
            if os.write(file, data) != len(data):
                raise ExecutionFailed(
                    f"Only a part of the line was written to {display_path(parts)!r}: is the disk full?"
                )
        finally:
            os.close(file)
