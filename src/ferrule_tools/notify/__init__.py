"""Notifications for people: `library.register(*notify_tools(NotifyConfig(channels={…})))`."""

from ferrule_tools.notify.config import ChannelConfig, NotifyConfig
from ferrule_tools.notify.notify import notify_tools

__all__ = ["ChannelConfig", "NotifyConfig", "notify_tools"]
