"""A request that has several jobs finds tools for each of them."""

import pytest

from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.search import RegistryIndex
from ferrule.catalog.search import index as registry_index
from ferrule.catalog.search.index import SearchIndex
from ferrule.catalog.search.terms import MAX_JOBS
from ferrule.core.spec import MCPServerSpec, Tool, ToolCapability
from tests.catalog.search.searchable_tools import make_tool, needs_encoder, office_tools


def make_server(name: str, **descriptions: str) -> Tool:
    actions = [ToolCapability(name=action, description=text) for action, text in descriptions.items()]
    return Tool(spec=MCPServerSpec(tool_id=name, capabilities=actions), handler="mcp", source="mcps")


def paper_tools() -> list[Tool]:
    """A server with many actions for papers, and a few tools for other jobs."""
    verbs = "Read Search Download Compare Cite Sort Rank Check List Convert Count Show"
    papers = {f"{v.lower()}_paper": f"{v} a research paper from the archive of papers." for v in verbs.split()}
    mails = {f"{v.lower()}_mail": f"{v} a mail." for v in ("Send", "Translate", "Read")}
    others = [make_tool("translate_text", "Translate text."), make_tool("send_fax", "Send a fax.")]
    return [make_server("papers", **papers), make_server("mails", **mails), *others]


def queries(tools: list[Tool], text: str) -> list[str]:
    return SearchIndex(tools).list_queries(text)


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("Read the paper. Translate the abstract!", ["Read the paper.", "Translate the abstract!"]),
        ("Read the paper, and then translate the abstract", ["Read the paper", "translate the abstract"]),
        ("Read the paper and send the abstract to Bob", ["Read the paper", "send the abstract to Bob"]),
        ("1. Read the paper\n2. Send the abstract to Bob", ["Read the paper", "Send the abstract to Bob"]),
        ("阅读这篇论文，然后翻译成中文", ["阅读这篇论文", "翻译成中文"]),
        ("查询北京天气。预订一家酒店", ["查询北京天气", "预订一家酒店"]),
        # What follows the comma or the conjunction is no job of its own.
        ("Read the paper about cats, dogs, and wild horses", []),
        ("Read the paper and mail", []),
        ("Read, send, translate", []),
        ("Read the paper", []),
        ("", []),
    ],
)
def test_a_request_is_searched_for_as_a_whole_and_by_its_jobs(text: str, jobs: list[str]):
    assert queries(paper_tools(), text) == [text, *jobs]


def test_verbs_are_what_the_descriptions_of_the_tools_begin_with():
    text = "Count the sheep and shear the fattest ones"
    wool = [make_tool("shear_sheep", "Shear a sheep."), make_tool("shear_goat", "Shear a goat.")]
    assert queries([], text) == [text]
    index = SearchIndex(wool)
    assert index.list_queries(text)[1:] == ["Count the sheep", "shear the fattest ones"]
    index.remove("shear_goat", "tools")
    assert index.list_queries(text) == [text]


@pytest.mark.parametrize("part", ["Read the paper. ", "and then ", " ,", "，"])
def test_the_number_of_jobs_is_limited(part: str):
    assert len(queries(paper_tools(), part * (1_000_000 // len(part)))) <= 1 + MAX_JOBS
    numbered = "\n".join(f"Read paper number{number} aloud." for number in range(1000))
    assert len(queries(paper_tools(), numbered)) == 1 + MAX_JOBS


async def test_each_job_has_a_place_among_the_first_ten(monkeypatch):
    monkeypatch.setattr(registry_index, "has_encoder", lambda: False)
    index = RegistryIndex(ToolRegistry(paper_tools()))
    text = "Search the archive for a research paper from the archive of papers, and send it by mail"
    found = [hit.action for hit in index.search_actions(text, 10)]
    assert "search_paper" in found and "send_mail" in found


async def test_of_three_jobs_the_first_five_are_not_actions_of_one_server():
    index = RegistryIndex(ToolRegistry(paper_tools()))
    text = "Search a research paper from the archive. Read the research paper from the archive. Translate the text."
    found = [hit.tool.id for hit in index.search_actions(text, 5)]
    assert "papers" in found and "translate_text" in found


def test_an_action_is_lifted_by_another_of_its_server_that_fits_better():
    git = make_server("git", show_commit="Show the commit of a repository.", show_all="Show everything.")
    other = make_tool("show_all_things", "Show everything.")
    found = SearchIndex([git, other]).search_actions("show the commit of the repository, everything")
    assert [hit.tool.id for hit in found] == ["git", "git", "show_all_things"]


@needs_encoder
async def test_the_meaning_of_each_job_counts():
    index = RegistryIndex(ToolRegistry(office_tools()))
    text = "明天会下雨吗？给小王写一封电子邮件"
    await index.prepare(text)
    assert {"tell_weather", "send_mail"} <= {hit.tool.id for hit in index.search(text)}
