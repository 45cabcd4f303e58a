"""How many questions find their tool among two thousand that people outside have described."""

import pytest
from benchmarks.tool_search import measure_hits, share

from tests.catalog.search.searchable_tools import function_docs, mcp_servers, needs_data, needs_encoder


@needs_data
async def test_words_find_what_requests_name():
    hits = await measure_hits([*function_docs(), *mcp_servers()], by_meaning=False)
    assert share(hits, "request", language="English") >= 0.88
    assert share(hits, "request", language="Chinese") >= 0.8


@pytest.mark.long
@needs_data
@needs_encoder
async def test_meaning_finds_what_words_do_not_in_both_languages():
    hits = await measure_hits([*function_docs(), *mcp_servers()], by_meaning=True)
    assert share(hits, "request") >= 0.95 and share(hits, "fresh request") >= 0.87
    assert share(hits, "new request") >= 0.87
    assert share(hits, "request", language="Chinese") >= 0.9
    assert share(hits, "situation") >= 0.7
