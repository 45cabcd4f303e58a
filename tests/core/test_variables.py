"""Variables of the environment and parameters of a call in one text."""

import pytest

from ferrule.core.variables import expand_variables, fill_template, find_placeholders
from ferrule.errors import SetupError

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


def test_an_unset_variable_is_an_error_that_names_it():
    with pytest.raises(SetupError, match=r"the environment variable 'PORT' is not set: set it, or write \$\{PORT:-"):
        expand_variables("${HOST}:${PORT}", ENVIRON)


def test_placeholders_are_found_in_order_and_variables_are_not_placeholders():
    assert find_placeholders("{a}/${HOST}/{b-c}/{{d}}/{网址}/{a}") == ["a", "b-c", "网址", "a"]
    assert find_placeholders('{"json": {"x": 1}} awk {print $1} {} { a }') == []


def test_a_template_is_filled_in_one_pass_so_no_argument_reads_the_environment():
    values = {"a": "${SECRET}", "b": "{a}"}
    filled = fill_template("${HOST} {a} {b} {{a}}", ENVIRON, values.__getitem__)
    assert filled == "example.com ${SECRET} {a} {a}"
