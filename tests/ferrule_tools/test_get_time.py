"""The tool `get_time`: the time anywhere, and calculations with dates."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import ToolEngine, UnifiedToolLibrary
from ferrule.agent import Agent
from ferrule.errors import CallError, Retry
from ferrule.models.offline import OfflineModel
from ferrule.texts.time_zones import find_time_zone
from ferrule_tools.time.dates import parse_date
from ferrule_tools.time.get_time import describe_time

NOW = datetime(2026, 3, 4, 9, 5, tzinfo=UTC)
"""A Wednesday."""


def answer(timezone=None, when=None, until=None, format=None, *, chinese=False):
    return describe_time(NOW, timezone, when, until, format, chinese=chinese)


# Through the engine and an agent


async def test_the_bundled_tool_knows_the_time_of_a_city():
    async with ToolEngine() as engine:
        result = await engine.execute("get_time", {"timezone": "Tokyo"})
        assert result.output["zone"] == "Asia/Tokyo" and result.output["time"].endswith("+09:00")
        assert "in Tokyo (UTC+09:00)" in result.output["text"]
        nowhere = await engine.execute("get_time", {"timezone": "Tokio"})
        assert nowhere.error == "No time zone is known for 'Tokio'. Did you mean 'tokyo'?"


async def test_the_examples_of_its_spec_work_and_its_result_may_be_polled():
    async with ToolEngine() as engine:
        spec = engine.registry.find_tool("get_time").spec
        assert spec.effects.read_only and spec.effects.polling and not spec.effects.cacheable
        results = [await engine.execute("get_time", example) for example in spec.capabilities[0].examples]
        assert all(result.is_success for result in results) and len(results) == 5
        assert "纽约现在是" in results[1].output["text"]


QUESTIONS = {
    "what time is it in Beijing?": {"timezone": "Beijing"},
    "what time is it?": {},
    "东京现在几点？": {"timezone": "东京", "language": "zh"},
    "how many days until 2026-12-25?": {"until": "2026-12-25"},
    "What day is 2026-12-25?": {"when": "2026-12-25"},
    "2026年12月25日是星期几？": {"when": "2026年12月25日", "language": "zh"},
    "how many days between 2026-01-01 and 2026-05-01?": {"when": "2026-01-01", "until": "2026-05-01"},
    "What is the time difference between Tokyo and Paris?": {"timezone": "Tokyo", "other_place": "Paris"},
    "if it is 3pm in Tokyo what time is it in London?": {"when": "3pm", "timezone": "Tokyo", "other_place": "London"},
    "北京和纽约的时差是多少？": {"timezone": "北京", "other_place": "纽约", "language": "zh"},
    "东京下午3点是伦敦几点？": {"timezone": "东京", "when": "下午3点", "other_place": "伦敦", "language": "zh"},
    "what time will it be in 3 hours?": {"when": "in 3 hours"},
    "2小时后是几点": {"when": "2小时后", "language": "zh"},
    "how many hours until midnight": {"until": "midnight"},
    "how long ago was 2020-03-11?": {"when": "2020-03-11"},
    "how many days until my flight on 2026-12-03": {"until": "2026-12-03"},
}


async def test_the_offline_model_fills_its_parameters():
    asked = {}
    async with UnifiedToolLibrary() as library:
        for question in QUESTIONS:
            [step] = (await Agent(library, OfflineModel()).run(question)).steps
            assert step.tool_id == "get_time" and step.is_success, question
            asked[question] = step.arguments
    assert asked == QUESTIONS


# Answers


def test_without_a_timezone_it_is_the_zone_of_the_machine(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    assert answer()["time"] == "2026-03-04T14:50:00+05:45"
    assert answer()["text"] == "It is 14:50 on Wednesday, 4 March 2026 in Kathmandu (UTC+05:45)."


# Differences


def test_days_between_two_dates_are_counted():
    difference = answer("UTC", "2026-01-01", "2026-05-01")
    assert difference["difference"] == {"days": 120, "seconds": 120 * 86_400, "text": "120 days (17 weeks and 1 day)"}
    assert difference["text"] == "From 1 January 2026 to 1 May 2026 it is 120 days (17 weeks and 1 day)."


def test_until_prefers_a_day_in_the_future():
    assert answer("UTC", None, "January 5")["until"].startswith("2027-01-05")
    assert answer("UTC", "January 5")["time"].startswith("2026-01-05")


def test_hours_are_real_time():
    night = answer("Berlin", "2026-03-29 01:00", "2026-03-29 04:00")
    assert night["difference"]["seconds"] == 2 * 3600 and night["difference"]["text"] == "2 hours"


def test_the_sentence_has_the_weekday_and_the_distance():
    assert answer("UTC", "2026-12-25")["text"] == (
        "25 December 2026 is a Friday, 296 days (42 weeks and 2 days) from today."
    )
    assert answer("UTC", "2026-03-01")["text"] == "1 March 2026 was a Sunday, 3 days ago."
    assert answer("UTC", "12月25日", chinese=True)["text"] == "2026年12月25日是星期五，296天（42周零2天）后。"


def test_two_places_are_compared():
    def compare(timezone, other, when=None, *, chinese=False):
        return describe_time(NOW, timezone, when, None, None, other, chinese=chinese)["text"]

    assert compare("Tokyo", "paris") == "Tokyo is 8 hours ahead of Paris: 18:05 in Tokyo is 10:05 in Paris."
    assert compare("Paris", "Kathmandu", "2026-07-01") == (
        "Paris is 3 hours and 45 minutes behind Kathmandu: 00:00 in Paris is 03:45 in Kathmandu."
    )
    assert compare("Rome", "Berlin") == "Rome has the same time as Berlin: 10:05 in Rome is 10:05 in Berlin."
    assert compare("Tokyo", "London", "3pm") == "15:00 in Tokyo is 06:00 in London."
    assert compare("Tokyo", "New York", "9am") == "09:00 in Tokyo is 19:00 in New York the day before."
    assert compare("Los Angeles", "Sydney", "20:00") == "20:00 in Los Angeles is 15:00 in Sydney the next day."
    assert compare("北京", "纽约", chinese=True) == "北京比纽约早13小时：北京17:05，纽约04:05。"
    assert compare("北京", "纽约", "上午9点", chinese=True) == "北京09:00是纽约前一天20:00。"


def test_days_near_today_are_told_as_such_and_long_lengths_in_years():
    assert answer("UTC", "tomorrow")["text"] == "Tomorrow is Thursday, 5 March 2026."
    assert answer("UTC", "昨天", chinese=True)["text"] == "昨天是2026年3月3日，星期二。"
    assert answer("UTC", "1990-05-17")["text"] == (
        "17 May 1990 was a Thursday, 13,075 days (35 years and 291 days) ago."
    )
    assert answer("UTC", None, "midnight")["text"] == "It is 14 hours 55 minutes until 5 March 2026 00:00."


# Formats and hostile input


def test_the_time_can_be_formatted():
    assert answer("UTC", None, None, "%d.%m.%Y %H:%M")["formatted"] == "04.03.2026 09:05"
    assert answer("UTC", None, None, "unix")["formatted"] == "1772615100"
    assert answer("Tokyo", None, None, "rfc2822")["formatted"] == "Wed, 04 Mar 2026 18:05:00 +0900"


def test_a_format_cannot_ask_for_a_gigabyte():
    for format in ("%1000000000d", "%-d", "%", "no sign in it", "%Y" * 80):
        with pytest.raises(Retry, match="is not a format"):
            answer("UTC", None, None, format)


@given(
    place=st.none() | st.text(max_size=30),
    when=st.none() | st.text(max_size=30) | st.text("0123456789年月日周后前天 +-:./dayswekmonthnext下上", max_size=40),
)
def test_any_input_gets_an_answer_or_an_error_with_a_reason(place, when):
    try:
        result = answer(place, when)
    except CallError as refusal:
        assert str(refusal)
    else:
        assert datetime.fromisoformat(result["time"]) and result["text"]


# Dates


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
