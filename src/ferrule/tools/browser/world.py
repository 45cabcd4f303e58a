"""Reading a page with scripts of ours, in a world that the page's own scripts cannot reach.

There `document.querySelectorAll` is what the browser made it, however the page has changed its own, and a script that
takes too long is ended by the browser.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page

NAME: Final = "ferrule"
LONGEST: Final = 5_000
"""Milliseconds a script may take."""


class World:
    """Runs scripts of ours on one page."""

    def __init__(self, page: Page, session: CDPSession) -> None:
        self._page, self._session = page, session

    @classmethod
    async def of(cls, context: BrowserContext, page: Page) -> World:
        return cls(page, await context.new_cdp_session(page))

    async def run(self, function: str, *arguments: Any) -> Any:
        """What a JavaScript function returns, as JSON."""
        from playwright.async_api import Error

        try:
            return await self._run(function, arguments)
        except Error as error:
            if "context" not in str(error).lower():
                raise
            # The page was just going over to another one.
            await self._page.wait_for_load_state("domcontentloaded")
            return await self._run(function, arguments)

    async def _run(self, function: str, arguments: tuple[Any, ...]) -> Any:
        tree = await self._session.send("Page.getFrameTree")
        world = await self._session.send(
            "Page.createIsolatedWorld", {"frameId": tree["frameTree"]["frame"]["id"], "worldName": NAME}
        )
        given = ", ".join(json.dumps(argument) for argument in arguments)
        answer = await self._session.send(
            "Runtime.evaluate",
            {
                "expression": f"({function})({given})",
                "contextId": world["executionContextId"],
                "returnByValue": True,
                "timeout": LONGEST,
            },
        )
        if "exceptionDetails" in answer:
            from playwright.async_api import Error

            raise Error(f"the page cannot be read: {answer['exceptionDetails'].get('text', '')}")
        return answer["result"].get("value")
