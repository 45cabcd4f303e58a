"""Dates as people write them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import Retry
from ferrule.texts.time_zones import find_time_zone
from ferrule_tools.time.dates import parse_date

NOW = datetime(2026, 3, 4, 9, 5, tzinfo=UTC)
"""A Wednesday."""


def day(text):
    return parse_date(text, NOW).at.isoformat()[:10]


def minute(text, timezone="UTC"):
    return parse_date(text, NOW.astimezone(find_time_zone(timezone).tz)).at.isoformat()[:16]


def test_days_are_parsed():
    for when, expected in (
        ("2026-12-25", "2026-12-25"),
        ("20261225", "2026-12-25"),
        ("2026/12/25", "2026-12-25"),
        ("25.12.2026", "2026-12-25"),
        ("12/25/2026", "2026-12-25"),
        ("december 25", "2026-12-25"),
        ("the 25th of Dec 2027", "2027-12-25"),
        ("2026年12月25日", "2026-12-25"),
        ("十二月二十五日", "2026-12-25"),
        ("明年5月1日", "2027-05-01"),
        ("today", "2026-03-04"),
        ("tomorrow", "2026-03-05"),
        ("后天", "2026-03-06"),
        ("大前天", "2026-03-01"),
        ("+3 days", "2026-03-07"),
        ("三天后", "2026-03-07"),
        ("3 天后", "2026-03-07"),
        ("3 月 7 日", "2026-03-07"),
        ("in 2 weeks", "2026-03-18"),
        ("两周前", "2026-02-18"),
        ("1 year and 2 months ago", "2025-01-04"),
        ("一年零两个月后", "2027-05-04"),
        ("-1 month", "2026-02-04"),
        ("2026-01-31 + 1 month", "2026-02-28"),
        ("2 weeks before 2026-12-25", "2026-12-11"),
        ("a week from tomorrow", "2026-03-12"),
        ("next monday", "2026-03-09"),
        ("march 5 next year", "2027-03-05"),
        ("next wednesday", "2026-03-11"),
        ("last friday", "2026-02-27"),
        ("下周三", "2026-03-11"),
        ("这周日", "2026-03-08"),
        ("上上周一", "2026-02-16"),
        ("next month", "2026-04-04"),
        ("1767225600", "2026-01-01"),
    ):
        assert day(when) == expected, when


def test_times_of_day_are_parsed():
    for when, expected in (
        ("tomorrow at 3pm", "2026-03-05T15:00"),
        ("tonight at 8", "2026-03-04T20:00"),
        ("noon", "2026-03-04T12:00"),
        ("12am", "2026-03-04T00:00"),
        ("明天下午三点半", "2026-03-05T15:30"),
        ("明晚8点", "2026-03-05T20:00"),
        ("中午12点", "2026-03-04T12:00"),
        ("半小时后", "2026-03-04T09:35"),
        ("两个半小时后", "2026-03-04T11:35"),
        ("20 minutes before 15:00", "2026-03-04T14:40"),
        ("2026-12-25T14:30:00+02:00", "2026-12-25T12:30"),
    ):
        assert minute(when) == expected, when


def test_a_text_that_is_not_a_date_is_an_error_with_the_reason():
    for when, reason in (
        ("every day", "'every' is not understood"),
        ("end of next month", "'end' is not understood"),
        ("christmas", "cannot be read as a date"),
        ("05/06/2026", "can be read in two ways"),
        ("2026-02-30", "There is no day 2026-2-30"),
        ("feb 29", "write the year"),
        ("13pm", "go from 1 to 12"),
        ("25:00", "is not a time of day"),
        ("999999 years from now", "the years 1 to 9999"),
        ("一个半月后", "not a whole number of months"),
        ("1 day ago " * 7, "more than 6 durations"),
        ("now" * 100, "300 characters"),
    ):
        with pytest.raises(Retry, match=reason):
            parse_date(when, NOW)


def test_days_keep_the_time_of_day_when_clocks_change_and_hours_do_not():
    assert minute("2026-03-07 12:00 + 1 day", "New York") == "2026-03-08T12:00"
    assert minute("2026-03-07 12:00 + 24 hours", "New York") == "2026-03-08T13:00"
    assert minute("2026-03-08 02:30", "New York") == "2026-03-08T03:30"  # there is no half past two that day


def test_a_day_without_a_year_may_be_the_next_one():
    assert parse_date("January 5", NOW).at.year == 2026
    assert parse_date("January 5", NOW, prefers_future=True).at.year == 2027


@given(st.text(max_size=40) | st.text("0123456789年月日周后前天 +-:./dayswekmonthnext下上点半", max_size=40))
def test_any_other_text_is_an_error_for_the_caller(text):
    try:
        parse_date(text, NOW)
    except Retry as error:
        assert str(error)
