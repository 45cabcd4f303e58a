"""Variables of the environment and parameters of a call in one text."""

import pytest

from ferrule.errors import SetupError
from ferrule.executors.variables import expand_variables, fill_template, placeholders_in

ENVIRON = {"HOST": "example.com", "EMPTY": "", "SECRET": "s3cret"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://${HOST}/x", "https://example.com/x"),
        ("${PORT:-80}${PORT:-}", "80"),
        ("${HOST:-other}", "example.com"),
        ("[${EMPTY:-none}|${EMPTY}]", "[none|]"),
        ("$HOST {HOST} ${} ${1A} ${HOST", "$HOST {HOST} ${} ${1A} ${HOST"),
        ("{param} stays", "{param} stays"),
    ],
)
def test_variables_are_replaced_and_all_else_stays(text: str, expected: str):
    assert expand_variables(text, ENVIRON) == expected


def test_a_missing_variable_is_named():
    with pytest.raises(SetupError, match=r"the environment variable 'PORT' is not set: set it, or write \$\{PORT:-"):
        expand_variables("${HOST}:${PORT}", ENVIRON)


def test_placeholders_are_found_in_order_and_variables_are_none():
    assert placeholders_in("{a}/${HOST}/{b-c}/{{d}}/{网址}/{a}") == ["a", "b-c", "网址", "a"]
    assert placeholders_in('{"json": {"x": 1}} awk {print $1} {} { a }') == []


def test_a_template_is_filled_in_one_pass_so_no_argument_reads_the_environment():
    values = {"a": "${SECRET}", "b": "{a}"}
    filled = fill_template("${HOST} {a} {b} {{a}}", ENVIRON, values.__getitem__)
    assert filled == "example.com ${SECRET} {a} {a}"
