import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.names import from_model_name, model_name, near_names, to_model_name

NAMES = st.text(st.sampled_from("ab2e-_./ 网页") | st.characters(), min_size=1, max_size=80)
FUNCTION_DOCS = Path(__file__).parents[2] / "shared/data/function_docs.jsonl"


@given(NAMES)
def test_any_name_becomes_one_that_model_apis_allow(name):
    written = to_model_name(name)
    assert 1 <= len(written) <= 64
    assert all(c.isascii() and (c.isalnum() or c in "_-") for c in written)


@given(NAMES)
def test_a_name_that_fits_reads_back(name):
    written = to_model_name(name)
    if "-h-" not in written:
        assert from_model_name(written) == name


@given(NAMES, NAMES)
def test_two_names_never_become_one(one, other):
    if one != other:
        assert to_model_name(one) != to_model_name(other)


def test_an_allowed_name_stays_as_it_is():
    assert to_model_name("search_web-2") == "search_web-2"


def test_dots_slashes_and_chinese_are_written_as_codes():
    assert to_model_name("math.factorial") == "math-2e-factorial"
    assert from_model_name(to_model_name("网页/导航 器")) == "网页/导航 器"


def test_an_action_is_written_behind_two_underscores():
    assert model_name("browser", "click") == "browser__click"
    assert model_name("browser") == "browser"


def test_a_foreign_name_that_looks_like_a_code_is_left_alone():
    assert from_model_name("x-ffffff-y") == "x-ffffff-y"


def test_near_names_find_typos_and_other_spellings():
    assert near_names("HTTP-Request", ["http_request", "echo"]) == ["http_request"]
    assert near_names("zzz", ["http_request", "echo"]) == []


@pytest.mark.skipif(not FUNCTION_DOCS.exists(), reason=f"needs {FUNCTION_DOCS.name} in shared/data beside the project")
def test_real_function_names_read_back_and_stay_apart():
    names = {json.loads(line)["name"] for line in FUNCTION_DOCS.read_text().splitlines()}
    written = {to_model_name(name): name for name in names}
    assert len(written) == len(names)
    assert all(from_model_name(w) == n for w, n in written.items() if "-h-" not in w)
