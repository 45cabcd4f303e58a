"""Dates as people write them: alone, and in a sentence."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import Retry
from ferrule.texts.dates import find_dates_in_text, parse_date
from ferrule.texts.time_zones import find_time_zone

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
        ("christmas this year", "2026-12-25"),
        ("march 5 next year", "2027-03-05"),
        ("next wednesday", "2026-03-11"),
        ("last friday", "2026-02-27"),
        ("下周三", "2026-03-11"),
        ("这周日", "2026-03-08"),
        ("上上周一", "2026-02-16"),
        ("next month", "2026-04-04"),
        ("end of next year", "2027-12-31"),
        ("下个月底", "2026-04-30"),
        ("年底", "2026-12-31"),
        ("1767225600", "2026-01-01"),
    ):
        assert day(when) == expected, when


def test_holidays_are_known_by_name():
    for when, expected in (
        ("christmas", "2026-12-25"),
        ("christmas 2027", "2027-12-25"),
        ("next christmas", "2026-12-25"),
        ("last christmas", "2025-12-25"),
        ("new year's eve", "2026-12-31"),
        ("2 weeks before Christmas", "2026-12-11"),
        ("thanksgiving", "2026-11-26"),
        ("black friday 2027", "2027-11-26"),
        ("mother's day", "2026-05-10"),
        ("easter", "2026-04-05"),
        ("easter 2024", "2024-03-31"),
        ("good friday 2025", "2025-04-18"),
        ("春节", "2026-02-17"),
        ("明年春节", "2027-02-06"),
        ("下一个春节", "2027-02-06"),
        ("2030年春节", "2030-02-03"),
        ("除夕", "2026-02-16"),
        ("chinese new year 2050", "2050-01-23"),
        ("元宵节", "2026-03-03"),
        ("端午节", "2026-06-19"),
        ("明年中秋节", "2027-09-15"),
        ("去年国庆节", "2025-10-01"),
    ):
        assert day(when) == expected, when


def test_a_holiday_without_a_year_may_be_the_next_one_and_lunar_ones_are_known_for_some_years():
    assert parse_date("春节", NOW, prefers_future=True).at.date().isoformat() == "2027-02-06"
    assert parse_date("easter", NOW, prefers_future=True).at.date().isoformat() == "2026-04-05"
    with pytest.raises(Retry, match="from 2020 to 2050, not for 2051"):
        parse_date("2051年春节", NOW)


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
        ("15:00 in Tokyo", "2026-03-04T06:00"),
        ("东京时间15点", "2026-03-04T06:00"),
    ):
        assert minute(when) == expected, when


def test_a_text_that_is_not_a_date_is_an_error_with_the_reason():
    for when, reason in (
        ("every day", "'every' is not understood"),
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


def test_dates_are_found_in_sentences():
    for sentence, dates in (
        ("Remind me to buy milk tomorrow at 9am", [("tomorrow at 9am", "2026-03-05T09:00")]),
        ("on March 12 at 12:30, and again on 2026-05-01T14:30", [("March 12 at 12:30", "2026-03-12T12:30")]),
        ("Remind me in 2 hours to check the oven", [("in 2 hours", "2026-03-04T11:05")]),
        ("下周一下午三点开会", [("下周一下午三点", "2026-03-09T15:00")]),
        ("三天后提醒我", [("三天后", "2026-03-07T09:05")]),
        ("what time is it now, sun and moon for 5 minutes?", []),
        ("call 05/06/2026 or the end of the file", []),
    ):
        spans = find_dates_in_text(sentence, NOW)
        found = [(sentence[span.start : span.end], span.value.at.isoformat()[:16]) for span in spans]
        assert found[: len(dates) or None] == dates


@given(st.text(max_size=40) | st.text("0123456789年月日周后前天 +-:./dayswekmonthnext下上点半", max_size=40))
def test_no_sentence_breaks_the_search_for_dates(text):
    for span in find_dates_in_text(text, NOW):
        assert 0 <= span.start < span.end <= len(text)
