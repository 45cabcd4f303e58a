"""Tools that people outside have described, found by what they wrote."""

from ferrule.catalog.search import SearchIndex
from tests.catalog.search.searchable_tools import mcp_servers, needs_data


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
