"""Security schemes of a document: which variables of the environment hold the secrets, and where these are sent.

The variable of a scheme is `FERRULE_<TOOL>_<SCHEME>` unless the user names another. It holds the key or the token
itself; for HTTP's basic scheme, `user:password`. Where a document only lists a header `Authorization` among the
parameters, that counts as a scheme of this name whose variable holds the whole header; a call does without if need be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ferrule.executors.openapi.operation import Credential
from ferrule.names import did_you_mean
from ferrule.sources.openapi_document import OpenApiDocument, mappings_in

AUTHORIZATION: Final = "Authorization"


def read_schemes(document: OpenApiDocument, tool_id: str, variables: Mapping[str, str]) -> dict[str, Credential]:
    """The document's schemes by name; those that no variable can serve (client certificates) are left out."""
    listed = document.mapping("securityDefinitions") or document.mapping("components", "securitySchemes")
    said = {AUTHORIZATION: {"type": "apiKey", "in": "header", "name": AUTHORIZATION}, **listed}
    for name in variables:
        if name not in said:
            hint = did_you_mean(name, said).strip() or f"its schemes are: {', '.join(said)}"
            raise document.error(f"there is no security scheme {name!r}", hint)
    found = {}
    for name, scheme in said.items():
        variable = variables.get(name) or _variable(tool_id, name)
        credential = _credential(document.resolve(scheme), variable)
        if credential is not None:
            found[name] = credential
    return found


def read_security(
    document: OpenApiDocument, item: Mapping[str, Any], operation: Mapping[str, Any], schemes: Mapping[str, Credential]
) -> tuple[tuple[Credential, ...], ...]:
    """The alternatives an operation gives; one that asks for nothing comes last."""
    alternatives = mappings_in(operation.get("security", document.value.get("security")))
    found = [tuple(schemes[name] for name in each if name in schemes) for each in alternatives]
    if not any(found) and _lists_authorization(document, item, operation):
        found = [(schemes[AUTHORIZATION],), ()]
    return tuple(sorted(dict.fromkeys(found), key=lambda alternative: not alternative))


def _variable(tool_id: str, scheme: str) -> str:
    return re.sub(r"[\W_]+", "_", f"FERRULE_{tool_id}_{scheme}", flags=re.ASCII).upper()


def _lists_authorization(document: OpenApiDocument, item: Mapping[str, Any], operation: Mapping[str, Any]) -> bool:
    listed = [document.resolve(each) for owner in (item, operation) for each in mappings_in(owner.get("parameters"))]
    return any(each.get("in") == "header" and str(each.get("name")).lower() == "authorization" for each in listed)


def _credential(scheme: Mapping[str, Any], variable: str) -> Credential | None:
    kind, place, name = scheme.get("type"), scheme.get("in"), scheme.get("name")
    http_scheme = str(scheme.get("scheme", "")).lower()
    if kind == "apiKey" and isinstance(name, str):
        if place == "header" or place == "query" or place == "cookie":
            return Credential(variable=variable, place=place, name=name)
        return None
    if kind == "basic" or (kind == "http" and http_scheme == "basic"):
        return Credential(variable=variable, place="header", name="Authorization", prefix="Basic ", is_basic=True)
    if kind in ("oauth2", "openIdConnect") or (kind == "http" and http_scheme in ("bearer", "")):
        return Credential(variable=variable, place="header", name="Authorization", prefix="Bearer ")
    if kind == "http":
        prefix = f"{http_scheme.capitalize()} "
        return Credential(variable=variable, place="header", name="Authorization", prefix=prefix)
    return None
