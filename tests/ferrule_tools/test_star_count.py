"""Fifteen steps spent on one wrong selector, and how a memory ends that: in a real browser."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule import UnifiedToolLibrary
from ferrule.agent import Agent, RunLimits
from ferrule.kinds.function.tools import tool_of
from ferrule.memory.failures import FailureClass
from ferrule.testing import ScriptedModel
from ferrule_tools.browser import BrowserNavigator
from tests.ferrule_tools.sites import site as serve

REPOSITORY = """<!doctype html><title>acme/anvil</title>
<nav><a href="/">Home</a> <a href="/pulls">Pull requests 4</a> <a href="/issues">Issues 17</a></nav>
<h1><a href="/acme">acme</a> / <a href="/acme/anvil">anvil</a></h1>
<ul class="pagehead-actions">
  <li><button>Watch <span class="Counter">210</span></button></li>
  <li><a href="/fork">Fork <span id="repo-network-counter" class="Counter">3.1k</span></a></li>
  <li><a href="/stars">Star <span id="repo-stars-counter-star" class="Counter js-social-count">28.4k</span></a></li>
</ul><p>An anvil for every blacksmith since 1949.</p>"""

pytestmark = pytest.mark.integration

TASK = "How many stars has this repository?"


@pytest.fixture(scope="module")
def web(runner):
    with serve(runner, {"/acme/anvil": REPOSITORY}, BrowserNavigator()) as opened:
        yield opened


def insisting(url, *, follows):
    """Opens the page and asks for `a.social-count`, again and again; unless it is told of something else to try."""

    def insist(request):
        said = str(request.messages[-1]["content"])
        if said.startswith("{") and "text" in (told := json.loads(said)):
            return f"It has {told['text']} stars."
        suggestion = re.search(r"Try instead: (\{.*?\})[;.]", said) if follows else None
        arguments = json.loads(suggestion[1]) if suggestion else {"selector": "a.social-count"}
        return {"name": "browser_navigator__extract", "arguments": arguments}

    return ScriptedModel([{"name": "browser_navigator__navigate", "arguments": {"url": url}}, insist], loop=True)


async def run(web, library, *, follows):
    library.register(tool_of(BrowserNavigator(allow_private=True, element_timeout=3), timeout=120))
    model = insisting(f"{web.server.url}/acme/anvil", follows=follows)
    return await Agent(library, model, limits=RunLimits(turns=16)).run(TASK)


async def test_with_a_memory_what_was_seen_on_the_page_succeeds_at_once(runner, web):
    async with UnifiedToolLibrary() as library:
        answer = await run(web, library, follows=True)
    failed, worked = answer.steps[1:]
    assert failed.arguments["selector"] == "a.social-count" and not failed.is_success
    assert worked.arguments["selector"] == "span#repo-stars-counter-star" and worked.is_success
    assert answer.text == "It has 28.4k stars." and answer.is_finished


async def test_even_a_model_that_does_not_listen_has_it_tried_once(runner, web):
    async with UnifiedToolLibrary() as library:
        answer = await run(web, library, follows=False)
        [pattern] = library.failures.patterns()
    assert [step.error_type for step in answer.steps[1:]] == ["execution_error"] + ["known_failure"] * 3
    assert all('{"selector":"span#repo-stars-counter-star"}' in step.text_for_model for step in answer.steps[1:])
    assert (pattern.tool_id, pattern.failure_class) == ("browser_navigator", FailureClass.NOT_FOUND)
    assert answer.steps[-1].text.startswith("This call of 'browser_navigator' failed once before")


@pytest.mark.long
async def test_the_example_shows_both(runner):
    example = Path(__file__).parents[2] / "examples" / "stars.py"
    process = await asyncio.create_subprocess_exec(sys.executable, str(example), stdout=subprocess.PIPE)
    said = (await process.communicate())[0].decode()
    without, with_memory = said.split("With a memory:")
    assert process.returncode == 0 and without.count("extract a.social-count") == 15
    assert with_memory.count("a.social-count") == 2  # the call and its error
    assert with_memory.rstrip().endswith("It has 28.4k stars.")
