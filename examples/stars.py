"""A model that insists on a wrong selector, without and with a memory: python examples/stars.py"""

import asyncio
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from ferrule import UnifiedToolLibrary
from ferrule.agent import Agent, AgentAnswer, RunLimits
from ferrule.models.model import ModelRequest
from ferrule.testing import ScriptedModel
from ferrule.tools.browser import BrowserNavigator

PAGE = b"""<!doctype html><title>acme/anvil</title>
<nav><a href="/">Home</a> <a href="/pulls">Pull requests 4</a> <a href="/issues">Issues 17</a></nav>
<h1>acme / anvil</h1><button>Watch <span class="Counter">210</span></button>
<a href="/fork">Fork <span id="repo-network-counter" class="Counter">3.1k</span></a>
<a href="/stars">Star <span id="repo-stars-counter-star" class="Counter js-social-count">28.4k</span></a>"""


class Repository(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *args: object) -> None:
        pass


def insist(request: ModelRequest) -> str | dict[str, object]:
    """Ask for `a.social-count`, again and again; unless told of something else to try."""
    said = str(request.messages[-1]["content"])
    if said.startswith("{") and "text" in (read := json.loads(said)):
        return f"It has {read['text']} stars."
    suggestion = re.search(r"Try instead: (\{.*?\}) \(", said)
    arguments = json.loads(suggestion[1]) if suggestion else {"selector": "a.social-count"}
    return {"name": "browser_navigator__extract", "arguments": arguments}


async def ask(url: str, *, memory: bool) -> AgentAnswer:
    model = ScriptedModel([{"name": "browser_navigator__navigate", "arguments": {"url": url}}, insist], loop=True)
    async with UnifiedToolLibrary() as library:
        library.register(BrowserNavigator(allow_private=True, patience=0.2))
        return await Agent(library, model, memory=memory, limits=RunLimits(turns=16)).run(f"How many stars has {url}?")


def main() -> None:
    with HTTPServer(("127.0.0.1", 0), Repository) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for memory in (False, True):
            answer = asyncio.run(ask(f"http://127.0.0.1:{server.server_port}/acme/anvil", memory=memory))
            print(f"\n{'With' if memory else 'Without'} a memory:")
            for step in answer.steps:
                print(f"  {step.action} {json.dumps(step.arguments)} → {step.text[:60]}…")
            print(f"  {answer.text.splitlines()[0]}")
        server.shutdown()


if __name__ == "__main__":
    main()
