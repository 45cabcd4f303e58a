"""Time zones by the names people use, and the zones that a sentence mentions."""

import re

import pytest

from ferrule.errors import Retry
from ferrule.texts.time_zones import find_time_zone, find_time_zones_in_text, normalize_name, place_names


def test_a_zone_is_found_by_many_names():
    for place, zone in (
        ("Asia/Tokyo", "Asia/Tokyo"),
        ("asia/tokyo", "Asia/Tokyo"),
        ("东京", "Asia/Tokyo"),
        ("東京", "Asia/Tokyo"),
        ("纽约", "America/New_York"),
        ("new_york", "America/New_York"),
        ("Beijing time", "Asia/Shanghai"),
        ("北京市", "Asia/Shanghai"),
        ("São Paulo", "America/Sao_Paulo"),
        ("Zürich", "Europe/Zurich"),
        ("Mumbai", "Asia/Kolkata"),
        ("St. Louis", "America/Chicago"),
        ("Washington, D.C.", "America/New_York"),
        ("Paris, France", "Europe/Paris"),
        ("Buenos Aires", "America/Argentina/Buenos_Aires"),
        ("UTC+8", "UTC+08:00"),
        ("-03:30", "UTC-03:30"),
        ("gmt", "UTC"),
    ):
        assert find_time_zone(place).name == zone, place


def test_a_name_without_exactly_one_zone_is_an_error_with_advice():
    for place, advice in (
        ("USA", "New York, Chicago, Denver or Los Angeles"),
        ("CST", "Shanghai (China Standard Time)"),
        ("Paris, Texas", "'texas' is in America/Chicago"),
        ("Shangai", "Did you mean 'shanghai'"),
        ("UTC+25", "from UTC-12:00 to UTC+14:00"),
        ("Xyzzy", "Name a large city"),
        ("x" * 500, "500 characters"),
    ):
        with pytest.raises(Retry, match=re.escape(advice)):
            find_time_zone(place)


def test_every_name_of_the_table_has_a_zone_and_is_normalized():
    for name, zone in place_names().items():
        assert name == normalize_name(name)
        if re.fullmatch(r"[\w/]+", zone) and ("/" in zone or zone == "UTC"):
            assert find_time_zone(name).name == zone
        else:
            with pytest.raises(Retry, match=re.escape(zone)):
                find_time_zone(name)


def test_zones_are_found_in_sentences():
    for text, zones in (
        ("What time is it in Tokyo and in new york?", ["Asia/Tokyo", "America/New_York"]),
        ("伦敦和纽约现在几点", ["Europe/London", "America/New_York"]),
        ("15:00 Europe/Paris", ["Europe/Paris"]),
        ("a nice split of the la carte menu", []),
        ("the time in Nice", ["Europe/Paris"]),
        ("UTC please", ["UTC"]),
        ("time in São Paulo or Zürich", ["America/Sao_Paulo", "Europe/Zurich"]),
    ):
        assert [found.value for found in find_time_zones_in_text(text)] == zones, text
