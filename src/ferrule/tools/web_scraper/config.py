"""What `[tools.web_scraper]` in `ferrule.toml` says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ferrule.errors import SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScraperConfig:
    """How pages are fetched."""

    user_agent: str = "ferrule"
    """Who we say we are, to pages and to their robots.txt."""
    respect_robots: bool = True
    """Read no page that the robots.txt of its site forbids."""
    max_bytes: int = 5_000_000
    """The largest page that is read, compressed or not."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\x21-\x7e][\x20-\x7e]*", self.user_agent):
            raise SetupError(f"user_agent must be printable ASCII such as MyBot/1.0, not {self.user_agent!r}")
        if self.max_bytes < 1_000:
            raise SetupError(f"max_bytes must be at least 1000, not {self.max_bytes!r}")
