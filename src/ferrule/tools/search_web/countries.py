"""The countries that providers can be asked for by name."""

from __future__ import annotations

from typing import Final

COUNTRIES: Final = {
    "AR": "argentina",
    "AT": "austria",
    "AU": "australia",
    "BE": "belgium",
    "BR": "brazil",
    "CA": "canada",
    "CH": "switzerland",
    "CL": "chile",
    "CN": "china",
    "DE": "germany",
    "DK": "denmark",
    "ES": "spain",
    "FI": "finland",
    "FR": "france",
    "GB": "united kingdom",
    "ID": "indonesia",
    "IN": "india",
    "IT": "italy",
    "JP": "japan",
    "KR": "south korea",
    "MX": "mexico",
    "MY": "malaysia",
    "NL": "netherlands",
    "NO": "norway",
    "NZ": "new zealand",
    "PH": "philippines",
    "PL": "poland",
    "PT": "portugal",
    "RU": "russia",
    "SA": "saudi arabia",
    "SE": "sweden",
    "TR": "turkey",
    "TW": "taiwan",
    "US": "united states",
    "ZA": "south africa",
}
"""By their two letters: those that Brave knows, as Tavily calls them."""
