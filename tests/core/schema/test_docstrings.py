"""Docstrings of three styles, and those of none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.core.schema.signature import Docstring, parse_docstring

GOOGLE = """Find things.

    Looks everywhere.

    Args:
        query (str): what to look for,
            also in other words
        *limits (int, optional): how many. Defaults to 10.
        **more: anything else

    Returns:
        list: the things, newest first

    Note:
        Slow at night.
    """

NUMPY = """Find things.

    Looks everywhere.

    Parameters
    ----------
    query, phrase : str
        what to look for,
        also in other words
    limit : int, optional
        how many

    Returns
    -------
    list
        the things, newest first

    Other Parameters
    ----------------
    *more
        anything else
    """

REST = """Find things.

    Looks everywhere.

    :param str query: what to look for,
        also in other words
    :type query: str
    :param limit:
        how many
    :param \\*more: anything else
    :returns: the things, newest first
    :raises ValueError: when there is nothing
    """


QUERY = "what to look for,\nalso in other words"


@pytest.mark.parametrize(
    ("text", "parameters", "rest"),
    [
        (
            GOOGLE,
            {"query": QUERY, "limits": "how many. Defaults to 10.", "more": "anything else"},
            "Returns:\n    list: the things, newest first\n\nNote:\n    Slow at night.",
        ),
        (
            NUMPY,
            {"query": QUERY, "phrase": QUERY, "limit": "how many", "more": "anything else"},
            "Returns\n-------\nlist\n    the things, newest first",
        ),
        (
            REST,
            {"query": QUERY, "limit": "how many", "more": "anything else"},
            ":returns: the things, newest first\n:raises ValueError: when there is nothing",
        ),
    ],
    ids=["google", "numpy", "rest"],
)
def test_a_docstring_of_each_style_is_parsed(text, parameters, rest):
    description = f"Find things.\n\nLooks everywhere.\n\n{rest}"
    assert parse_docstring(text) == Docstring(description=description, parameters=parameters)


@pytest.mark.parametrize("title", ["Args:", "Arguments:", "Parameters:", "Keyword Args:", "参数：", "参数:"])
def test_chinese_docstrings_are_read_with_either_colon(title):
    read = parse_docstring(
        f"查询天气。\n\n{title}\n    city（str）：城市名称：全称\n    天数: 预报天数\n\n返回：\n    天气\n"
    )
    assert read.parameters == {"city": "城市名称：全称", "天数": "预报天数"}
    assert read.description == "查询天气。\n\n返回：\n    天气"


def test_text_with_lists_and_paragraphs_keeps_its_shape():
    read = parse_docstring(
        "Do.\n\nArgs:\n    mode: one of\n        - a: fast\n        - b: slow\n\n        Choose well.\n    x: y\n"
    )
    assert read.parameters == {"mode": "one of\n- a: fast\n- b: slow\n\nChoose well.", "x": "y"}


@pytest.mark.parametrize(
    "text",
    [
        "Do.\n\nArgs:\n    query what to look for\n    limit: how many",
        "Do.\n\nParameters\n----------\nsome prose about parameters\n",
        "Args: see above",
        "Do.\n\nArgs:\nquery: not indented",
    ],
)
def test_a_section_that_cannot_be_read_stays_in_the_description(text):
    assert parse_docstring(text) == Docstring(description=text.strip())


@pytest.mark.parametrize("text", [None, "", "   \n  "])
def test_an_empty_docstring_has_no_description(text):
    assert parse_docstring(text) == Docstring()


PIECES = st.sampled_from(
    [
        "Args:\n",
        "Parameters\n----\n",
        ":param x: ",
        ":type ",
        "x (int): ",
        "    ",
        "\n",
        "参数：",
        "---\n",
        "text",
        "*",
        "(",
        ":",
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=200))
def test_any_text_is_read_without_a_failure(text):
    read = parse_docstring(text)
    assert all(name.isidentifier() and description for name, description in read.parameters.items())
