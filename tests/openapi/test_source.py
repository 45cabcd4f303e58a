"""The documents a project names in `ferrule.toml`: loaded at start, again when they change, and reported when bad."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary
from ferrule.config import FerruleConfig
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.sources.openapi_source import OpenApiDocuments, OpenApiEntry
from tests.engine.test_tool_files import until
from tests.executors.local_server import Answer, Request, local_server
from tests.openapi.making import document, get

TWO = {"/pets": {"get": {"operationId": "list"}, "delete": {"operationId": "clear"}}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def project(folder: Path, text: str, **files: str) -> Path:
    (folder / "ferrule.toml").write_text(f"[engine]\nwatch_for_changes = true\n{text}")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content)
    return folder / "ferrule.toml"


async def test_the_documents_of_a_project_are_tools_and_a_bad_one_harms_nothing(tmp_path: Path):
    text = '[[openapi]]\nsource = "pets.json"\nexclude = ["clear"]\n[[openapi]]\nsource = "bad.json"\n'
    text += '[[openapi]]\nsource = "gone.json"\n'
    async with UnifiedToolLibrary.open(project(tmp_path, text, pets=document(TWO), bad="{}")) as library:
        pets = await library.get_tool_by_id("pet_shop")
        errors = [str(error) for error in library.engine.load_errors]
        assert (await library.execute_tool("echo", parameters={"message": "x"})).is_success
    assert pets is not None and [c.name for c in pets.capabilities] == ["list"]
    assert (
        "bad.json:1: this is no OpenAPI document" in errors[0] and "gone.json:1: the file cannot be read" in errors[1]
    )


async def test_a_saved_document_is_loaded_again_and_a_broken_one_keeps_its_last_good_tool(tmp_path: Path):
    path = project(tmp_path, '[[openapi]]\nsource = "pets.json"\n', pets=document(get("/pets")))
    async with UnifiedToolLibrary.open(path) as library:
        (tmp_path / "pets.json").write_text(document(TWO))
        await until(lambda: any(s["function"]["name"] == "pet_shop__list" for s in library.schemas()))
        (tmp_path / "pets.json").write_text("{")
        await until(lambda: bool(library.engine.load_errors))
        assert library.engine.registry.find("pet_shop", "clear")


async def test_a_document_cannot_take_the_name_of_another_tool_of_the_project(tmp_path: Path):
    path = project(tmp_path, '[[openapi]]\nsource = "pets.json"\nname = "hi"\n', pets=document(TWO))
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/hi.yaml").write_text("name: hi\ncategory: custom\nentry: {type: builtin, handler: echo}\n")
    async with UnifiedToolLibrary.open(path) as library:
        [error] = library.engine.load_errors
        assert library.engine.registry.find_tool("hi").handler == "echo"
    assert "pets.json:1: there is a tool 'hi' already, from" in str(error)


async def test_a_document_at_a_url_is_kept_for_when_it_cannot_be_fetched(tmp_path: Path):
    status = 200

    def answer(request: Request) -> Answer:
        return status, {"content-type": "application/json"}, document(TWO).encode()

    async with local_server(answer) as server:
        text = f'[http]\nallow_private_addresses = true\n[[openapi]]\nsource = "{server.url}/openapi.json"\n'
        config = FerruleConfig.read(project(tmp_path, text))
        for expected_requests in (1, 1):
            async with UnifiedToolLibrary(engine=config.engine()) as library:
                assert library.engine.registry.find("pet_shop", "list")
            assert len(server.requests) == expected_requests
        [kept] = (tmp_path / "cache/ferrule/openapi").iterdir()
        os.utime(kept, (time.time() - 7200, time.time() - 7200))
        status = 500
        async with UnifiedToolLibrary(engine=config.engine()) as library:
            assert library.engine.registry.find("pet_shop", "list") and not library.engine.load_errors
        assert len(server.requests) == 2 and kept.stat().st_mode & 0o077 == 0


async def test_the_kept_copy_is_used_too_when_something_else_stands_at_the_url(tmp_path: Path):
    body = document(TWO)
    async with local_server(lambda request: (200, {}, body.encode())) as server:
        entry = OpenApiEntry(source=f"{server.url}/openapi.json")
        guard = AddressGuard(allow_private=True)
        await asyncio.to_thread(OpenApiDocuments([entry], guard, tmp_path).load)
        [kept] = tmp_path.iterdir()
        os.utime(kept, (time.time() - 7200, time.time() - 7200))
        body = "<html>Log in first.</html>"
        report = await asyncio.to_thread(OpenApiDocuments([entry], guard, tmp_path).load)
    assert ([tool.id for tool in report.tools], report.errors, len(server.requests)) == (["pet_shop"], (), 2)


async def test_what_the_configuration_allows_holds_for_documents_that_a_program_registers(tmp_path: Path):
    path = project(tmp_path, '[http]\nallowed_hosts = ["127.0.0.1"]\n')
    async with local_server(lambda request: (200, {}, document(TWO).encode())) as server:
        async with UnifiedToolLibrary.open(path) as library:
            allowed = await library.register_openapi(f"{server.url}/openapi.json")
        async with UnifiedToolLibrary() as library:
            refused = await library.register_openapi(f"{server.url}/openapi.json")
    assert (allowed.success, refused.success) == (True, False)


async def test_an_address_that_may_not_be_reached_is_reported(tmp_path: Path):
    path = project(tmp_path, '[[openapi]]\nsource = "http://127.0.0.1:9/openapi.json"\n')
    async with UnifiedToolLibrary.open(path) as library:
        [error] = library.engine.load_errors
        assert (await library.execute_tool("echo", parameters={"message": "x"})).is_success
    assert str(error).startswith("http://127.0.0.1:9/openapi.json: the document cannot be fetched")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"exclude": ["clera"]}, "there is no operation 'clera'. Did you mean 'clear'?"),
        ({"operations": ["list"], "exclude": ["GET /pets"]}, "no operation of the document is left"),
    ],
)
def test_what_cannot_be_left_out_is_told(tmp_path: Path, said: dict[str, Any], says: str):
    (tmp_path / "pets.json").write_text(document(TWO))
    entry = OpenApiEntry(source=str(tmp_path / "pets.json"), **said)
    [error] = OpenApiDocuments([entry], AddressGuard()).load().errors
    assert says in error.message


def test_a_document_that_did_not_change_gives_the_very_same_tool(tmp_path: Path):
    (tmp_path / "pets.json").write_text(json.dumps(json.loads(document(TWO))))
    documents = OpenApiDocuments([OpenApiEntry(source=str(tmp_path / "pets.json"))], AddressGuard())
    assert documents.load().tools[0] is documents.load().tools[0]
