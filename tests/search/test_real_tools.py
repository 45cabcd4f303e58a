"""Tools that people outside have described, found by what they wrote."""

from collections import Counter

from ferrule.describe.sentences import first_sentence
from ferrule.search import SearchIndex
from tests.search.making import function_docs, mcp_servers, needs_data


@needs_data
def test_the_first_sentence_about_a_function_finds_it_among_the_first_three():
    tools = function_docs()
    index = SearchIndex(tools)
    sentences = {tool: first_sentence(tool.spec.description) for tool in tools}
    # Some begin with a sentence about the system they belong to, which is about no single one of them.
    times = Counter(sentences.values())
    asked = [tool for tool in tools[::10] if times[sentences[tool]] == 1]
    found = [tool in [hit.tool for hit in index.search(sentences[tool], 3)] for tool in asked]
    assert len(found) > 150 and sum(found) / len(found) > 0.97


@needs_data
def test_the_words_of_a_functions_name_find_it():
    tools = function_docs()
    index = SearchIndex(tools)
    asked = {tool: tool.id.replace("_", " ").replace(".", " ") for tool in tools[::10]}
    found = [tool in [hit.tool for hit in index.search(text, 3)] for tool, text in asked.items()]
    assert sum(found) / len(found) > 0.98


@needs_data
def test_a_sentence_about_what_a_real_server_can_do_finds_the_server_and_the_action():
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
