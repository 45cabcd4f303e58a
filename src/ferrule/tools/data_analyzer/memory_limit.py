"""A bound on the memory of this process, for as long as something runs that does not keep to one of its own.

DuckDB counts what its tables and sorts hold, but not each text it makes, and readers of workbooks count nothing.
The system does: beyond the bound an allocation fails, and with it the call, not the machine.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_BESIDE: Final = 1 << 30
"""Bytes for what is not counted, and for address space that is only reserved."""
_STATUS: Final = Path("/proc/self/statm")


@contextmanager
def limited_memory(megabytes: int) -> Iterator[None]:
    """Let this process take so much more than it has now, and 1 GB. Where the system cannot count, nothing is bound."""
    if not _STATUS.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(_STATUS.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    bounds = [now + (megabytes << 20) + _BESIDE, *(each for each in (soft, hard) if each != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
