"""Sentences, parts of texts, and summaries made of sentences."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.tools.ai.extract import extract
from ferrule.tools.ai.texts import LONGEST_SENTENCE, parts_of, sentences_of

PIECES = st.lists(
    st.sampled_from(["word", "Dr.", " ", "\n", "\n\n", ".", "!", "。", "很", "…", '"', ")", "- ", "1. ", "# "])
)
TEXTS = PIECES.map("".join) | st.text(max_size=300)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. Smith paid 3.5 dollars, e.g. for tea. Mr. Li paid none.", None),
        ("He lives in the U.S. and works. She does not.", ["He lives in the U.S. and works.", "She does not."]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("你好。今天天气好！真的吗？", ["你好。", "今天天气好！", "真的吗？"]),
        ("他说：“走吧。”然后走了……", ["他说：“走吧。”", "然后走了……"]),
        ("wrapped at\nsome width. Next", ["wrapped at some width.", "Next"]),
        ("Heading\n\nText here.\n- first\n- second", ["Heading", "Text here.", "- first", "- second"]),
        ("", []),
    ],
)
def test_sentences_end_where_people_end_them(text, sentences):
    found = sentences_of(text)
    assert found == (sentences or found)
    assert len(found) == (2 if sentences is None else len(sentences))


@settings(deadline=None)
@given(TEXTS)
def test_no_word_of_a_text_is_lost_between_sentences(text):
    assert "".join("".join(sentences_of(text)).split()) == "".join(text.split())
    assert all(len(sentence) <= LONGEST_SENTENCE for sentence in sentences_of(text))


@settings(deadline=None)
@given(TEXTS, st.integers(min_value=2, max_value=50))
def test_parts_put_together_are_the_text(text, most):
    parts = parts_of(text, most)
    assert "".join(parts) == text and all(len(part) <= most for part in parts)


@settings(deadline=None)
@given(TEXTS, st.integers(min_value=1, max_value=5))
def test_a_summary_is_made_of_sentences_of_the_text(text, count):
    summary = extract(text, count)
    left = iter("".join(text.split()))
    assert all(char in left for char in "".join(summary.split()))  # in their own order
    assert summary or not text.split()


@pytest.mark.parametrize(
    "text",
    [
        "." * 200_000 + "x",
        '."' * 100_000 + "x",
        "\n" * 200_000 + "x",
        "\n " * 100_000 + "x",
        "x" * 200_000,
        "很" * 200_000,
        "\n-" * 100_000,
        "a. " * 60_000,
        "```" * 60_000,
    ],
)
def test_a_hostile_text_takes_no_longer_than_another(text):
    # With a pattern that looks at everything from everywhere each of these would take minutes.
    assert len(extract(text, 5)) <= 5 * (LONGEST_SENTENCE + 1)


def test_code_tables_and_headings_are_no_sentences():
    text = (
        "# Title\n\nThe tool reads files. " + "```python\nimport os\n```\n| a | b |\n|---|---|\n\nIt writes files too."
    )
    assert extract(text, 2) == "The tool reads files. It writes files too."


def test_a_text_of_nothing_but_code_is_still_told():
    assert extract("```\nprint(1)\n```", 2) != ""


def test_the_same_thing_is_not_told_twice():
    text = "The red fox eats fish. " * 20 + "The moon is far away. Stars shine at night. Water is wet."
    assert extract(text, 3).count("The red fox eats fish.") == 1
