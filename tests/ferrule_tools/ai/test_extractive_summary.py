"""Sentences, parts of texts, and summaries made of sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule_tools.ai.summarize import MAX_SENTENCE, extract_sentences, split_sentences, split_text

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
def test_sentences_are_split_at_their_ends(text, sentences):
    actual = split_sentences(text)
    assert actual == (sentences or actual)
    assert len(actual) == (2 if sentences is None else len(sentences))


@given(TEXTS)
def test_no_text_is_lost_between_sentences(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
    assert all(len(sentence) <= MAX_SENTENCE for sentence in split_sentences(text))


@given(TEXTS, st.integers(min_value=2, max_value=50))
def test_joined_parts_are_the_text(text, max_length):
    parts = split_text(text, max_length)
    assert "".join(parts) == text and all(len(part) <= max_length for part in parts)


@given(TEXTS, st.integers(min_value=1, max_value=5))
def test_a_summary_consists_of_sentences_of_the_text(text, count):
    summary = extract_sentences(text, count)
    remaining = iter("".join(text.split()))
    assert all(char in remaining for char in "".join(summary.split()))  # in their own order
    assert summary or not text.split()


def test_patterns_take_linear_time():
    # With a quadratic pattern, each of these would take minutes.
    for text in (".", '."', "\n", "\n ", "x", "很", "\n-", "a. ", "```"):
        assert len(extract_sentences(text * 60_000 + "x", 5)) <= 5 * (MAX_SENTENCE + 1)


def test_code_tables_and_headings_are_no_sentences():
    text = (
        "# Title\n\nThe tool reads files. " + "```python\nimport os\n```\n| a | b |\n|---|---|\n\nIt writes files too."
    )
    assert extract_sentences(text, 2) == "The tool reads files. It writes files too."


def test_a_text_of_code_only_has_a_summary_too():
    assert extract_sentences("```\nprint(1)\n```", 2) != ""


def test_a_summary_does_not_repeat_itself():
    text = "The red fox eats fish. " * 20 + "The moon is far away. Stars shine at night. Water is wet."
    assert extract_sentences(text, 3).count("The red fox eats fish.") == 1
