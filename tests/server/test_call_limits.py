"""The limits of tokens and tenants hold on one server, or on all servers of a store together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from ferrule import tool
from ferrule.concurrency import ConcurrencyConfig
from ferrule.errors import Rejected, Transient
from ferrule.server import call_limits
from ferrule.server.call_limits import CallAllowance, CallLimits
from ferrule.server.tokens import AccessToken, Tokens
from ferrule.store import ToolKnowledgeStore
from tests.server.application import serve
from tests.server.serving import MCP_HEADERS, MCP_META
from tests.support.waiting import until

pytestmark = pytest.mark.integration  # servers that share a store answer each other in real time

SHARED = ConcurrencyConfig(shared=True, lease_seconds=600)


@asynccontextmanager
async def open_servers(
    url: str, tenants: dict[str, CallAllowance] | None = None, config: ConcurrencyConfig = SHARED
) -> AsyncIterator[tuple[CallLimits, CallLimits, Callable[..., Awaitable[AccessToken]]]]:
    """The limits of two servers, and a function that makes tokens."""
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(ToolKnowledgeStore(url)) for _ in range(2)]
        first, second = (CallLimits(store, config, tenants) for store in stores)

        async def create_token(name: str, **grants: Any) -> AccessToken:
            return (await Tokens(stores[0]).create(name, roles=["caller"], **grants))[0]

        try:
            yield first, second, create_token
        finally:
            await first.aclose()
            await second.aclose()


async def is_allowed(client: Any) -> bool:
    """Whether a call of the client is not rejected."""
    try:
        async with client.slot():
            return True
    except Rejected:
        return False


async def call_until_allowed(*clients: Any) -> None:
    """Make one call of each client: what another server gives back may come later than a call waits for it."""
    for client in clients:
        while not await is_allowed(client):
            pass


async def test_concurrent_calls_of_a_token_are_counted_on_all_servers(shared_store_url):
    async with open_servers(shared_store_url) as (first, second, create_token):
        token = await create_token("ci", max_concurrent=2)
        one, other = first.find(token), second.find(token)
        async with one.slot(), other.slot():
            for client in (one, other):
                with pytest.raises(Rejected, match="on all servers together") as error:
                    async with client.slot():
                        pass
                assert error.value.details["retry_after"] == 1
        await call_until_allowed(other, one)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls wait for a slot of another server for as long as a busy machine takes."""
    monkeypatch.setattr(call_limits, "SLOT_TIMEOUT", 60.0)


@pytest.mark.usefixtures("patient")
async def test_calls_one_after_the_other_are_within_a_limit_of_one(shared_store_url):
    """A server gives back a slot that it does not use to one whose call waits for it."""
    async with open_servers(shared_store_url) as (first, second, create_token):
        token = await create_token("ci", max_concurrent=1)
        for client in [first.find(token), second.find(token)] * 3:
            assert await is_allowed(client)


async def test_calls_a_minute_are_counted_on_all_servers(shared_store_url):
    async with open_servers(shared_store_url) as (first, second, create_token):
        token = await create_token("ci", calls_per_minute=2.0)
        one, other = first.find(token), second.find(token)
        await call_until_allowed(one, other)
        assert not await is_allowed(other)
        with pytest.raises(Rejected, match=r"This token may make 2 calls a minute\. Try again in"):
            async with one.slot():
                pass


async def test_each_call_of_a_batch_counts(shared_store_url):
    async with open_servers(shared_store_url) as (first, second, create_token):
        token = await create_token("ci", calls_per_minute=3.0, max_concurrent=2)
        one, other = first.find(token), second.find(token)
        with pytest.raises(Rejected, match="Send fewer than these 4 calls"):
            async with one.slot(4):
                pass
        async with one.slot(2) as concurrent:
            assert concurrent == 2
            assert not await is_allowed(other)
        await call_until_allowed(other)
        assert not await is_allowed(other)


async def test_the_tokens_of_a_tenant_share_its_limit(shared_store_url):
    allowance = CallAllowance(holder="The tenant 'acme'", max_concurrent=1)
    tenants = {"acme": allowance, "*": replace(allowance, holder="This tenant", max_concurrent=2)}
    async with open_servers(shared_store_url, tenants) as (first, second, create_token):
        one, two = [await create_token(name, tenant="acme") for name in ("one", "two")]
        elsewhere, nowhere = await create_token("three", tenant="other"), await create_token("four")
        async with first.find(one).slot():
            with pytest.raises(Rejected, match="The tenant 'acme' may have 1 calls running"):
                async with second.find(two).slot():
                    pass
            async with second.find(elsewhere).slot(3) as concurrent, second.find(nowhere).slot(3) as unlimited:
                assert (concurrent, unlimited) == (2, 3)


