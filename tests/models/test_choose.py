"""Choosing a model by a spec, by the environment, and by entry points."""

import sys
from pathlib import Path

import pytest

from ferrule.errors import MissingExtra, SetupError
from ferrule.models import AnthropicModel, ModelRequest, OpenAIModel, RetryingModel, choose_model


def network_model(spec: str | None, **environ: str):
    model = choose_model(spec, environ)
    assert isinstance(model, RetryingModel)
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
def test_network_models_are_chosen_by_spec_and_environment(spec, environ, name):
    assert network_model(spec, **environ).name == name


def test_without_any_key_the_offline_model_is_chosen():
    assert choose_model(None, {}).name == choose_model("offline", {"OPENAI_API_KEY": "k"}).name == "offline"


def test_a_model_that_nothing_can_answer_with_is_an_error_and_not_replaced_by_another():
    with pytest.raises(SetupError, match=r"Unknown model 'gpt-6'. Write 'openai:gpt-6'"):
        choose_model(None, {"FERRULE_MODEL": "gpt-6"})
    with pytest.raises(SetupError, match="The base URL 'localhost:8000' of openai:m is not an address: write http://"):
        choose_model(None, {"FERRULE_MODEL": "m", "OPENAI_BASE_URL": "localhost:8000"})


@pytest.mark.parametrize(("spec", "package"), [("openai:m", "openai"), ("anthropic:m", "anthropic")])
async def test_a_missing_sdk_is_an_error_that_names_the_extra(monkeypatch, spec, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install \"ferrule\[{package}\]\""):
        await choose_model(spec, {}).generate(ModelRequest(messages=[], answer_schema={"type": "object"}))


def test_base_urls_come_from_the_environment():
    openai = network_model(None, OPENAI_BASE_URL="http://here/v1", OPENAI_MODEL="m")
    assert isinstance(openai, OpenAIModel) and openai.base_url == "http://here/v1"
    anthropic = network_model("anthropic:c", ANTHROPIC_BASE_URL="http://there")
    assert isinstance(anthropic, AnthropicModel) and anthropic.base_url == "http://there"


def test_an_environment_that_is_passed_replaces_the_process_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere/v1")
    openai = network_model("openai:m", OPENAI_API_KEY="k")
    assert isinstance(openai, OpenAIModel) and openai.base_url is None


@pytest.mark.parametrize(
    ("spec", "environ", "message"),
    [
        ("opnai:gpt-6", {}, r"Unknown model 'opnai:gpt-6'\. Did you mean 'openai'\?"),
        ("gpt-6", {}, "Write 'openai:gpt-6'"),
        ("", {}, "Unknown model ''"),
        ("openai:", {}, "has no model name after the colon"),
        ("offline:fast", {}, "only one offline model"),
        (None, {"OPENAI_BASE_URL": "http://here/v1"}, "No model of http://here/v1 is chosen"),
    ],
)
def test_invalid_specs_are_errors_that_say_what_to_write(spec, environ, message):
    with pytest.raises(SetupError, match=message):
        choose_model(spec, environ)


# Providers that packages add


def install_provider(folder: Path, entry: str, code: str = "", *, package: str = "acme") -> None:
    """A package with the entry point `entry` in the group `ferrule.models`, as pip would install it."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ferrule.models]\n{entry}\n")
    (folder / f"{package}_models.py").write_text(code)


ACME = """
class AcmeModel:
    def __init__(self, name, key):
        self.name, self.key = f"acme:{name}", key

    async def generate(self, request, on_text=None):
        raise NotImplementedError


def make_model(name, environ):
    return AcmeModel(name or "default", environ.get("ACME_KEY"))


def make_nothing(name, environ):
    return None
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("acme_models", None)


def test_a_package_adds_a_provider_through_an_entry_point(site):
    install_provider(site, "acme = acme_models:make_model", ACME)
    model = choose_model("acme:large", {"ACME_KEY": "k"})
    assert (model.name, getattr(model, "key", None)) == ("acme:large", "k")
    assert choose_model("acme", {}).name == "acme:default"
    assert choose_model(None, {"FERRULE_MODEL": "acme:small", "OPENAI_API_KEY": "k"}).name == "acme:small"


def test_a_built_in_provider_is_not_replaced_and_nothing_is_loaded_for_it(site):
    install_provider(site, "offline = acme_models:make_model", ACME)
    assert choose_model("offline", {}).name == "offline"
    assert "acme_models" not in sys.modules


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("acme = acme_models:missing", "'acme' cannot be loaded from 'acme_models:missing'"),
        ("acme = acme_models:make_nothing", "returned None, which is not a model"),
    ],
)
def test_a_provider_that_does_not_work_is_an_error_that_names_it(site, entry, message):
    install_provider(site, entry, ACME)
    with pytest.raises(SetupError, match=message):
        choose_model("acme:large", {})


def test_two_packages_with_the_same_provider_are_an_error(site):
    install_provider(site, "acme = acme_models:make_model", ACME)
    install_provider(site, "acme = zenith_models:make_model", ACME, package="zenith")
    with pytest.raises(SetupError, match=r"Several installed packages add .*'acme' \(acme_models:make_model, zenith"):
        choose_model("acme:large", {})
