"""Tools that people outside have described, found by what they wrote."""

from collections import Counter

from ferrule.catalog.search import SearchIndex
from ferrule.texts.shorten import first_sentence
from tests.catalog.search.searchable_tools import function_docs, mcp_servers, needs_data


@needs_data
def test_the_first_sentence_of_a_description_finds_its_function():
    tools = function_docs()
    index = SearchIndex(tools)
    sentences = {tool: first_sentence(tool.spec.description) for tool in tools}
    # Some begin with a sentence about the system they belong to, which is about no single one of them.
    times = Counter(sentences.values())
    query = [tool for tool in tools[::10] if times[sentences[tool]] == 1]
    hits = [tool in [hit.tool for hit in index.search(sentences[tool], 3)] for tool in query]
    assert len(hits) > 150 and sum(hits) / len(hits) > 0.97


@needs_data
def test_the_words_of_a_functions_name_find_it():
    tools = function_docs()
    index = SearchIndex(tools)
    query = {tool: tool.id.replace("_", " ").replace(".", " ") for tool in tools[::10]}
    hits = [tool in [hit.tool for hit in index.search(text, 3)] for tool, text in query.items()]
    assert sum(hits) / len(hits) > 0.98


@needs_data
def test_a_description_finds_the_server_and_the_action():
    index = SearchIndex(mcp_servers())
    for text, server, action in (
        ("read a file", "filesystem", "read_file"),
        ("list the directory", "filesystem", "list_directory"),
        ("current time", "time", "get_current_time"),
        ("create entities in the knowledge graph", "memory", "create_entities"),
        ("query the database", "sqlite", "read_query"),
        ("take a screenshot", "chrome-devtools", "take_screenshot"),
    ):
        hit = index.search(text)[0]
        assert (hit.tool.id, hit.actions[0]) == (server, action), text
