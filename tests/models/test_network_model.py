"""Every exception of the SDKs is in the error table."""

from importlib import import_module

import pytest

from ferrule.models.anthropic import ANTHROPIC_ERRORS
from ferrule.models.network_model import classify_error
from ferrule.models.openai import OPENAI_ERRORS

FOREIGN_ERRORS = {"TransportError", "JSONDecodeError", "UnicodeDecodeError"}
TABLES = {"openai": OPENAI_ERRORS, "anthropic": ANTHROPIC_ERRORS}
ROOTS = {"openai": "OpenAIError", "anthropic": "AnthropicError"}


def public_errors(package: str) -> list[type[BaseException]]:
    sdk = import_module(package)
    # Names in lower case are objects that load the whole package when they are looked at.
    attributes = (getattr(sdk, name) for name in dir(sdk) if name[0].isupper())
    return [kind for kind in attributes if isinstance(kind, type) and issubclass(kind, BaseException)]


def nearest(kind: type[BaseException], table) -> str:
    return next(base.__name__ for base in kind.__mro__ if base.__name__ in table)


@pytest.mark.parametrize("package", TABLES)
def test_every_public_exception_is_in_the_table_by_itself_or_by_its_status(package):
    table, catch_all = TABLES[package], {ROOTS[package], "APIError"}
    others = [kind for kind in public_errors(package) if kind.__name__ not in table]
    assert [kind for kind in others if nearest(kind, table) in catch_all] == []


@pytest.mark.parametrize("package", TABLES)
def test_the_table_names_only_exceptions_that_exist(package):
    names = {kind.__name__ for kind in public_errors(package)} | {"SubjectTokenProviderError"}
    assert set(TABLES[package]) - names == FOREIGN_ERRORS


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_broken_connections_are_classified(table):
    httpx2 = import_module("httpx2")
    request = httpx2.Request("POST", "http://localhost")
    for error in (httpx2.ReadError("x", request=request), httpx2.RemoteProtocolError("x"), httpx2.ReadTimeout("x")):
        assert classify_error(error, table) == "unavailable"


def test_other_exceptions_are_not_classified():
    assert classify_error(KeyError("a"), OPENAI_ERRORS) is None
