"""Pictures, sounds and files that other frameworks write as base64 or as addresses."""

from __future__ import annotations

import base64
import binascii

from ferrule.content import Audio, Content, Image, Resource


def part_of_bytes(data: bytes, mime_type: str, *, uri: str = "") -> Content:
    """The part that bytes of this type are."""
    if mime_type.startswith("image/"):
        return Image(data=data, mime_type=mime_type)
    if mime_type.startswith("audio/"):
        return Audio(data=data, mime_type=mime_type)
    return Resource(uri=uri or f"data:{mime_type}", data=data, mime_type=mime_type)


def part_of_base64(text: str, mime_type: str) -> Content | None:
    """The same for bytes in base64; None when it is none."""
    try:
        return part_of_bytes(base64.b64decode(text, validate=True), mime_type)
    except binascii.Error:
        return None


def part_of_address(url: str, mime_type: str | None = None) -> Content:
    """What stands at a URL, which may itself hold it (`data:image/png;base64,…`)."""
    head, comma, body = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        part = part_of_base64(body, head.removeprefix("data:").removesuffix(";base64") or "text/plain")
        if part is not None:
            return part
    return Resource(uri=url, mime_type=mime_type)
