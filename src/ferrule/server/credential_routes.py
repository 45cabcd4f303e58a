"""The HTTP API of credentials: what a client's calls send to servers elsewhere in the client's name.

A client manages its own and no others, whatever its roles: nobody can read a secret, or use that of somebody else.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ferrule.server.problems import Problem, json_response
from ferrule.server.services import CallingClient, ServicesOfApp

router = APIRouter(prefix="/v1", tags=["credentials"])

CredentialName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class CredentialRequest(BaseModel):
    """The secret text, which is never given back."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    value: Annotated[str, Field(min_length=1, max_length=65_536, pattern=r"^[^\x00-\x1f\x7f]+$")]


@router.get("/credentials")
async def list_credentials(services: ServicesOfApp, client: CallingClient) -> Response:
    """List the names of the client's credentials."""
    entries = await services.library.engine.store.credentials.list_entries(client.principal.account)
    own = [{"name": each.name, "updated_at": each.updated_at} for each in entries if ":" not in each.name]
    return json_response({"credentials": own})


@router.put("/credentials/{name}")
async def store_credential(
    name: CredentialName, body: CredentialRequest, services: ServicesOfApp, client: CallingClient
) -> Response:
    """Store a credential, in place of an earlier one. It is encrypted; every server uses it within seconds."""
    await services.library.engine.store.credentials.set(client.principal.account, name, body.value)
    return json_response({"name": name, "stored": True})


@router.delete("/credentials/{name}")
async def delete_credential(name: CredentialName, services: ServicesOfApp, client: CallingClient) -> Response:
    """Delete a credential. No server uses it after a few seconds."""
    if not await services.library.engine.store.credentials.delete(client.principal.account, name):
        raise Problem(404, f"There is no credential {name!r}.")
    return json_response({"name": name, "deleted": True})
