"""`notify`: telling people something."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from ferrule.call import DefaultTimeout, ToolExecutionContext
from ferrule.errors import ExecutionFailed, Retry, SetupError
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.names import did_you_mean
from ferrule.sources.tool_options import tool
from ferrule.spec import ToolCategory
from ferrule.tools.notify.config import NotifyConfig
from ferrule.tools.notify.lines import Lines
from ferrule.tools.notify.mail import Mail
from ferrule.tools.notify.notice import Level, Notice
from ferrule.tools.notify.webhook import Webhook

SHARE: Final = 0.8
"""Of the time a caller gives, for the sending: the rest is for saying what came of it."""


class Sender(Protocol):
    """Sends a notice within some seconds; what it gives is told to the caller."""

    async def send(self, notice: Notice, seconds: float) -> dict[str, Any]: ...


class Notifier:
    """The channels of a project."""

    def __init__(self, config: NotifyConfig, *, root: Path, guard: AddressGuard, environ: Mapping[str, str]) -> None:
        self._config, self._root, self._guard, self._environ = config, root, guard, environ

    # Neither read-only nor idempotent, and so never tried again by itself: people would be told twice.
    @tool(
        category=ToolCategory.NOTIFICATION,
        tags=["notify", "message", "alert", "email", "webhook", "通知", "消息", "提醒", "邮件"],
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
        """Tell people something: by chat, by mail or in a log, as the project has set it up. 向相关人员发送通知。

        Who gets it is settled by the channel. Each call sends the message once.

        Args:
            message: what people shall know, in plain text
            title: what it is about, in a few words
            channel: the channel to send it by
            level: how urgent it is
        """
        name = self._chosen(channel)
        notice = Notice.of(message, title, level)
        try:
            said = await self._sender(name).send(notice, self._seconds(context))
        except SetupError as error:
            raise ExecutionFailed(f"The channel {name!r} is not set up: {error}. Nothing was sent.") from error
        return {"sent": True, "channel": name, **said}

    def _chosen(self, channel: str | None) -> str:
        known = list(self._config.channels)
        if channel is None and len(known) == 1:
            return known[0]
        if channel is not None and channel in known:
            return channel
        listed = ", ".join(known)
        if channel is None:
            raise Retry(f"Say which channel to use: {listed}.")
        raise Retry(f"There is no channel {channel!r}.{did_you_mean(channel, known)} The channels are: {listed}.")

    def _sender(self, name: str) -> Sender:
        config = self._config.channels[name]
        if config.kind == "webhook":
            return Webhook(name, config, self._guard, self._environ)
        if config.kind == "email":
            return Mail(name, config, self._root, self._environ)
        return Lines(name, config, self._root)

    def _seconds(self, context: ToolExecutionContext | None) -> float:
        if context is None or isinstance(context.timeout, DefaultTimeout):
            return self._config.timeout
        return min(self._config.timeout, SHARE * context.timeout)
