"""A browser as a tool: `library.register(BrowserNavigator())`."""

from ferrule_tools.browser.navigator import BrowserConfig, BrowserNavigator, browser_tools

__all__ = ["BrowserConfig", "BrowserNavigator", "browser_tools"]
