"""A model that repeats a wrong selector, without and with a failure memory: python examples/stars.py"""

import asyncio
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from ferrule import UnifiedToolLibrary
from ferrule.agent import Agent, AgentAnswer, RunLimits
from ferrule.core.model import ModelRequest
from ferrule.testing import ScriptedModel
from ferrule_tools.browser import BrowserNavigator

PAGE = b"""<!doctype html><title>acme/anvil</title>
<nav><a href="/">Home</a> <a href="/pulls">Pull requests 4</a> <a href="/issues">Issues 17</a></nav>
<h1>acme / anvil</h1><button>Watch <span class="Counter">210</span></button>
<a href="/fork">Fork <span id="repo-network-counter" class="Counter">3.1k</span></a>
<a href="/stars">Star <span id="repo-stars-counter-star" class="Counter js-social-count">28.4k</span></a>"""


class RepositoryPage(BaseHTTPRequestHandler):
    """Serves the page of a repository."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *args: object) -> None:
        pass


def next_reply(request: ModelRequest) -> str | dict[str, object]:
    """Read `a.social-count` again and again, unless the last result suggests another selector."""
    result = str(request.messages[-1]["content"])
    if result.startswith("{") and "text" in (element := json.loads(result)):
        return f"It has {element['text']} stars."
    suggestion = re.search(r"Try instead: (\{.*?\})[;.]", result)
    arguments = json.loads(suggestion[1]) if suggestion else {"selector": "a.social-count"}
    return {"name": "browser_navigator__extract", "arguments": arguments}


async def ask(url: str, *, memory: bool) -> AgentAnswer:
    model = ScriptedModel([{"name": "browser_navigator__navigate", "arguments": {"url": url}}, next_reply], loop=True)
    async with UnifiedToolLibrary() as library:
        library.register(BrowserNavigator(allow_private=True, element_timeout=0.2))
        return await Agent(library, model, memory=memory, limits=RunLimits(turns=16)).run(f"How many stars has {url}?")


def main() -> None:
    with HTTPServer(("127.0.0.1", 0), RepositoryPage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for memory in (False, True):
            answer = asyncio.run(ask(f"http://127.0.0.1:{server.server_port}/acme/anvil", memory=memory))
            print(f"\n{'With' if memory else 'Without'} a memory:")
            for step in answer.steps:
                target = step.arguments.get("selector") or step.arguments["url"]
                print(f"  {step.action} {target} → {step.text[:60]}…")
            print(f"  {answer.text.splitlines()[0]}")
        server.shutdown()


if __name__ == "__main__":
    main()
