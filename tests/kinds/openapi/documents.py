"""Small documents, and calls of their operations through the engine."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ferrule.core.spec import JsonSchema, Tool
from ferrule.engine import ToolEngine, ToolEngineConfig
from ferrule.http.guard import AddressGuard
from ferrule.kinds.openapi.executor import OpenApiExecutor
from ferrule.kinds.openapi.tool import read_openapi

SERVER = "https://api.example/v1"


def document(paths: dict[str, Any], **more: Any) -> str:
    """A 3.0 document, unless `more` says otherwise."""
    said = {"openapi": "3.0.3", "info": {"title": "Pet Shop", "version": "2"}, "servers": [{"url": SERVER}]}
    return json.dumps({**said, "paths": paths, **more})


def document_2(paths: dict[str, Any], **more: Any) -> str:
    said = {"swagger": "2.0", "info": {"title": "Pet Shop"}, "host": "api.example", "basePath": "/v1"}
    return json.dumps({**said, "paths": paths, **more})


def get(path: str, *parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {path: {"get": {"operationId": "it", "parameters": list(parameters), **more}}}


def post(schema: JsonSchema, media_type: str = "application/json", **more: Any) -> dict[str, Any]:
    body = {"required": True, "content": {media_type: {"schema": schema}}}
    return {"/pets": {"post": {"operationId": "it", "requestBody": body, **more}}}


def schema_of(source: str, action: str = "it") -> JsonSchema:
    capability = read_openapi(source).spec.capability(action)
    assert capability is not None
    return capability.schema


@asynccontextmanager
async def engine_with(*tools: Tool, guard: AddressGuard | None = None) -> AsyncIterator[ToolEngine]:
    config = ToolEngineConfig(tools_directory="no_tools_here", builtin_tools=False)
    async with ToolEngine(config) as engine:
        engine.register_executor("openapi", OpenApiExecutor(guard or AddressGuard(allowed_hosts=["127.0.0.1"])))
        engine.register(*tools)
        yield engine
