"""Every exception of the SDKs is in the error table."""

import anthropic
import httpx2
import openai
import pytest

from ferrule.models.anthropic import ANTHROPIC_ERRORS
from ferrule.models.network_model import classify_error
from ferrule.models.openai import OPENAI_ERRORS

FOREIGN_ERRORS = {"TransportError", "JSONDecodeError", "UnicodeDecodeError"}
SDKS = [(openai, openai.OpenAIError, OPENAI_ERRORS), (anthropic, anthropic.AnthropicError, ANTHROPIC_ERRORS)]
IDS = ["openai", "anthropic"]


def public_errors(sdk) -> list[type[BaseException]]:
    attributes = (getattr(sdk, name) for name in dir(sdk) if not name.startswith("_"))
    return [kind for kind in attributes if isinstance(kind, type) and issubclass(kind, BaseException)]


def nearest(kind: type[BaseException], table) -> str:
    return next(base.__name__ for base in kind.__mro__ if base.__name__ in table)


@pytest.mark.parametrize(("sdk", "root", "table"), SDKS, ids=IDS)
def test_every_public_exception_is_in_the_table_by_itself_or_by_its_status(sdk, root, table):
    catch_all = {root.__name__, "APIError"}
    by_catch_all = [
        kind.__name__ for kind in public_errors(sdk) if kind.__name__ not in table and nearest(kind, table) in catch_all
    ]
    assert by_catch_all == []


@pytest.mark.parametrize(("sdk", "root", "table"), SDKS, ids=IDS)
def test_the_table_names_only_exceptions_that_exist(sdk, root, table):
    names = {kind.__name__ for kind in public_errors(sdk)} | {"SubjectTokenProviderError"}
    assert set(table) - names == FOREIGN_ERRORS


@pytest.mark.parametrize("table", [OPENAI_ERRORS, ANTHROPIC_ERRORS], ids=IDS)
def test_broken_connections_are_classified(table):
    request = httpx2.Request("POST", "http://localhost")
    for error in (httpx2.ReadError("x", request=request), httpx2.RemoteProtocolError("x"), httpx2.ReadTimeout("x")):
        assert classify_error(error, table) == "unavailable"


def test_other_exceptions_are_not_classified():
    assert classify_error(KeyError("a"), OPENAI_ERRORS) is None
