"""How many questions find their tools among hundreds that people outside have described."""

import pytest
from benchmarks.tool_search import find, read_own_questions, read_shared_questions, recall

from tests.catalog.search.searchable_tools import (
    function_docs,
    mcp_servers,
    needs_data,
    needs_encoder,
    shared_servers,
)

OWN, SITUATIONS, WHOLE, BY_STEP = "own, requests", "own, situations", "shared, whole", "shared, by step"


@needs_data
async def test_words_find_what_requests_name():
    found = await find([*function_docs(), *mcp_servers()], read_own_questions(), by_meaning=False)
    assert recall(found, 5, kind=OWN, language="English") >= 0.86
    assert recall(found, 5, kind=OWN, language="Chinese") >= 0.64


@pytest.mark.long
@needs_data
@needs_encoder
async def test_meaning_finds_what_words_do_not_in_both_languages():
    found = await find([*function_docs(), *mcp_servers()], read_own_questions(), by_meaning=True)
    assert recall(found, 5, kind=OWN) >= 0.95 and recall(found, 5, kind=SITUATIONS) >= 0.76
    assert recall(found, 5, kind=OWN, language="Chinese") >= 0.9


@needs_data
async def test_words_find_the_tools_of_several_jobs():
    found = await find(shared_servers(), read_shared_questions(), by_meaning=False)
    assert recall(found, 5, kind=WHOLE) >= 0.37 and recall(found, 20, kind=WHOLE) >= 0.58
    assert recall(found, 5, kind=BY_STEP) >= 0.7


@pytest.mark.long
@needs_data
@needs_encoder
async def test_meaning_finds_the_tools_of_several_jobs():
    found = await find(shared_servers(), read_shared_questions(), by_meaning=True)
    assert recall(found, 5, kind=WHOLE) >= 0.42 and recall(found, 20, kind=WHOLE) >= 0.66
    assert recall(found, 5, kind=BY_STEP) >= 0.78
