"""Units of measurement in English and Chinese: `10 miles to km`, 72公斤是多少磅. Volumes are American ones."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_UNITS: Final = """
length: 1 m meter metre 米 | 1000 km kilometer kilometre 公里 千米 | 0.01 cm centimeter centimetre 厘米 公分
length: 0.001 mm millimeter millimetre 毫米 | 1609.344 mile mi 英里 | 0.9144 yard yd 码 | 0.3048 foot feet ft 英尺
length: 0.0254 inch inches 英寸 | 1852 nautical_mile nmi 海里 | 500 里 | 9460730472580800 light_year 光年
mass: 1 g gram gramme 克 | 1000 kg kilogram kilo 公斤 千克 | 0.001 mg milligram 毫克 | 1000000 tonne metric_ton t 吨
mass: 453.59237 lb pound 磅 | 28.349523125 oz ounce 盎司 | 6350.29318 stone | 500 斤
time: 1 s second sec 秒 | 60 minute min 分钟 | 3600 hour hr h 小时 | 86400 day 天 | 604800 week 周 星期
time: 31536000 year 年 | 0.001 ms millisecond 毫秒
volume: 1 l liter litre 升 | 0.001 ml milliliter millilitre 毫升 | 3.785411784 gallon gal 加仑 | 0.2365882365 cup 杯
volume: 0.473176473 pint | 0.946352946 quart | 0.01478676478125 tablespoon tbsp 汤匙
volume: 0.00492892159375 teaspoon tsp 茶匙
volume: 0.0295735295625 fluid_ounce fl_oz 液盎司 | 1000 cubic_meter cubic_metre m3 立方米
area: 1 square_meter square_metre m2 m² sqm 平方米 | 1000000 square_kilometer square_km km2 km² 平方公里 | 2000/3 亩
area: 0.09290304 square_foot square_feet sq_ft sqft ft2 平方英尺 | 4046.8564224 acre 英亩 | 10000 hectare ha 公顷
area: 2589988.110336 square_mile 平方英里
speed: 1 m/s | 5/18 km/h kmh kph 公里每小时 | 0.44704 mph miles_per_hour | 463/900 knot
data: 1 byte | 0.125 bit | 1000 kb kilobyte | 1000000 mb megabyte | 1000000000 gb gigabyte | 1000000000000 tb terabyte
data: 1024 kib | 1048576 mib | 1073741824 gib | 1099511627776 tib
temperature: 1 c celsius °c degrees_celsius degree_celsius 摄氏度 摄氏 ℃
temperature: 1 f fahrenheit °f degrees_fahrenheit 华氏度 华氏 ℉
temperature: 1 k kelvin 开尔文
"""


def _read_units() -> dict[str, tuple[str, Fraction, str]]:
    units = {}
    for line in _UNITS.strip().splitlines():
        dimension, _, entries = line.partition(": ")
        for entry in entries.split(" | "):
            factor, *names = entry.split()
            for name in (name.replace("_", " ") for name in names):
                units[name] = (dimension, Fraction(factor), names[0])
                if len(name) > 2 and name.isascii() and name[-1].isalpha():
                    units.setdefault(f"{name}s", units[name])
    return {**units, "lbs": units["lb"], "mins": units["min"], "hrs": units["hr"], "secs": units["sec"]}


_BY_NAME: Final = _read_units()


def _join_names(*, ascii_only: bool) -> str:
    """Return an alternative for each name, the longest first; its plural belongs to it."""
    names = sorted((name for name in _BY_NAME if name.isascii() == ascii_only), key=len, reverse=True)
    singular = (name for name in names if not (name.endswith("s") and name[:-1] in _BY_NAME))
    return "|".join(re.escape(name) + ("s?" if f"{name}s" in _BY_NAME else "") for name in singular)


UNIT: Final = rf"(?:(?:{_join_names(ascii_only=True)})(?![A-Za-z²0-9/])|{_join_names(ascii_only=False)})"
"""A pattern for the name of a unit, to be used without regard to case."""
_TO_KELVIN: Final = {
    "c": (Fraction(1), Fraction("273.15")),
    "f": (Fraction(5, 9), Fraction("459.67") * Fraction(5, 9)),
    "k": (Fraction(1), Fraction(0)),
}
"""Factor and offset of each temperature scale."""


def convert_units(value: Fraction, unit: str, to_unit: str) -> Fraction:
    """Return a value in another unit. ValueError: the two units do not measure the same thing."""
    (dimension, factor, name), (other, to_factor, to_name) = (_BY_NAME[key.lower()] for key in (unit, to_unit))
    if dimension != other:
        raise ValueError(f"{unit} is a unit of {dimension} and {to_unit} one of {other}")
    if dimension != "temperature":
        return value * factor / to_factor
    (factor, offset), (to_factor, to_offset) = _TO_KELVIN[name], _TO_KELVIN[to_name]
    return (value * factor + offset - to_offset) / to_factor
