"""Secrets are taken out of what is recorded, before it is written anywhere.

Three things are secret: the value of anything whose *name* says so (`password`, `api_key`, `Authorization`), at every
depth and also in JSON text, URLs, headers and settings inside strings; what *looks* like a credential (`Bearer …`,
`user:password@host`, a private key); and the values of parameters a tool declares `secret`, which are removed wherever
else they turn up in the record.

Nearly all calls carry no secret, so the price of finding that out is what matters. The record is encoded first, and
one regular expression over the JSON (the `screen`) tells whether anything in it could be secret. Only then is the
value walked. The screen may be wrong in one direction only: it must hit whatever the walk would change.
"""

from ferrule.redaction.names import SECRET_NAMES
from ferrule.redaction.rule import Redaction, storable_text

__all__ = ["SECRET_NAMES", "Redaction", "storable_text"]
