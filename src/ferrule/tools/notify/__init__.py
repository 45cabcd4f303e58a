"""Telling people something: `library.register(*notify_tools(NotifyConfig(channels={…})))`."""

from ferrule.tools.notify.box import notify_tools
from ferrule.tools.notify.config import ChannelConfig, NotifyConfig

__all__ = ["ChannelConfig", "NotifyConfig", "notify_tools"]
