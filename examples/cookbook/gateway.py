"""A gateway for a team: one server in front of all tools, with a token for each client and a record of each call.

`support` may only read; `ops` may change things, and a refund by anybody needs the approval of somebody with the role
`approver`. The application is served in this process; in production `ferrule serve` does it with the same settings.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import httpx

from ferrule import Policy, Rule, UnifiedToolLibrary, tool
from ferrule.server.app import create_app
from ferrule.server.tokens import Tokens

POLICY = Policy(rules=[Rule(verdict="ask", tool="refund", principal="token:*", reason="Refunds need a second person.")])


@tool(read_only=True)
async def find_order(number: int) -> dict[str, Any]:
    """Find an order."""
    return {"number": number, "total": 58.5}


@tool(destructive=True)
async def refund(number: int) -> str:
    """Refund an order."""
    return f"refunded order {number}"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        library = UnifiedToolLibrary(store=f"sqlite:///{Path(folder, 'calls.db')}", policy=POLICY)
        library.register(find_order, refund)
        tokens = Tokens(library.engine.store)
        texts = {
            "support": (await tokens.create("support", roles=["caller"], max_effect="read_only"))[1],
            "ops": (await tokens.create("ops", roles=["caller"]))[1],
            "lead": (await tokens.create("lead", roles=["approver"]))[1],
        }
        transport = httpx.ASGITransport(create_app(library))
        async with library, httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            await use_gateway(http, {name: {"Authorization": f"Bearer {text}"} for name, text in texts.items()})


async def use_gateway(http: httpx.AsyncClient, headers: dict[str, dict[str, str]]) -> None:
    for name in ("support", "ops"):
        listed = (await http.get("/v1/tools", headers=headers[name])).json()["tools"]
        print(name, "sees", sorted(each["name"] for each in listed if each["name"] in ("find_order", "refund")))

    request = {"arguments": {"number": 1002}}
    refused = await http.post("/v1/tools/refund/call", json=request, headers=headers["support"])
    print("support refunds:", refused.status_code)
    waiting = await http.post("/v1/tools/refund/call", json=request, headers=headers["ops"])
    approval = waiting.json()["metadata"]["approval_id"]
    print("ops refunds:", waiting.status_code)
    await http.post(f"/v1/approvals/{approval}", json={"allowed": True}, headers=headers["lead"])
    done = await http.post("/v1/tools/refund/call", json={**request, "approval_id": approval}, headers=headers["ops"])
    print("ops refunds again:", done.status_code, done.json()["output"])

    calls = (await http.get("/v1/calls", headers=headers["lead"])).json()["calls"]
    for call in reversed(calls):
        print("record:", call["principal"], call["tool_name"], call["status"])


if __name__ == "__main__":
    asyncio.run(main())
