"""A notice as a mail. Nothing of it can become a header or an address: the title is one line, the rest is the body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ferrule.tools.notify.notice import Notice

if TYPE_CHECKING:
    from email.headerregistry import Address


def letter(notice: Notice, sender: Address, recipients: Sequence[Address]) -> bytes:
    import email.policy
    from email.message import EmailMessage
    from email.utils import format_datetime, make_msgid

    # Seven bits: the same bytes do for every server, whatever it says it can take.
    message = EmailMessage(policy=email.policy.SMTP.clone(cte_type="7bit"))
    message["Subject"] = notice.subject
    message["From"] = sender
    message["To"] = tuple(recipients)
    message["Date"] = format_datetime(notice.at)
    message["Message-ID"] = make_msgid(domain=sender.domain)
    message["Auto-Submitted"] = "auto-generated"  # so that no absence note answers
    if notice.level == "error":
        message["Importance"] = "high"
    message.set_content(f"{notice.message}\n")
    return message.as_bytes()
