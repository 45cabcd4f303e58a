"""Numbers as people write them."""

from ferrule.texts.numbers import find_numbers, parse_number


def test_a_number_is_parsed():
    for text, value in (
        ("42", 42),
        ("-3.5", -3.5),
        ("1,234,567", 1_234_567),
        ("15%", 15),
        ("2e3", 2000.0),
        ("twenty-one", 21),
        ("two hundred and five", 205),
        ("three million", 3_000_000),
        ("三", 3),
        ("二十五", 25),
        ("两万三千", 23_000),
        ("二〇二五", 2025),
        ("三点五", 3.5),
        ("and", None),
        ("forty cats", None),
        ("", None),
        ("1" * 5000, None),
    ):
        assert parse_number(text) == value, text


def test_numbers_are_found_in_sentences():
    for text, values in (
        ("from 5 to twenty, and 3kg of it", [5, 20, 3]),
        ("the one I like, version 1.2.3", []),
        ("帮我看一下第一个，要5个", [5]),
        ("file2.txt and x7", []),
    ):
        assert [found.value for found in find_numbers(text)] == values, text
