"""What time it is anywhere, and reckoning with dates."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import ToolEngine, UnifiedToolLibrary
from ferrule.agent import Agent
from ferrule.errors import CallError, Retry
from ferrule.models.offline import OfflineModel
from ferrule.testing import ScriptedModel
from ferrule.tools.time.cities import cities
from ferrule.tools.time.tell import tell_time
from ferrule.tools.time.zones import folded, zone_of

NOW = datetime(2026, 3, 4, 9, 5, tzinfo=UTC)
"""A Wednesday."""


def told(timezone=None, when=None, until=None, format=None, *, chinese=False):
    return tell_time(NOW, timezone, when, until, format, chinese=chinese)


def day(when):
    return told("UTC", when)["time"][:10]


def moment(when, timezone="UTC"):
    return told(timezone, when)["time"][:16]


# Through the doors


async def test_the_tool_in_the_box_tells_the_time_of_a_city():
    async with ToolEngine() as engine:
        result = await engine.execute("get_time", {"timezone": "Tokyo"})
        assert result.output["zone"] == "Asia/Tokyo" and result.output["time"].endswith("+09:00")
        assert "in Tokyo (Asia/Tokyo, UTC+09:00)" in result.output["text"]
        nowhere = await engine.execute("get_time", {"timezone": "Tokio"})
        assert nowhere.error == "No time zone is known for 'Tokio'. Did you mean 'tokyo'?"


async def test_its_answer_is_never_kept_and_asking_again_is_no_repetition():
    async with ToolEngine() as engine:
        spec = engine.registry.find_tool("get_time").spec
        assert spec.effects.read_only and spec.effects.polling and not spec.effects.cacheable


async def test_the_examples_of_its_spec_work():
    async with ToolEngine() as engine:
        spec = engine.registry.find_tool("get_time").spec
        results = [await engine.execute("get_time", example) for example in spec.capabilities[0].examples]
        assert all(result.is_success for result in results) and len(results) == 5
        assert "纽约现在是" in results[1].output["text"]


async def test_an_agent_asks_for_the_time_again_and_again():
    model = ScriptedModel([{"name": "get_time", "arguments": {"timezone": "UTC"}}] * 4 + ["Late."])
    async with UnifiedToolLibrary() as library:
        answer = await Agent(library, model).run("Tell me when it is late.")
    assert answer.text == "Late." and [step.is_success for step in answer.steps] == [True] * 4


@pytest.mark.parametrize(
    ("question", "arguments"),
    [
        ("what time is it in Tokyo?", {"timezone": "Asia/Tokyo"}),
        ("what time is it?", {}),
        ("东京现在几点？", {"timezone": "Asia/Tokyo", "language": "Chinese"}),
        ("how many days until 2026-12-25?", {"until": "2026-12-25"}),
        ("What day is 2026-12-25?", {"when": "2026-12-25"}),
        ("2026年12月25日是星期几？", {"when": "2026-12-25", "language": "Chinese"}),
        ("how many days between 2026-01-01 and 2026-05-01?", {"when": "2026-01-01", "until": "2026-05-01"}),
    ],
)
async def test_the_offline_model_knows_how_to_ask(question, arguments):
    async with UnifiedToolLibrary() as library:
        answer = await Agent(library, OfflineModel()).run(question)
    assert [(step.tool_id, step.arguments) for step in answer.steps] == [("get_time", arguments)]
    assert answer.steps[0].is_success


# Places


@pytest.mark.parametrize(
    ("place", "zone"),
    [
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
    ],
)
def test_a_place_is_known_by_many_names(place, zone):
    assert zone_of(place).name == zone


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("USA", "New York, Chicago, Denver or Los Angeles"),
        ("CST", "Shanghai (China Standard Time)"),
        ("Paris, Texas", "'texas' keeps America/Chicago"),
        ("Shangai", "Did you mean 'shanghai'"),
        ("UTC+25", "from UTC-12:00 to UTC+14:00"),
        ("Xyzzy", "Name a large city"),
        ("x" * 500, "500 characters"),
    ],
)
def test_a_place_that_is_unclear_gets_advice(place, advice):
    with pytest.raises(Retry, match=advice.replace("(", r"\(").replace(")", r"\)").replace("+", r"\+")):
        zone_of(place)


def test_every_city_of_the_table_has_a_zone_and_is_written_as_it_is_looked_up():
    for name, zone in cities().items():
        assert name == folded(name) and zone_of(name).name == zone


def test_without_a_place_it_is_the_zone_of_the_machine(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    assert told()["time"] == "2026-03-04T14:50:00+05:45"
    assert told()["text"] == "It is 14:50 on Wednesday, 4 March 2026 (Asia/Kathmandu, UTC+05:45)."


# Days and moments


@pytest.mark.parametrize(
    ("when", "expected"),
    [
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
        ("in 2 weeks", "2026-03-18"),
        ("两周前", "2026-02-18"),
        ("1 year and 2 months ago", "2025-01-04"),
        ("一年零两个月后", "2027-05-04"),
        ("-1 month", "2026-02-04"),
        ("2026-01-31 + 1 month", "2026-02-28"),
        ("2 weeks before 2026-12-25", "2026-12-11"),
        ("a week from tomorrow", "2026-03-12"),
        ("next monday", "2026-03-09"),
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
    ],
)
def test_a_day_is_read_as_people_say_it(when, expected):
    assert day(when) == expected


@pytest.mark.parametrize(
    ("when", "expected"),
    [
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
    ],
)
def test_a_time_of_day_is_read_as_people_say_it(when, expected):
    assert moment(when) == expected


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("every day", "'every' is not understood"),
        ("05/06/2026", "can be read in two ways"),
        ("2026-02-30", "There is no day 2026-2-30"),
        ("feb 29", "say the year"),
        ("13pm", "go from 1 to 12"),
        ("25:00", "is no time of day"),
        ("999999 years from now", "the years 1 to 9999"),
        ("一个半月后", "no whole number of months"),
        ("1 day ago " * 7, "more than 6 lengths"),
        ("now" * 100, "300 characters"),
    ],
)
def test_what_is_no_date_is_refused_with_the_reason(when, why):
    with pytest.raises(Retry, match=why):
        told("UTC", when)


def test_days_keep_the_time_of_day_when_clocks_change_and_hours_do_not():
    assert moment("2026-03-07 12:00 + 1 day", "New York") == "2026-03-08T12:00"
    assert moment("2026-03-07 12:00 + 24 hours", "New York") == "2026-03-08T13:00"
    assert moment("2026-03-08 02:30", "New York") == "2026-03-08T03:30"  # there is no half past two that day


# Differences


def test_days_between_two_dates_are_counted():
    difference = told("UTC", "2026-01-01", "2026-05-01")
    assert difference["difference"] == {"days": 120, "seconds": 120 * 86_400, "text": "120 days (17 weeks and 1 day)"}
    assert difference["text"] == "From 1 January 2026 to 1 May 2026 it is 120 days (17 weeks and 1 day)."


def test_from_now_on_the_next_day_of_that_name_is_meant():
    assert told("UTC", None, "January 5")["until"].startswith("2027-01-05")
    assert told("UTC", "January 5")["time"].startswith("2026-01-05")


def test_hours_are_those_that_really_pass():
    night = told("Berlin", "2026-03-29 01:00", "2026-03-29 04:00")
    assert night["difference"]["seconds"] == 2 * 3600 and night["difference"]["text"] == "2 hours"


def test_a_date_is_told_with_its_weekday_and_its_distance():
    assert told("UTC", "2026-12-25")["text"] == (
        "25 December 2026 is a Friday, 296 days (42 weeks and 2 days) from today."
    )
    assert told("UTC", "2026-03-01")["text"] == "1 March 2026 was a Sunday, 3 days ago."
    assert told("UTC", "12月25日", chinese=True)["text"] == "2026年12月25日是星期五，296天（42周零2天）后。"


async def test_the_sentence_is_in_the_language_asked():
    async with ToolEngine() as engine:
        chinese = await engine.execute("get_time", {"timezone": "Asia/Tokyo", "language": "zh"})
        english = await engine.execute("get_time", {"timezone": "东京", "language": "en"})
    assert chinese.output["text"].startswith("现在是") and chinese.output["weekday"].startswith("星期")
    assert english.output["text"].startswith("It is ")


# Formats and hostile input


def test_a_moment_can_be_written_in_another_way():
    assert told("UTC", None, None, "%d.%m.%Y %H:%M")["formatted"] == "04.03.2026 09:05"
    assert told("UTC", None, None, "unix")["formatted"] == "1772615100"
    assert told("Tokyo", None, None, "rfc2822")["formatted"] == "Wed, 04 Mar 2026 18:05:00 +0900"


@pytest.mark.parametrize("format", ["%1000000000d", "%-d", "%", "no sign in it", "%Y" * 80])
def test_a_format_cannot_ask_for_a_gigabyte(format):
    with pytest.raises(Retry, match="is no format"):
        told("UTC", None, None, format)


@given(
    place=st.none() | st.text(max_size=30),
    when=st.none() | st.text(max_size=30) | st.text("0123456789年月日周后前天 +-:./dayswekmonthnext下上", max_size=40),
)
def test_whatever_is_written_gets_an_answer_or_a_reason(place, when):
    try:
        answer = told(place, when)
    except CallError as refusal:
        assert str(refusal)
    else:
        assert datetime.fromisoformat(answer["time"]) and answer["text"]
