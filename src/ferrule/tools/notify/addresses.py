"""Mail addresses as a configuration says them: `ops@example.com`, or `运维 <ops@example.com>`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.errors import SetupError

if TYPE_CHECKING:
    from email.headerregistry import Address


def check_address(text: str) -> Address:
    """The address that a text is; raises SetupError for one that cannot be."""
    # Loaded when there is a mail to write: every start of the command line comes by here.
    from email.errors import MessageError
    from email.headerregistry import Address
    from email.utils import getaddresses

    found = getaddresses([text])
    if len(found) != 1 or not text.isprintable():
        raise _no_address(text)
    [(name, spec)] = found
    try:
        # ASCII: what lies beyond needs an extension that few mail servers have. Names may be in any script.
        spec.encode("ascii")
        address = Address(display_name=name, addr_spec=spec)
    except (MessageError, ValueError, IndexError):
        raise _no_address(text) from None
    if not address.username or not address.domain:
        raise _no_address(text)
    return address


def _no_address(text: str) -> SetupError:
    return SetupError(f"{text!r} is no mail address: write ops@example.com, or Operations <ops@example.com>")
