"""`api_caller` as a project sets it up. What it says about itself names the APIs there are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ferrule.content import copy_json
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.http.patience import IDEMPOTENT
from ferrule.sources.function import tools_of
from ferrule.spec import Effects, Tool, ToolCapability
from ferrule.tools.api_caller.caller import ApiCaller
from ferrule.tools.api_caller.config import READING, ApiCallerConfig, ApiConfig

MARGIN = 5.0
"""Seconds more than a call may take, so that it is its own time-out that ends it."""


def api_tools(
    config: ApiCallerConfig | None = None,
    *,
    guard: AddressGuard | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Tool]:
    apis = (config or ApiCallerConfig()).apis
    methods = {method for api in apis.values() for method in api.methods}
    effects = Effects(read_only=methods <= READING, idempotent=methods <= IDEMPOTENT)
    caller = ApiCaller(apis, guard=guard or AddressGuard(), environ=environ, tried_by_engine=effects.repeatable)
    [made] = tools_of(caller)
    longest = max((api.timeout for api in apis.values()), default=0.0) + MARGIN
    capability = _about(made.spec.capabilities[0], apis)
    spec = replace(
        made.spec,
        description=capability.description,
        capabilities=[capability],
        effects=effects,
        limits=replace(made.spec.limits, timeout=longest),
    )
    return [replace(made, spec=spec, needs=_needs(apis, environ))]


def _about(capability: ToolCapability, apis: Mapping[str, ApiConfig]) -> ToolCapability:
    if not apis:
        return capability
    listed = [
        f"- {name} ({', '.join(api.methods)}){': ' if api.description else ''}{api.description}"
        for name, api in apis.items()
    ]
    schema: dict[str, Any] = copy_json(capability.schema)
    schema["properties"]["api"]["enum"] = list(apis)
    methods = sorted({method for api in apis.values() for method in api.methods})
    schema["properties"]["method"]["enum"] = methods
    if "GET" not in methods:  # nobody shall change anything by not saying how
        del schema["properties"]["method"]["default"]
        schema["required"] = [*schema["required"], "method"]
    name, api = next(iter(apis.items()))
    examples = [{"api": name, "path": "users/7"}] if "GET" in api.methods else []
    description = "\n".join([capability.description, "The APIs are:", *listed])
    return replace(capability, description=description, parameters=schema, examples=examples)


def _needs(apis: Mapping[str, ApiConfig], environ: Mapping[str, str]) -> str:
    if not apis:
        return 'an API: set [tools.api_caller.apis.NAME] base_url = "https://…" in ferrule.toml'
    missing = [[name for name in api.variables if not environ.get(name)] for api in apis.values()]
    if all(missing):
        return f"the environment variable {' or '.join(dict.fromkeys(names[0] for names in missing))}"
    return ""
