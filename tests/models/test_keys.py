"""Stored keys: only their owner can read them, the environment comes first, and they are used for no other server."""

import json
import os
import stat
from importlib import import_module
from typing import Any

import pytest

from ferrule import SetupError, choose_model
from ferrule.core.messages import user_message
from ferrule.core.secrets import Redaction
from ferrule.errors import ModelError
from ferrule.models import ModelRequest, OpenAIModel, RetryingModel, close_model
from ferrule.models.choose import find_default
from ferrule.models.keys import StoredKeys, model_environment
from tests.models.model_server import openai_answers
from tests.support.http_servers import json_answer, serve_http_in_thread

KEY = "zz-plain-words-key"  # a key whose form nothing recognizes


@pytest.fixture
def keys(tmp_path, monkeypatch):
    monkeypatch.setenv("FERRULE_CONFIG_HOME", str(tmp_path / "settings"))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "FERRULE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    return StoredKeys()


def test_a_stored_key_chooses_the_provider_and_only_its_owner_can_read_it(keys, tmp_path):
    assert choose_model().name == "offline"
    keys.store("OPENAI_API_KEY", f" {KEY}\n")
    assert choose_model().name == "openai:gpt-5.4-mini"
    assert find_default(model_environment()).reason == "OPENAI_API_KEY is stored"
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(keys.path.parent.stat().st_mode) == 0o700
    assert [file.name for file in keys.path.parent.iterdir()] == ["keys.json"]  # and no temporary file
    assert "OPENAI_API_KEY" not in os.environ  # so that no tool and no other program gets it
    assert keys.remove("OPENAI_API_KEY") and not keys.remove("OPENAI_API_KEY")
    assert choose_model().name == "offline"


def test_a_variable_of_the_environment_comes_first(keys, monkeypatch):
    keys.store("OPENAI_API_KEY", "zz-stored")
    monkeypatch.setenv("OPENAI_API_KEY", "zz-from-the-environment")
    assert model_environment()["OPENAI_API_KEY"] == "zz-from-the-environment"
    monkeypatch.setenv("OPENAI_API_KEY", "")
    assert model_environment()["OPENAI_API_KEY"] == "zz-stored"


@pytest.mark.integration
async def test_a_stored_key_of_openai_is_not_sent_to_another_server(keys, monkeypatch):
    keys.store("OPENAI_API_KEY", KEY)
    with serve_http_in_thread(openai_answers("me", "m")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        model = choose_model("openai:m")
        await model.generate(ModelRequest(messages=[user_message("Hi")]))
        await close_model(model)
    assert KEY not in str(server.requests)


@pytest.mark.integration
async def test_a_stored_key_is_sent_to_its_server_and_kept_out_of_errors(keys, monkeypatch):
    keys.store("VLLM_API_KEY", KEY)
    repeated = json_answer({"error": {"message": f"unknown key {KEY}", "type": "x"}}, 401)
    with serve_http_in_thread(lambda _: repeated) as server:
        monkeypatch.setenv("VLLM_BASE_URL", server.url)
        model = choose_model("vllm:m")
        with pytest.raises(ModelError) as caught:
            await model.generate(ModelRequest(messages=[user_message("Hi")]))
        await close_model(model)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(caught.value)


def test_the_file_of_keys_is_redacted_wherever_it_is_shown(keys):
    keys.store("OPENAI_API_KEY", KEY)
    text = keys.path.read_text()
    assert KEY in text and KEY not in Redaction().redact_text(text)
    assert KEY not in str(Redaction().redact({"output": text}))


@pytest.mark.parametrize("key", ["", "  ", "two words", "ключ", "a\x1bb"])
def test_what_is_no_key_is_not_stored(keys, key):
    with pytest.raises(SetupError, match="Nothing was stored"):
        keys.store("OPENAI_API_KEY", key)
    assert not keys.path.exists()


def test_a_damaged_file_is_an_error_that_names_it_and_stays_as_it_is(keys):
    keys.store("OPENAI_API_KEY", KEY)
    keys.path.write_text("{")
    with pytest.raises(SetupError, match=r"keys\.json cannot be read"):
        keys.store("OPENAI_API_KEY", KEY)
    assert keys.path.read_text() == "{"


def test_a_stored_key_of_anthropic_does_not_replace_a_token(keys, monkeypatch):
    keys.store("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token")
    assert "ANTHROPIC_API_KEY" not in model_environment()


@pytest.mark.integration
def test_a_key_in_the_keyring_is_not_in_the_file(keys, monkeypatch, caplog):
    keyring = pytest.importorskip("keyring", reason="needs the extra keyring")
    backend: Any = import_module("keyring.backend").KeyringBackend

    class MemoryKeyring(backend):  # type: ignore[misc]
        priority = 1

        def __init__(self) -> None:
            super().__init__()
            self.passwords: dict[tuple[str, str], str] = {}

        def get_password(self, service: str, username: str) -> str | None:
            return self.passwords.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            self.passwords[service, username] = password

        def delete_password(self, service: str, username: str) -> None:
            del self.passwords[service, username]

    before, memory = keyring.get_keyring(), MemoryKeyring()
    keyring.set_keyring(memory)
    try:
        keys.store("OPENAI_API_KEY", KEY, in_keyring=True)
        assert KEY not in keys.path.read_text() and keys.places() == {"OPENAI_API_KEY": "keyring"}
        model = choose_model()
        assert isinstance(model, RetryingModel) and isinstance(model.model, OpenAIModel)
        assert model_environment()["OPENAI_API_KEY"] == KEY
        keys.store("OPENAI_API_KEY", "zz-in-the-file")  # moves it
        assert memory.passwords == {} and json.loads(keys.path.read_text()) == {"OPENAI_API_KEY": "zz-in-the-file"}
        keys.store("OPENAI_API_KEY", KEY, in_keyring=True)
        assert keys.remove("OPENAI_API_KEY") and memory.passwords == {} and keys.places() == {}
        keys.store("OPENAI_API_KEY", KEY, in_keyring=True)
        keyring.set_keyring(import_module("keyring.backends.fail").Keyring())
        assert choose_model().name == "offline"  # without the keyring, models that need no key still work
        assert "cannot be read" in caplog.text
        with pytest.raises(SetupError, match="keyring cannot be used"):
            keys.store("OPENAI_API_KEY", KEY, in_keyring=True)
    finally:
        keyring.set_keyring(before)
