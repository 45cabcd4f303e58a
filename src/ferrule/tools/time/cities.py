"""Where the world's large cities, and the countries with one time, keep their clocks.

Beside these every zone is known by the city in its own name. Names are in small letters and without accents, as
`zones.folded` writes them; Chinese ones as they are written in either script.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).with_name("cities.txt")

_SEVERAL: Final = """
usa, us, united states, united states of america, america, 美国, 美國: New York, Chicago, Denver or Los Angeles
canada, 加拿大: Toronto, Winnipeg, Edmonton or Vancouver
brazil, brasil, 巴西: Sao Paulo, Manaus or Recife
mexico, 墨西哥: Mexico City, Monterrey or Tijuana
russia, 俄罗斯, 俄國: Moscow, Yekaterinburg, Novosibirsk or Vladivostok
australia, 澳大利亚, 澳洲: Sydney, Brisbane, Adelaide or Perth
indonesia, 印度尼西亚, 印尼: Jakarta, Makassar or Jayapura
mongolia, 蒙古: Ulaanbaatar or Hovd
spain, 西班牙: Madrid or Las Palmas (Atlantic/Canary)
portugal, 葡萄牙: Lisbon or the Azores (Atlantic/Azores)
congo, 刚果: Kinshasa or Lubumbashi
georgia: Tbilisi or Atlanta
europe, 欧洲: London, Berlin or Athens
cst: Chicago (Central Standard Time) or Shanghai (China Standard Time)
mst: Denver (with summer time) or Phoenix (without)
"""


@cache
def cities() -> dict[str, str]:
    """Names, and the zone each stands for."""
    found: dict[str, str] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        zone, _, names = line.partition(": ")
        if not zone.startswith("#"):
            found.update(dict.fromkeys(names.split(", "), zone))
    return found


@cache
def unclear_places() -> dict[str, str]:
    """Names that stand for several zones, and what to say instead."""
    found: dict[str, str] = {}
    for line in _SEVERAL.strip().splitlines():
        names, _, instead = line.rpartition(": ")
        found.update(dict.fromkeys(names.split(", "), instead))
    return found
