"""SQLAlchemy, imported with its first use: importing it takes longer than importing the rest of Ferrule together."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["sa"]

if TYPE_CHECKING:
    import sqlalchemy as sa
else:

    class _SqlAlchemy:
        def __getattr__(self, name: str) -> Any:
            value = self.__dict__[name] = getattr(import_module("sqlalchemy"), name)
            return value

    sa = _SqlAlchemy()
