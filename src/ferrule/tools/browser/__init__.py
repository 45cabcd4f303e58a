"""A browser as a tool: `library.register(BrowserNavigator())`."""

from ferrule.tools.browser.navigator import BrowserNavigator

__all__ = ["BrowserNavigator"]
