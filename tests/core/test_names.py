import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.core.names import decode_model_name, encode_model_name, model_name, similar_names, split_model_name
from tests.support.shared_data import shared_data

NAMES = st.text(st.sampled_from("ab2e-_./ 网页") | st.characters(), min_size=1, max_size=80)
FUNCTION_DOCS = shared_data("function_docs.jsonl")


@given(NAMES)
def test_any_name_becomes_one_that_model_apis_allow(name):
    encoded = encode_model_name(name)
    assert 1 <= len(encoded) <= 64
    assert all(c.isascii() and (c.isalnum() or c in "_-") for c in encoded)


@given(NAMES)
def test_a_name_within_the_limit_can_be_decoded(name):
    encoded = encode_model_name(name)
    if "-h-" not in encoded:
        assert decode_model_name(encoded) == name


@given(NAMES, NAMES)
def test_two_names_are_never_encoded_alike(first, second):
    if first != second:
        assert encode_model_name(first) != encode_model_name(second)


PARTS = st.text(st.sampled_from("ab_-."), min_size=1, max_size=8)


@given(PARTS, PARTS, PARTS, PARTS)
def test_no_two_actions_have_the_same_name(tool, action, other_tool, other_action):
    if (tool, action) != (other_tool, other_action):
        assert model_name(tool, action) != model_name(other_tool, other_action)


@given(NAMES, NAMES)
def test_a_name_is_split_into_its_tool_and_its_action(tool, action):
    name = model_name(tool, action)
    if "-h-" not in name:
        assert split_model_name(name) == (tool, action)


def test_an_allowed_name_stays_unchanged():
    assert encode_model_name("search_web-2") == "search_web-2"


def test_dots_slashes_and_chinese_are_encoded():
    assert encode_model_name("math.factorial") == "math-2e-factorial"
    assert decode_model_name(encode_model_name("网页/导航 器")) == "网页/导航 器"


def test_an_action_follows_two_underscores():
    assert model_name("browser", "click") == "browser__click"
    assert model_name("browser") == "browser"


def test_a_name_that_only_looks_encoded_is_left_alone():
    assert decode_model_name("x-ffffff-y") == "x-ffffff-y"


def test_similar_names_include_typos_and_other_spellings():
    assert similar_names("HTTP-Request", ["http_request", "echo"]) == ["http_request"]
    assert similar_names("zzz", ["http_request", "echo"]) == []


@pytest.mark.skipif(not FUNCTION_DOCS.exists(), reason=f"needs {FUNCTION_DOCS.name} in shared/data beside the project")
def test_real_function_names_can_be_decoded_and_stay_distinct():
    names = {json.loads(line)["name"] for line in FUNCTION_DOCS.read_text().splitlines()}
    encoded = {encode_model_name(name): name for name in names}
    assert len(encoded) == len(names)
    assert all(decode_model_name(w) == n for w, n in encoded.items() if "-h-" not in w)
