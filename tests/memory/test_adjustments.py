"""What is suggested after a failure: time, addresses, paths, names and values."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.core.spec import ToolCapability
from ferrule.memory.adjustments import Adjustment, suggest_adjustments

TEXT: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer"}


def action(**parameters: Any) -> ToolCapability:
    return ToolCapability(name="do", description="Do it.", parameters=parameters)


def best(capability: ToolCapability, parameters: dict[str, Any], error: str, *seen: str) -> Any:
    """What the best suggestion changes: one value, or all that differ."""
    found = suggest_adjustments(capability, parameters, error, seen)
    if not found:
        return None
    changed = {name: found[0].parameters[name] for name in found[0].changed if name in found[0].parameters}
    return changed if len(changed) > 1 else next(iter(changed.values()))


@pytest.mark.parametrize(
    ("name", "schema", "now", "longer"),
    [
        ("timeout", {"type": "number"}, 10, 20),
        ("timeout", WHOLE, 45, 60),
        ("timeout", WHOLE, 5000, 10000),
        ("timeout_ms", WHOLE, 40, 80),
        ("timeoutMs", WHOLE, 50000, 60000),
        ("timeout", {**WHOLE, "description": "等待时间（毫秒）"}, 400, 800),
        ("wait", {"type": "number", "maximum": 12.5}, 10, 12.5),
        ("max_wait_seconds", {**WHOLE, "exclusiveMaximum": 30}, 20, 29),
        ("deadline", {**WHOLE, "multipleOf": 15}, 30, 60),
        ("timeout", {**WHOLE, "maximum": 30}, 30, None),
        ("timeout", WHOLE, 60, None),
        ("timeout", WHOLE, 0, None),
        ("count", WHOLE, 5, None),
    ],
)
def test_a_time_out_is_doubled_up_to_a_minute(name: str, schema: dict[str, Any], now: Any, longer: Any):
    assert best(action(**{name: schema}), {name: now}, "The request timed out.") == longer


def test_a_time_out_that_was_not_given_is_twice_its_default():
    [longer] = suggest_adjustments(action(url=TEXT, timeout={**WHOLE, "default": 20}), {"url": "x"}, "请求超时")
    assert longer.parameters == {"url": "x", "timeout": 40}
    assert longer.reason == "The call timed out: 'timeout' is twice as long, 40 instead of 20."


def test_other_errors_change_no_time_out():
    assert suggest_adjustments(action(timeout=WHOLE), {"timeout": 5}, "permission denied") == []


@pytest.mark.parametrize(
    ("url", "error", "mended"),
    [
        ("example.com/a", "Request URL is missing an 'http://' or 'https://' protocol.", "https://example.com/a"),
        ("localhost:8000/a", "Cannot navigate to invalid URL", "http://localhost:8000/a"),
        ("//example.com", "unsupported scheme", "https://example.com"),
        (" <https://example.com> ", "invalid url", "https://example.com"),
        ("http://example.com", "The plain HTTP request was sent to HTTPS port", "https://example.com"),
        ("http://example.com", "403: HTTPS required", "https://example.com"),
        ("http://example.com", "404 page", None),
        ("not an address", "invalid url", None),
    ],
)
def test_an_address_gets_its_scheme(url: str, error: str, mended: str | None):
    assert best(action(url=TEXT), {"url": url}, error) == mended


LISTING = "[DIR] images\n[FILE] README.md\n[FILE] notes.txt\n[FILE] sales-2024.csv"
LONG_LISTING = (
    "total 8\n-rw-r--r-- 1 me staff 1200 Jan  1 12:00 Report.csv\ndrwxr-xr-x 2 me staff 64 Jan  1 12:00 old data"
)


@pytest.mark.parametrize(
    ("path", "seen", "found"),
    [
        ("readme.md", LISTING, "README.md"),
        ("docs/readme.md", LISTING, "docs/README.md"),
        ("/srv/readme.txt", LISTING, "/srv/README.md"),
        ("note.txt", LISTING, "notes.txt"),
        ("sales_2024.csv", LISTING, "sales-2024.csv"),
        ("salse-2024.csv", LISTING, "sales-2024.csv"),
        ("report.csv", LONG_LISTING, "Report.csv"),
        ("Old Data", LONG_LISTING, "old data"),
        ("main.py", "src\n├── app/main.py\n└── test.py", "app/main.py"),
        ("/srv/docs/a.md", "docs/A.md\nsrc/b.md", "/srv/docs/A.md"),
        ("src/util.py", '["src/utils.py", "src/main.py"]', "src/utils.py"),
        ("a.json", '{"entries": [{"name": "A.json", "type": "file"}]}', "A.json"),
        ("/data/in.csv", "Nothing here.", None),
    ],
)
def test_a_path_is_found_under_a_near_name(path: str, seen: str, found: str | None):
    assert best(action(path=TEXT), {"path": path}, f"No such file or directory: '{path}'", seen) == found


def test_names_in_the_error_itself_will_do():
    error = "File not found: config.yml. The folder has: main.py, config.yaml"
    assert best(action(file=TEXT), {"file": "config.yml"}, error) == "config.yaml"


SEARCH = action(
    query={**TEXT, "required": True},
    order={"enum": ["ascending", "descending"]},
    limit={**WHOLE, "minimum": 1, "maximum": 100},
    deep={"type": "boolean"},
    tags={"type": "array", "items": TEXT},
)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"qury": "tea"}, {"query": "tea"}),
        ({"text": "tea"}, {"query": "tea"}),
        ({"query": "tea", "order": "ascendng"}, {"order": "ascending"}),
        ({"query": "tea", "limit": 500}, {"limit": 100}),
        ({"query": "tea", "limit": 0}, {"limit": 1}),
        ({"query": "tea", "limit": "7"}, {"limit": 7}),
        ({"query": "tea", "deep": "yes"}, {"deep": True}),
        ({"query": "tea", "tags": "green, black"}, {"tags": ["green", "black"]}),
        ({"query": ["tea"]}, {"query": "tea"}),
        ({"qury": "tea", "limit": 500, "order": "Ascending"}, {"query": "tea", "limit": 100, "order": "ascending"}),
    ],
)
def test_arguments_are_made_to_fit_the_schema(wrong: dict[str, Any], right: dict[str, Any]):
    suggested = suggest_adjustments(SEARCH, wrong, "The arguments are not valid.")[0]
    assert {name: suggested.parameters.get(name) for name in right} == right
    assert jsonschema_rs.is_valid(SEARCH.schema, suggested.parameters)


def test_all_that_is_wrong_is_said_in_one_reason():
    [both] = suggest_adjustments(SEARCH, {"qury": "tea", "limit": 500}, "invalid")
    assert both.changed == ("qury", "query", "limit")
    assert both.reason == (
        "There is no parameter 'qury'; 'query' is the nearest. 100 is the value nearest to 500 that 'limit' may have."
    )


@pytest.mark.parametrize(
    ("parameters", "error", "right"),
    [
        ({"zone": "Europe/Berln"}, "Unknown zone. Did you mean 'Europe/Berlin'?", "Europe/Berlin"),
        ({"zone": "blu"}, "zone must be one of: red, blue, green.", "blue"),
        ({"zone": "blu"}, "可选值：red、blue、green", "blue"),
        ({"size": 50}, "quota exceeded", None),
    ],
)
def test_an_error_may_say_itself_what_would_do(parameters: dict[str, Any], error: str, right: Any):
    assert best(action(zone=TEXT, size=WHOLE, page=WHOLE), parameters, error) == right


def test_secrets_are_neither_changed_nor_quoted():
    capability = action(url=TEXT, api_key={**TEXT, "writeOnly": True})
    found = suggest_adjustments(
        capability, {"url": "example.com", "api_key": "sk-1"}, "invalid url. Did you mean 'sk-2'?"
    )
    assert [(one.changed, "sk-1" in one.reason) for one in found] == [(("url",), False)]


def test_a_schema_that_cannot_be_used_gives_nothing():
    broken = ToolCapability(name="do", description="", parameters={"type": "object", "properties": {"a": {"type": 5}}})
    assert suggest_adjustments(broken, {"a": 1}, "timed out") == []


def test_arguments_that_take_long_to_check_get_no_suggestions():
    union = {"type": "array", "items": {"anyOf": [WHOLE] * 50}}
    many = suggest_adjustments(action(rows=union, timeout=WHOLE), {"rows": ["1"] * 30_000, "timeout": 5}, "timed out")
    slow = action(note={**TEXT, "pattern": "(?!q)(([a-z]+)+)Z"}, timeout=WHOLE)
    assert many == suggest_adjustments(slow, {"note": "x" * 1_000, "timeout": 5}, "timed out") == []
    assert best(slow, {"note": "xZ", "timeout": 5}, "timed out") == 10


def test_the_callers_parameters_are_left_alone():
    given_parameters = {"query": "tea", "tags": ["a"], "limit": 500}
    [found] = suggest_adjustments(SEARCH, given_parameters, "out of range")
    found.parameters["tags"].append("b")
    assert given_parameters == {"query": "tea", "tags": ["a"], "limit": 500}


SCHEMA = action(
    selector=TEXT,
    path=TEXT,
    url=TEXT,
    mode={"enum": ["fast", "slow"]},
    timeout={**WHOLE, "minimum": 1, "maximum": 45},
    share={"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.25},
    flag={"type": ["boolean", "null"]},
    names={"type": "array", "items": TEXT, "maxItems": 3},
)
ERRORS = [
    "not found",
    "timed out",
    "Did you mean 'fast'?",
    "must be at most 7",
    "no such file",
    "invalid url",
    "超时",
    "找不到",
]
SEEN = [
    "<a id='x'>",
    "one of: a.b, c/d",
    "c/d.txt",
    'link "12 stars" [ref=e1]',
    '{"selector": "#x"}',
    "https",
    "\n",
    " ",
]
TEXTS = st.text() | st.lists(st.sampled_from([*ERRORS, *SEEN])).map("".join)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.lists(TEXTS, max_size=4)
NAMES = st.sampled_from([*SCHEMA.schema["properties"], "tmeout", "other"])


@given(st.dictionaries(NAMES, VALUES, max_size=5), TEXTS, st.lists(TEXTS, max_size=3), st.lists(TEXTS, max_size=2))
def test_whatever_comes_suggestions_are_new_and_fit_the_schema(parameters, error, seen, avoid):
    for one in suggest_adjustments(SCHEMA, parameters, error, seen, avoid=avoid):
        assert isinstance(one, Adjustment) and one.reason and 0 < one.confidence <= 1
        assert one.parameters != parameters
        assert not any(one.parameters.get(name) in avoid for name in one.changed)
        assert jsonschema_rs.is_valid(SCHEMA.schema, one.parameters) or not jsonschema_rs.is_valid(
            SCHEMA.schema, parameters
        )
