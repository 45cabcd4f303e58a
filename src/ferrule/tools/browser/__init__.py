"""A browser as a tool: `library.register(BrowserNavigator())`."""

from ferrule.tools.browser.box import BrowserConfig, browser_tools
from ferrule.tools.browser.navigator import BrowserNavigator

__all__ = ["BrowserConfig", "BrowserNavigator", "browser_tools"]
