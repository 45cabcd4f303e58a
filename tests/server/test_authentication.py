"""Tokens while the store or an issuer is slow or away, and when they are revoked at the same time."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

from ferrule.config import OAuthSection
from ferrule.errors import StoreError
from ferrule.server import authentication
from ferrule.server.tokens import TOKEN_PREFIX, Tokens, hash_token
from ferrule.store import ToolKnowledgeStore
from ferrule.store.tokens import find_token, has_token
from tests.server.application import serve
from tests.server.issuer import run_issuer
from tests.support.waiting import until


class SlowStore(ToolKnowledgeStore):
    """A store whose answers about tokens can be held back, or lost."""

    def __init__(self) -> None:
        super().__init__("sqlite://")
        self.waiting = 0
        self.is_away = False
        self._exempt = ""
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    @contextmanager
    def held(self, exempt: str = "") -> Iterator[None]:
        """Let the answers about all tokens but one wait."""
        self._exempt = hash_token(exempt)
        self._may_answer.clear()
        try:
            yield
        finally:
            self._may_answer.set()

    async def query_without_records(self, function: Any, *arguments: Any, **options: Any) -> Any:
        if function not in (find_token, has_token):
            return await super().query_without_records(function, *arguments, **options)
        answer = await super().query_without_records(function, *arguments, **options)
        if arguments[:1] != (self._exempt,):
            self.waiting += 1
            await self._may_answer.wait()
            self.waiting -= 1
        if self.is_away:
            raise StoreError("it is away")
        return answer


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture(autouse=True)
def every_request_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "CHECK_INTERVAL", 0.0)


async def get_status(http: httpx.AsyncClient, token: str | None = None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return (await http.get("/v1/me", headers=headers)).status_code


async def test_a_look_up_that_failed_after_its_request_was_answered_is_repeated(
    store: SlowStore, monkeypatch: pytest.MonkeyPatch
):
    async with serve(store=store) as site, site.client("c") as http:
        assert await get_status(http) == 200
        with monkeypatch.context() as patch, store.held():
            patch.setattr(authentication, "LOOKUP_TIMEOUT", 0.0)
            assert await get_status(http) == 200  # as the store said before
            store.is_away = True
        await until(lambda: store.waiting == 0)
        assert await get_status(http) == 200  # the store is away
        store.is_away = False
        await Tokens(store).revoke("c")  # as another server does
        assert await get_status(http) == 401


async def test_a_look_up_from_before_a_revocation_does_not_undo_it(store: SlowStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(authentication, "LOOKUP_TIMEOUT", 600.0)
    async with (
        serve(store=store) as site,
        site.client("boss", roles=["admin"]) as boss,
        site.client("known") as known,
        site.client("new") as new,
    ):
        assert [await get_status(each) for each in (boss, known)] == [200, 200]
        with store.held(exempt=boss.headers["Authorization"].removeprefix("Bearer ")):
            requests = [asyncio.create_task(get_status(each)) for each in (known, new)]
            await until(lambda: store.waiting == 2)  # both were found valid, one of them for the first time
            for name in ("known", "new"):
                assert (await boss.delete(f"/v1/tokens/{name}")).status_code == 200
        assert [await each for each in requests] == [401, 401]


async def test_a_revoked_token_is_not_accepted_while_its_look_up_takes_long(
    store: SlowStore, monkeypatch: pytest.MonkeyPatch
):
    async with serve(store=store) as site, site.client("boss", roles=["admin"]) as boss, site.client("c") as http:
        assert await get_status(http) == 200
        boss_token = boss.headers["Authorization"].removeprefix("Bearer ")
        with store.held(exempt=boss_token), monkeypatch.context() as patch:
            patch.setattr(authentication, "LOOKUP_TIMEOUT", 0.0)
            assert await get_status(http) == 200  # as the store said before
            await boss.delete("/v1/tokens/c")
            request = asyncio.create_task(get_status(http))
            await asyncio.sleep(0.01)  # a moment in which a wrong server would answer
            assert not request.done()
        assert await request == 401


async def test_a_server_is_not_open_again_by_a_look_up_from_before_its_first_token(
    store: SlowStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(authentication, "LOOKUP_TIMEOUT", 600.0)
    async with serve(store=store, is_open=True) as site, site.anonymous_client() as http:
        assert await get_status(http) == 200
        with store.held():
            request = asyncio.create_task(get_status(http))
            await until(lambda: store.waiting == 1)
            monkeypatch.setattr(authentication, "LOOKUP_TIMEOUT", 0.0)
            assert (await http.post("/v1/tokens", json={"name": "first"})).status_code == 201
        assert [await request, await get_status(http)] == [401, 401]


@pytest.mark.parametrize("times", [1, 2])
async def test_invented_tokens_do_not_hold_up_known_ones(store: SlowStore, times: int):
    invented = [f"{TOKEN_PREFIX}{number}" for number in range(2 * authentication.MAX_LOOKUPS)]
    async with serve(store=store) as site, site.client("c") as http:
        assert await get_status(http) == 200
        for _ in range(times - 1):
            assert {await get_status(http, each) for each in invented} == {401}
        with store.held():
            requests = [asyncio.create_task(get_status(http, each)) for each in invented]
            await until(lambda: store.waiting == authentication.MAX_LOOKUPS)
            known = asyncio.create_task(get_status(http))
            await until(lambda: store.waiting == authentication.MAX_LOOKUPS + 1)  # it was asked about at once
        assert await known == 200 and {await each for each in requests} == {401}


@pytest.mark.integration
async def test_a_slow_issuer_does_not_hold_up_tokens_of_the_server(store: SlowStore):
    with run_issuer() as issuer:
        oauth = OAuthSection(issuer=issuer.url, audience="https://tools.example.com/mcp")
        async with serve(store=store, oauth=oauth) as site, site.client("c") as http:
            with issuer.held():
                tokens = [issuer.sign(scope="ferrule:read", sub=str(number)) for number in range(8)]
                requests = [asyncio.create_task(get_status(http, each)) for each in tokens]
                await until(lambda: issuer.requests)
                assert [await get_status(http) for _ in range(3)] == [200] * 3
                assert not any(each.done() for each in requests)
            assert {await each for each in requests} == {200}
