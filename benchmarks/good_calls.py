"""A long, blameless day of calls: waiting for things, reading what was written, and failing only until it is mended.

Everything a memory of failures could take for stubbornness is in it, and none of it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, TypeAlias

from ferrule import tool

Call: TypeAlias = tuple[str, dict[str, Any]]

SELECTORS = ("#buy", "a.stars", "h1", "table.prices td")


class Browser:
    """A browser whose pages have the one half of all elements or the other."""

    def __init__(self) -> None:
        self._pages = 0

    async def open(self, url: str) -> str:
        """Go to a page."""
        self._pages += 1
        return f"page {self._pages}"

    async def click(self, selector: str) -> str:
        """Click on an element."""
        if (SELECTORS.index(selector) + self._pages) % 2:
            raise ValueError(f"Selector {selector!r} not found")
        return "clicked"


def world() -> list[Any]:
    """Tools that share a small world, which every replay has anew."""
    notes: dict[str, str] = {}
    users: set[str] = set()
    polls: dict[str, int] = {}
    browser = Browser()

    def polled(what: str) -> int:
        polls[what] = polls.get(what, 0) + 1
        return polls[what]

    @tool(read_only=True, polling=True)
    async def await_build(build: int) -> str:
        """How far a build is."""
        return f"{polled(f'build {build}') // 20} % done"

    @tool(read_only=True)
    async def deployment_status(name: str) -> str:
        """How a deployment is doing: long the same, then another."""
        return "rolling out" if polled(name) % 50 else f"ready for the {polls[name]}th time"

    @tool(read_only=True)
    async def queue_depth(queue: str) -> int:
        """How many wait in a queue: a poller that does not say so."""
        return polled(queue) // 10

    @tool
    async def write_note(name: str, text: str) -> str:
        """Write a note."""
        notes[name] = text
        return f"{len(text)} characters written"

    @tool(read_only=True)
    async def read_note(name: str) -> str:
        """Read a note."""
        if name not in notes:
            raise FileNotFoundError(f"Note {name!r} not found")
        return notes[name]

    @tool(read_only=True)
    async def look_up(key: str) -> str:
        """Look up something that never changes."""
        return f"value of {key}"

    @tool
    async def open_page(url: str) -> str:
        """Go to a page."""
        return await browser.open(url)

    @tool
    async def click(selector: str) -> str:
        """Click on an element, which not every page has."""
        return await browser.click(selector)

    @tool(read_only=True)
    async def fetch(url: str) -> str:
        """Fetch from a server that is there only at every third attempt."""
        if polled(url) % 3:
            raise ConnectionError("503 Service Unavailable")
        return f"body of {url}"

    @tool
    async def log_in(user: str) -> str:
        """Log in."""
        users.add(user)
        return "welcome"

    @tool(read_only=True)
    async def read_mail(folder: str) -> str:
        """Read mail, which needs a login."""
        if not users:
            raise PermissionError("401 Unauthorized: log in first")
        return f"mail in {folder}"

    @tool
    async def log_out() -> str:
        """Log out."""
        users.clear()
        return "goodbye"

    return [
        *(await_build, deployment_status, queue_depth, write_note, read_note, look_up),
        *(Browser(), open_page, click, fetch, log_in, read_mail, log_out),
    ]


def good_calls(number: int, chance: Random) -> list[Call]:
    """At least so many, in episodes; half of them one after the other, half of them all at once."""
    share = max(1, number // 10)
    episodes: list[list[Call]] = [
        [("await_build", {"build": 7})] * share,
        [("deployment_status", {"name": "web"})] * share,
        *([("look_up", {"key": f"key {n}"})] for n in range(3 * share)),
        *([("look_up", {"key": f"common {n % 5}"})] * 5 for n in range(share // 5 + 1)),
        *(_note(n, chance) for n in range(share // 3 + 1)),
        *(_pages("Browser__open", "Browser__click", n, chance) for n in range(share // 10 + 1)),
        *(_pages("open_page", "click", n, chance) for n in range(share // 10 + 1)),
        *([("fetch", {"url": f"https://example.com/{n}"})] * 3 for n in range(share // 10 + 1)),
        *(_mail(n) for n in range(share // 10 + 1)),
    ]
    chance.shuffle(episodes)
    calls = [call for episode in episodes[::2] for call in episode]
    return [*calls, *_mixed(episodes[1::2], chance)]


def undeclared_polls(number: int) -> list[Call]:
    """What no memory can know: a tool whose answer changes by itself, and that does not say so."""
    return [("queue_depth", {"queue": "orders"})] * number


def _note(number: int, chance: Random) -> list[Call]:
    """Not there, written, read, read again, rewritten, read …"""
    name = f"note-{number}.txt"
    calls: list[Call] = [("read_note", {"name": name})]
    for version in range(2):
        calls.append(("write_note", {"name": name, "text": f"version {version} of {name}"}))
        calls += [("read_note", {"name": name})] * chance.randint(1, 6)
    return calls


def _pages(go: str, click: str, number: int, chance: Random) -> list[Call]:
    """What is not on one page is on the next."""
    calls: list[Call] = []
    for page in range(4):
        calls.append((go, {"url": f"https://shop.example/{number}/{page}"}))
        calls.append((click, {"selector": chance.choice(SELECTORS)}))
    return calls


def _mail(number: int) -> list[Call]:
    """No mail without a login."""
    mail: Call = ("read_mail", {"folder": f"folder {number}"})
    return [("log_out", {}), mail, ("log_in", {"user": f"ada{number}"}), mail, mail]


def _mixed(episodes: list[list[Call]], chance: Random) -> Iterator[Call]:
    """Each episode in its own order, all of them through each other."""
    turns = [number for number, episode in enumerate(episodes) for _ in episode]
    chance.shuffle(turns)
    following = [iter(episode) for episode in episodes]
    for number in turns:
        yield next(following[number])
