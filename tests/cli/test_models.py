"""`ferrule models` and `ferrule doctor`, as a person uses them: real processes, real servers on this machine."""

import json
import os
import stat
from pathlib import Path

import pytest

from tests.cli.commands import Terminal, ferrule
from tests.models.model_server import ollama_answers
from tests.models.test_servers import nowhere
from tests.support.http_servers import serve_http_in_thread

__all__ = ["nowhere"]
pytestmark = pytest.mark.integration

KEY = "zz-plain-words-key"


@pytest.fixture
def environ(tmp_path: Path, nowhere: dict[str, str]) -> dict[str, str]:
    unset = {"OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "FERRULE_MODEL", "FERRULE_LOCAL_SERVERS"}
    folders = {"FERRULE_CONFIG_HOME": "settings", "XDG_STATE_HOME": "state", "XDG_CACHE_HOME": "cache"}
    own = {name: str(tmp_path / folder) for name, folder in folders.items()}
    return {**{k: v for k, v in os.environ.items() if k not in unset}, **nowhere, **own, "COLUMNS": "120"}


def listing(environ: dict[str, str], cwd: Path) -> dict[str, dict[str, object]]:
    done = ferrule("models", "--json", env=environ, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return {entry["model"]: entry for entry in json.loads(done.stdout)}


def test_the_models_that_can_be_used_are_listed_and_those_that_cannot_say_why(environ, tmp_path):
    with serve_http_in_thread(ollama_answers("qwen3:8b", "gemma4:12b")) as server:
        entries = listing({**environ, "OLLAMA_HOST": server.url}, tmp_path)
        done = ferrule("doctor", env={**environ, "OLLAMA_HOST": server.url}, cwd=tmp_path)
    assert entries["ollama:qwen3:8b"] == {
        "model": "ollama:qwen3:8b",
        "usable": True,
        "reason": f"Ollama at {server.url}",
        "default": True,
    }
    assert entries["ollama:gemma4:12b"]["usable"] and not entries["ollama:gemma4:12b"]["default"]
    assert entries["openai"]["reason"] == "no key. Set OPENAI_API_KEY, or run: ferrule models key openai"
    assert "Start it with: vllm serve MODEL" in str(entries["vllm:…"]["reason"])
    assert entries["offline"]["usable"]
    assert f"ollama:qwen3:8b, because Ollama runs at {server.url}, and there is no key" in done.stdout


def test_ask_uses_a_server_that_is_found(environ, tmp_path):
    with serve_http_in_thread(ollama_answers("qwen3:8b")) as server:
        done = ferrule("ask", "tell me a story", env={**environ, "OLLAMA_HOST": server.url}, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "Hello from Ollama."), done.stderr


def test_a_table_has_one_line_for_each_model(environ, tmp_path):
    done = ferrule("models", env=environ, cwd=tmp_path)
    assert any(line.split("\t")[:2] == ["* offline", "yes"] for line in done.stdout.splitlines()), done.stdout


def test_doctor_says_which_model_would_answer_and_what_it_lacks(environ, tmp_path):
    done = ferrule("doctor", env=environ, cwd=tmp_path)
    assert "offline, because there is no key and no model server on this machine" in done.stdout
    named = ferrule("doctor", env={**environ, "FERRULE_MODEL": "anthropic:claude-opus-5-5"}, cwd=tmp_path)
    assert named.returncode == 1
    assert "anthropic:claude-opus-5-5, because FERRULE_MODEL is set. It cannot answer: no key." in named.stdout
    checks = json.loads(ferrule("doctor", "--json", env=environ, cwd=tmp_path).stdout)
    assert [check["ok"] for check in checks if check["name"] == "model"] == [True]


def test_a_named_model_that_cannot_be_used_answers_nothing(environ, tmp_path):
    for model, problem in (("openai:gpt-5.4", "Set OPENAI_API_KEY"), ("anthropic", "Set ANTHROPIC_API_KEY")):
        done = ferrule("ask", "hi", "--model", model, env=environ, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "") and problem in done.stderr, done.stderr


def test_costs_without_a_paid_call_name_the_costs_of_models(environ, tmp_path):
    assert "ferrule costs --by model" in ferrule("costs", env=environ, cwd=tmp_path).stdout
    assert ferrule("costs", "--by", "model", env=environ, cwd=tmp_path).stdout == "No costs are recorded.\n"


def test_a_key_that_is_piped_in_is_stored_used_and_removed_and_never_shown(environ, tmp_path):
    stored = ferrule("models", "key", "openai", env=environ, cwd=tmp_path, stdin=f"{KEY}\n")
    path = tmp_path / "settings" / "keys.json"
    assert stored.returncode == 0 and str(path) in stored.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entries = listing(environ, tmp_path)
    assert entries["openai"]["usable"] and entries["openai"]["default"]
    doctor = ferrule("doctor", env=environ, cwd=tmp_path)
    assert "openai, because OPENAI_API_KEY is stored" in doctor.stdout
    listed = ferrule("models", "key", env=environ, cwd=tmp_path)
    assert listed.stdout.splitlines()[-1] == "OPENAI_API_KEY\tfile"
    shown = stored.stdout + stored.stderr + str(entries) + doctor.stdout + listed.stdout
    assert KEY not in shown and not any(path.name == "keys.json" for path in tmp_path.glob("*"))
    removed = ferrule("models", "key", "openai", "--remove", env=environ, cwd=tmp_path)
    assert removed.returncode == 0 and KEY not in path.read_text()
    again = ferrule("models", "key", "openai", "--remove", env=environ, cwd=tmp_path)
    assert (again.returncode, again.stderr) == (1, "ferrule: There is no stored key for openai.\n")


def test_a_key_in_the_systems_keyring_is_used_moved_and_removed_and_is_in_no_file_of_ours(environ, tmp_path):
    pytest.importorskip("keyring", reason="needs the extra keyring")
    keyring, root = tmp_path / "keyring.json", str(Path(__file__).parents[2])
    backend = {"PYTHON_KEYRING_BACKEND": "tests.cli.file_keyring.FileKeyring", "FILE_KEYRING": str(keyring)}
    environ = {**environ, **backend, "PYTHONPATH": root}
    stored = ferrule("models", "key", "openai", "--keyring", env=environ, cwd=tmp_path, stdin=f"{KEY}\n")
    assert (stored.returncode, stored.stdout) == (0, "Stored the key for openai in the system's keyring.\n")
    assert json.loads(keyring.read_text()) == {"ferrule/OPENAI_API_KEY": KEY}
    assert ferrule("models", "key", env=environ, cwd=tmp_path).stdout.splitlines()[-1] == "OPENAI_API_KEY\tkeyring"
    assert listing(environ, tmp_path)["openai"]["default"]
    assert "openai, because OPENAI_API_KEY is stored" in ferrule("doctor", env=environ, cwd=tmp_path).stdout
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != keyring]
    assert files and not any(KEY.encode() in path.read_bytes() for path in files)
    assert ferrule("models", "key", "openai", env=environ, cwd=tmp_path, stdin="zz-other\n").returncode == 0
    assert json.loads(keyring.read_text()) == {}
    ferrule("models", "key", "openai", "--keyring", env=environ, cwd=tmp_path, stdin=f"{KEY}\n")
    assert ferrule("models", "key", "openai", "--remove", env=environ, cwd=tmp_path).returncode == 0
    assert json.loads(keyring.read_text()) == {} and listing(environ, tmp_path)["offline"]["default"]


def test_a_machine_without_a_keyring_says_to_use_the_file(environ, tmp_path):
    pytest.importorskip("keyring", reason="needs the extra keyring")
    environ = {**environ, "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    done = ferrule("models", "key", "openai", "--keyring", env=environ, cwd=tmp_path, stdin=f"{KEY}\n")
    assert done.returncode == 2 and "leave out --keyring" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "settings/keys.json").exists()


def test_a_key_that_is_typed_is_not_echoed(environ, tmp_path):
    terminal = Terminal("models", "key", "groq", cwd=tmp_path, env=environ)
    terminal.wait_for("not shown")
    terminal.type(f"{KEY}\n")
    terminal.wait_for("Stored")
    assert terminal.end() == 0 and KEY not in terminal.output
    assert json.loads((tmp_path / "settings/keys.json").read_text()) == {"GROQ_API_KEY": KEY}


def test_what_is_no_provider_or_no_key_is_an_error(environ, tmp_path):
    mistakes = {("opnai", KEY): "Did you mean 'openai'?", ("a b", KEY): "not the name of a provider"}
    for (provider, stdin), message in {**mistakes, ("openai", ""): "not a key"}.items():
        done = ferrule("models", "key", provider, env=environ, cwd=tmp_path, stdin=stdin)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "settings/keys.json").exists()