@pytest.mark.usefixtures("patient")
async def test_what_a_server_holds_is_free_when_it_ends(shared_store_url):
    async with open_servers(shared_store_url) as (first, second, create_token):
        token = await create_token("ci", max_concurrent=1)
        assert await is_allowed(first.find(token))
        await first.aclose()
        assert await is_allowed(second.find(token))


@pytest.mark.usefixtures("patient")
async def test_a_cancelled_request_leaves_nothing_behind(shared_store_url):
    async with open_servers(shared_store_url) as (first, second, create_token):
        token = await create_token("ci", max_concurrent=1)
        one, other = first.find(token), second.find(token)

        async def call() -> None:
            async with other.slot():
                raise AssertionError

        async with one.slot():
            waiting = asyncio.create_task(call())
            await asyncio.sleep(0)  # it has begun to wait
            waiting.cancel()
            await asyncio.wait({waiting})
        assert await is_allowed(other) and await is_allowed(one)


async def test_without_shared_limits_each_server_counts_for_itself():
    tenants = {"acme": CallAllowance(holder="The tenant 'acme'", per_minute=1.0)}
    async with open_servers("sqlite://", tenants, ConcurrencyConfig()) as (first, second, create_token):
        token = await create_token("ci", max_concurrent=1, tenant="acme")
        async with first.find(token).slot(), second.find(token).slot():
            with pytest.raises(Rejected, match="This token has 1 calls running"):
                async with first.find(token).slot():
                    pass
        with pytest.raises(Rejected, match="The tenant 'acme' may make 1 calls a minute"):
            async with first.find(token).slot():
                pass


async def test_no_client_reaches_the_exemption_of_workflow_nodes() -> None:
    """Calls of workflow nodes are not limited; a client cannot say that its call is one, whatever it sends."""
    is_over, calls = asyncio.Event(), 0

    @tool(bucket="pay")
    async def pay() -> str:
        """Pay."""
        nonlocal calls
        calls += 1
        await is_over.wait()
        return "paid"

    limits = ConcurrencyConfig(bucket_limits={"pay": 1}, strategy="reject")
    claim = {"caller_type": "workflow_node", "workflow_id": "w", "caller_id": "node"}
    names = {"X-Caller-Type": "workflow_node", "X-Ferrule-Caller-Type": "workflow_node", "Caller-Type": "workflow_node"}
    meta = {**MCP_META, **claim, "ferrule/caller_type": "workflow_node"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/tools/pay/call", {"arguments": {}, **claim}),
        ("/v1/tools/pay/call", {"arguments": {}, "context": claim}),
        ("/v1/tools/pay/call", {"arguments": claim}),
        ("/v1/calls", {"calls": [{"tool": "pay", "arguments": {}, **claim}]}),
        ("/mcp", {**message, "params": {"name": "pay", "arguments": {}, "_meta": meta}}),
        ("/mcp", {**message, "params": {"name": "pay", "arguments": {}, "_meta": meta, **claim}}),
    ]
    async with serve(pay, concurrency=limits) as site, site.lifespan(), site.client("worker") as http:
        first = asyncio.create_task(http.post("/v1/tools/pay/call", json={"arguments": {}}))
        await until(lambda: calls == 1)
        for path, body in bodies:
            for parameters in ({}, claim):
                headers = {**names, **MCP_HEADERS, "mcp-method": "tools/call", "mcp-name": "pay"}
                response = await http.post(path, json=body, params=parameters, headers=headers)
                assert calls == 1, (path, body, response.text)
        is_over.set()
        assert (await first).json()["is_success"] and calls == 1


async def test_adaptive_limits_are_metrics():
    @tool(bucket="pay", idempotent=False)
    async def pay() -> str:
        """Pay."""
        raise Transient("too many requests", status_code=429)

    limits = ConcurrencyConfig(bucket_limits={"pay": 10}, adaptive_limits={"pay": 1})
    async with serve(pay, concurrency=limits) as site, site.client("root", roles=["admin"]) as root:
        await root.post("/v1/tools/pay/call", json={"arguments": {}})
        text = (await root.get("/metrics")).text
    assert 'ferrule_slots{bucket="pay",limit="configured"} 10.0' in text
    assert 'ferrule_slots{bucket="pay",limit="adaptive"} 7.0' in text
