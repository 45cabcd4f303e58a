"""Which model a word or the environment means."""

import sys

import pytest

from ferrule.errors import MissingExtra, SetupError
from ferrule.models import AnthropicModel, ModelRequest, OpenAIModel, PatientModel, choose_model


def chosen(spec: str | None, **environ: str):
    model = choose_model(spec, environ)
    assert isinstance(model, PatientModel)
    return model.model


@pytest.mark.parametrize(
    ("spec", "environ", "name"),
    [
        ("openai:gpt-6", {"OPENAI_API_KEY": "k"}, "openai:gpt-6"),
        ("openai:qwen3:8b", {"OPENAI_BASE_URL": "http://localhost:11434/v1"}, "openai:qwen3:8b"),
        ("anthropic:claude-opus-5-5", {}, "anthropic:claude-opus-5-5"),
        ("openai", {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "gpt-6"}, "openai:gpt-6"),
        (None, {"OPENAI_API_KEY": "k"}, "openai:gpt-5.4-mini"),
        (None, {"OPENAI_BASE_URL": "http://here/v1", "FERRULE_MODEL": "qwen3:8b"}, "openai:qwen3:8b"),
        (None, {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, "openai:gpt-5.4-mini"),
        (None, {"ANTHROPIC_API_KEY": "k"}, "anthropic:claude-sonnet-5-5"),
        (None, {"ANTHROPIC_API_KEY": "k", "FERRULE_MODEL": "claude-opus-5-5"}, "anthropic:claude-opus-5-5"),
        (None, {"OPENAI_API_KEY": "k", "FERRULE_MODEL": "anthropic:claude-opus-5-5"}, "anthropic:claude-opus-5-5"),
        ("openai", {"OPENAI_API_KEY": "k", "FERRULE_MODEL": "anthropic:claude-opus-5-5"}, "openai:gpt-5.4-mini"),
    ],
)
def test_models_of_the_network(spec, environ, name):
    assert chosen(spec, **environ).name == name


def test_without_any_key_there_is_the_offline_model():
    assert choose_model(None, {}).name == choose_model("offline", {"OPENAI_API_KEY": "k"}).name == "offline"


@pytest.mark.parametrize(("spec", "package"), [("openai:m", "openai"), ("anthropic:m", "anthropic")])
async def test_a_package_that_is_not_installed_is_told(monkeypatch, spec, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install \"ferrule\[{package}\]\""):
        await choose_model(spec, {}).generate(ModelRequest(messages=[], answer_schema={"type": "object"}))


def test_they_get_what_the_environment_says():
    openai = chosen(None, OPENAI_BASE_URL="http://here/v1", OPENAI_MODEL="m")
    assert isinstance(openai, OpenAIModel) and openai.base_url == "http://here/v1"
    anthropic = chosen("anthropic:c", ANTHROPIC_BASE_URL="http://there")
    assert isinstance(anthropic, AnthropicModel) and anthropic.base_url == "http://there"


def test_an_environment_that_is_given_is_the_only_one(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere/v1")
    openai = chosen("openai:m", OPENAI_API_KEY="k")
    assert isinstance(openai, OpenAIModel) and openai.base_url is None


@pytest.mark.parametrize(
    ("spec", "environ", "told"),
    [
        ("opnai:gpt-6", {}, r"No model is called 'opnai:gpt-6'\. Did you mean 'openai'\?"),
        ("gpt-6", {}, "Write 'openai:gpt-6'"),
        ("", {}, "No model is called ''"),
        ("openai:", {}, "names no model behind the colon"),
        ("offline:fast", {}, "one offline model only"),
        (None, {"OPENAI_BASE_URL": "http://here/v1"}, "Which model of http://here/v1 is meant"),
    ],
)
def test_words_that_mean_nothing_are_told(spec, environ, told):
    with pytest.raises(SetupError, match=told):
        choose_model(spec, environ)
