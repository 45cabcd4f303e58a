"""How long a text is for a model, without asking one."""

from __future__ import annotations

import re

_WIDE = re.compile(r"[\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_LETTERS_PER_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """One token for each Chinese, Japanese or Korean character, and one for every four others."""
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    return wide + -(-(len(text) - wide) // _LETTERS_PER_TOKEN)
