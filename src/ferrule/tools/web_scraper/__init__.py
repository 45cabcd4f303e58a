"""Reading web pages: `library.register(*scraper_tools())`."""

from ferrule.tools.web_scraper.box import scraper_tools
from ferrule.tools.web_scraper.config import ScraperConfig

__all__ = ["ScraperConfig", "scraper_tools"]
