"""`api_caller`: calls the configured APIs.

The configuration contains the base URL and the secrets; a caller chooses a path below the URL, a query and a body. So a
model can use an API without seeing its key, and cannot send the key anywhere else.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from ferrule.core.call import ToolExecutionContext
from ferrule.core.content import Output, as_text, copy_json
from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.core.secrets import Secrets
from ferrule.core.spec import Effects, Tool, ToolCapability, ToolCategory
from ferrule.core.variables import expand_variables, find_variables
from ferrule.errors import NeedsApproval, Refuse, Retry, SetupError, TransportFault
from ferrule.http.bodies import encode_body
from ferrule.http.client import GuardedClient, HttpResponse, describe_header_problem, format_url
from ferrule.http.guard import AddressGuard, is_base_address
from ferrule.http.retry import IDEMPOTENT, MAX_ATTEMPTS, convert_host_fault, request_timeout, send_with_retries
from ferrule.kinds.function.decorator import tool
from ferrule.kinds.function.tools import make_tool_per_action
from ferrule.kinds.http_request import make_response_output, make_status_error

# ---- configuration

METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
READ_ONLY_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

_VARIABLE: Final = lazy_pattern(r"\$\{[^}]*\}")
_VARIABLE_WITH_DEFAULT: Final = lazy_pattern(r"\$\{\w+:-[^}]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """One API. `${VAR}` in its texts is read from the environment with each call."""

    base_url: str = ""
    """All calls go to addresses below this one."""
    description: str = ""
    """What the API is for; shown to models."""
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with each call: `Authorization = "Bearer ${GITHUB_TOKEN}"`."""
    query: dict[str, str] = field(default_factory=dict)
    """Added to the query of each call: `key = "${WEATHER_KEY}"`."""
    methods: list[str] = field(default_factory=lambda: ["GET"])
    """The HTTP methods that may be used."""
    ask_before: list[str] = field(default_factory=lambda: ["DELETE"])
    """Methods that need a person's approval each time."""
    timeout: float = 30.0
    """Seconds for a call, including its retries."""
    max_bytes: int = 5_000_000
    """The largest response that is read."""

    def __post_init__(self) -> None:
        url = f"https://{self.base_url}" if self.base_url.startswith("${") else self.base_url
        url = _VARIABLE.sub("x", url)
        if not is_base_address(url):
            raise SetupError(f"base_url must be an address such as https://api.example.com/v1, not {self.base_url!r}")
        if "?" in url or "#" in url:
            raise SetupError(f"base_url cannot have a query: {self.base_url!r}. Write query = {{ … }} beside it")
        for name in ("methods", "ask_before"):
            methods = [method.upper() for method in getattr(self, name)]
            for method in methods:
                if method not in METHODS:
                    raise SetupError(f"{name} cannot contain {method!r}: use some of {', '.join(METHODS)}")
            object.__setattr__(self, name, methods)
        for name in self.headers:
            if fault := describe_header_problem(name):
                raise SetupError(f"headers: {fault}")
        if not self.methods:
            raise SetupError('methods is empty: write methods = ["GET"]')
        if not self.timeout > 0 or self.max_bytes < 1:
            raise SetupError(f"timeout and max_bytes must be more than 0, not {self.timeout!r} and {self.max_bytes!r}")

    @property
    def variables(self) -> list[str]:
        """Return the environment variables that must be set."""
        texts = [self.base_url, *self.headers.values(), *self.query.values()]
        return list(
            dict.fromkeys(name for text in texts for name in find_variables(_VARIABLE_WITH_DEFAULT.sub("", text)))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCallerConfig:
    """The APIs that `api_caller` may call."""

    apis: dict[str, ApiConfig] = field(default_factory=dict)


# ---- joining a path to the base of an API, so that it cannot lead anywhere else
#
# Servers and proxies decode percent-encoding once or twice, treat `\` as `/` and full-width letters as plain ones, and
# cut off what follows a `;` or a NUL in a segment. A path that would lead upwards in any of these readings is refused.

MAX_PATH_LENGTH: Final = 4_000

_SCHEME: Final = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_BARE_PERCENT: Final = lazy_pattern(r"%(?![0-9A-Fa-f]{2})")
_MAX_ENCODINGS: Final = 3


def resolve_path(base_url: str, path: str) -> tuple[str, str]:
    """Return the URL of a path, and the query in the path. Raises Retry for a path that leads away from the API."""
    path, _, query = path.partition("#")[0].partition("?")
    if len(path) + len(query) > MAX_PATH_LENGTH:
        raise Retry(f"the path is longer than {MAX_PATH_LENGTH} characters.")
    _check_path(path)
    encoded = quote(_BARE_PERCENT.sub("%25", path), safe="/%:@!$&'()*+,;=~", errors="replace")
    base = base_url.rstrip("/")
    address = f"{base}/{encoded.lstrip('/')}" if encoded.strip("/") else base_url
    expected, actual = urlsplit(base), urlsplit(address)
    if (actual.scheme, actual.netloc) != (expected.scheme, expected.netloc) or not actual.path.startswith(
        expected.path
    ):
        raise _outside_api_error(path)
    return address, query


def _check_path(path: str) -> None:
    text = path
    for _ in range(_MAX_ENCODINGS + 1):
        if any(char < " " or char == "\x7f" for char in text):
            raise Retry("the path has control characters in it.")
        plain = unicodedata.normalize("NFKC", text).replace("\\", "/")
        if plain.startswith("//") or _SCHEME.match(plain.lstrip("/ ")):
            raise _outside_api_error(path)
        if any(segment.partition(";")[0].strip() in (".", "..") for segment in plain.split("/")):
            raise _outside_api_error(path)
        try:
            decoded = unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise Retry(f"the path {text[:100]!r} contains percent-encoded bytes that are not UTF-8.") from None
        if decoded == text:
            return
        text = decoded
    raise Retry(f"the path {path[:100]!r} is percent-encoded more than once: write it unencoded.")


def _outside_api_error(path: str) -> Retry:
    return Retry(
        f"the path {path[:100]!r} leads away from the API. Give a path below its base address, such as 'users/7', "
        "without a host, '.' or '..'."
    )


_REPORTED_HEADERS: Final = ("etag", "last-modified", "link", "location", "x-next-page", "x-total-count")
"""Headers that a caller may need for the next request."""
_METHOD_OVERRIDES: Final = frozenset({"_method", "_httpmethod", "x-http-method-override"})
"""Parameters that make some servers treat a request as one with another method."""


class ApiCaller:
    """Calls APIs by their names."""

    def __init__(
        self,
        apis: Mapping[str, ApiConfig],
        *,
        guard: AddressGuard,
        environ: Mapping[str, str],
        is_retried_by_engine: bool,
    ) -> None:
        """`is_retried_by_engine`: the engine retries failed calls, so the tool itself does not."""
        self._apis, self._guard, self._environ = apis, guard, environ
        self._attempts = 1 if is_retried_by_engine else MAX_ATTEMPTS
        # One client per API: an address that one API may use must not be allowed for a redirect of another.
        self._clients: dict[tuple[str, str], GuardedClient] = {}

    @tool(
        category=ToolCategory.HTTP,
        subcategory="api",
        tags=["api", "http", "request", "rest", "web service", "接口", "调用", "请求"],
        max_output=200_000,
        examples=[{"api": "github", "path": "repos/python/cpython"}],
    )
    async def api_caller(
        self,
        api: str,
        path: str,
        context: ToolExecutionContext,
        method: str = "GET",
        query: dict[str, Any] | None = None,
        body: Any = None,
    ) -> Output:
        """Call a configured web API by its name; its keys are added automatically. 按名称调用已配置的接口。

        Args:
            api: the name of the API
            path: the path below the address of the API, such as users/7
            method: the HTTP method
            query: what stands in the query, by name; a list repeats
            body: what to send: an object or a list as JSON, a text as it is
        """
        config = self._find_config(api)
        method = self._check_method(api, config, method, path, context)
        secrets = Secrets.from_template([config.base_url, config.headers, config.query], self._environ)
        with secrets.hide_in_errors():
            response = await self._send(api, config, method, path, query or {}, body, context)
            if response.status_code >= 400:
                hidden = replace(response, content=secrets.hide_in_bytes(response.content))
                failure = make_status_error(api, hidden, only_once=method not in IDEMPOTENT)
                error = convert_host_fault(failure) if isinstance(failure, TransportFault) else failure
                error.details = {**error.details, **failure.details, "untrusted": True}
                raise error
        headers = {name: response.headers[name] for name in _REPORTED_HEADERS if name in response.headers}
        details = {"api": api, "status_code": response.status_code, **({"headers": headers} if headers else {})}
        return make_response_output(replace(response, url=format_url(response.url)), secrets, details)

    async def aclose(self) -> None:
        """Close idle connections."""
        for client in self._clients.values():
            await client.aclose()

    # Steps

    def _find_config(self, api: str) -> ApiConfig:
        config = self._apis.get(api)
        if config is None:
            names = ", ".join(self._apis)
            raise Retry(f"there is no API {api[:100]!r}.{did_you_mean(api, self._apis)} The APIs are: {names}.")
        missing = [name for name in config.variables if not self._environ.get(name)]
        if missing:
            raise Refuse(f"the API {api!r} needs the environment variable {missing[0]}: a person must set it.")
        return config

    def _check_method(self, api: str, config: ApiConfig, method: str, path: str, context: ToolExecutionContext) -> str:
        method = method.strip().upper()
        if method not in config.methods:
            raise Retry(
                f"the API {api!r} may not be called with {method[:20]!r}, only with {', '.join(config.methods)}."
            )
        if method in config.ask_before and not context.is_approved:
            raise NeedsApproval(f"{method} {path[:200]!r} of the API {api!r} needs a person's approval.")
        return method

    async def _send(
        self,
        api: str,
        config: ApiConfig,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Any,
        context: ToolExecutionContext,
    ) -> HttpResponse:
        def fill(text: str) -> str:
            return expand_variables(text, self._environ)

        base = fill(config.base_url)
        if not is_base_address(base) or "?" in base or "#" in base:  # the URL is not shown: it may contain a password
            raise Refuse(
                f"the variable in the base_url of the API {api!r} does not make it an address such as "
                "https://api.example.com/v1, without a password or a query: a person must change it."
            )
        address, path_query = resolve_path(base, path)
        _refuse_method_override(path_query, query, body)
        own = {name: fill(value) for name, value in config.query.items()}
        headers = {name: fill(value) for name, value in config.headers.items()}
        content = encode_body(body, headers)
        what, may_repeat = f"{method} {format_url(address)}", method in IDEMPOTENT
        host = urlsplit(address).hostname or ""
        if (api, host) not in self._clients:
            guard = self._guard.allowing_host_of(address)
            self._clients[api, host] = GuardedClient(guard, max_response=config.max_bytes)
        send = partial(
            self._clients[api, host].send,
            method,
            _add_query(address, path_query, query, own),
            what=what,
            headers=headers,
            content=content,
            only_once=not may_repeat,
            private_headers=config.headers,
        )
        attempts, timeout = self._attempts if may_repeat else 1, request_timeout(context, config.timeout)
        try:
            return await send_with_retries(send, what=what, attempts=attempts, timeout=timeout)
        except TransportFault as fault:
            raise convert_host_fault(fault) from fault


def _add_query(address: str, path_query: str, query: Mapping[str, Any], own: Mapping[str, str]) -> str:
    """Add the query to the URL. A caller cannot replace a parameter of the configuration."""
    entries = parse_qsl(path_query, keep_blank_values=True)
    for name, value in query.items():
        entries += [
            (name, as_text(each)) for each in (value if isinstance(value, list) else [value]) if each is not None
        ]
    fixed = {name.casefold() for name in own}  # some servers ignore the case of names
    entries = [(name, value) for name, value in entries if name.casefold() not in fixed]
    encoded = urlencode([*entries, *own.items()], errors="replace")
    return f"{address}?{encoded}" if encoded else address


def _refuse_method_override(path_query: str, query: Mapping[str, Any], body: Any) -> None:
    names = [*dict(parse_qsl(path_query)), *query]
    if isinstance(body, str):  # JSON or form data
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            body = dict(parse_qsl(body))
    names += body if isinstance(body, dict) else ()
    for name in names:
        if name.strip().casefold() in _METHOD_OVERRIDES:
            raise Retry(
                f"{name!r} would change the method of the request. Leave it out, and use the parameter method instead."
            )


# ---- setup; the description of the tool lists the configured APIs

TIMEOUT_MARGIN = 5.0
"""Seconds that the engine waits longer than the tool, so that the tool's own timeout comes first."""


def api_tools(
    config: ApiCallerConfig | None = None,
    *,
    guard: AddressGuard | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Tool]:
    apis = (config or ApiCallerConfig()).apis
    methods = {method for api in apis.values() for method in api.methods}
    effects = Effects(read_only=methods <= READ_ONLY_METHODS, idempotent=methods <= IDEMPOTENT)
    caller = ApiCaller(apis, guard=guard or AddressGuard(), environ=environ, is_retried_by_engine=effects.repeatable)
    [built] = make_tool_per_action(caller)
    longest = max((api.timeout for api in apis.values()), default=0.0) + TIMEOUT_MARGIN
    capability = _describe_apis(built.spec.capabilities[0], apis)
    spec = replace(
        built.spec,
        description=capability.description,
        capabilities=[capability],
        effects=effects,
        limits=replace(built.spec.limits, timeout=longest),
    )
    missing = [[name for name in api.variables if not environ.get(name)] for api in apis.values()]
    needs = ""
    if not apis:
        needs = 'an API: set [tools.api_caller.apis.NAME] base_url = "https://…" in ferrule.toml'
    elif all(missing):
        needs = f"the environment variable {' or '.join(dict.fromkeys(names[0] for names in missing))}"
    return [replace(built, spec=spec, needs=needs)]


def _describe_apis(capability: ToolCapability, apis: Mapping[str, ApiConfig]) -> ToolCapability:
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
    if "GET" not in methods:  # without a default method, no call changes anything by accident
        del schema["properties"]["method"]["default"]
        schema["required"] = [*schema["required"], "method"]
    name, api = next(iter(apis.items()))
    examples = [{"api": name, "path": "users/7"}] if "GET" in api.methods else []
    description = "\n".join([capability.description, "The APIs are:", *listed])
    return replace(capability, description=description, parameters=schema, examples=examples)
