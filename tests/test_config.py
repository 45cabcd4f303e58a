import re
from pathlib import Path

import pytest

from ferrule.config import FerruleConfig
from ferrule.engine import ToolEngineConfig
from ferrule.errors import SetupError
from ferrule.policy.policy import Policy, Rule
from tests.support.http_servers import Request, serve_http


def read(folder: Path, text: str, **environ: str) -> FerruleConfig:
    (folder / "ferrule.toml").write_text(text, encoding="utf-8")
    return FerruleConfig.read(folder / "ferrule.toml", environ)


def test_every_section_fills_its_value(tmp_path: Path):
    config = read(
        tmp_path,
        "[engine]\nstrict_validation = true\n[limits]\nbucket_limits = {http = 5}\n"
        '[store]\nmax_age_days = 2\n[http]\nallowed_hosts = ["intranet"]\n',
    )
    assert config.engine_config.strict_validation
    assert config.limits.bucket_limits == {"http": 5}
    assert (config.store.max_age_days, config.http.allowed_hosts) == (2, ["intranet"])


def test_a_project_has_skills_and_servers_without_saying_so(tmp_path: Path):
    assert read(tmp_path, "").engine_config.mcp_file == "mcp.json"
    assert read(tmp_path, "[engine]\nskills_directories = []\n").engine_config.skills_directories == ()
    assert ToolEngineConfig().mcp_file is None


def test_variables_win_over_the_file(tmp_path: Path):
    config = read(
        tmp_path,
        "[limits]\nmax_concurrent = 3\n",
        FERRULE_LIMITS_MAX_CONCURRENT="7",
        FERRULE_STORE_URL="sqlite:///other.db",
        FERRULE_ENGINE_STRICT_VALIDATION="true",
    )
    assert (config.limits.max_concurrent, config.store.url) == (7, "sqlite:///other.db")
    assert config.engine_config.strict_validation is True


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[engin]\n", r"no section \[engin\]. Did you mean 'engine'"),
        ("[engine]\nstrict_validaton = true\n", "Did you mean 'strict_validation'"),
        (
            "[tools.api_caller.apis.x]\nbase_url = 'https://x.example'\nheaders = { A = 'secret', B = 3 }\n",
            r"tools\.api_caller\.apis\.x\.headers\.B: must be a text, not 3$",
        ),
        ("[tools.http_request]\nsecrets = { T = ['xn--a.com'] }\n", "T cannot be sent to 'xn--a.com': write a host"),
        ("[limits]\nmax_concurrent = 'many'\n", r"limits\.max_concurrent: .*, not 'many'"),
        ("engine = 5\n", r"\[engine\] must be a section with keys, not 5"),
        ("[engine.retry]\nfrist_delay = 1\n", r"no 'frist_delay' in \[engine\.retry\]. Did you mean 'first_delay'"),
        ("[engine.breaker]\nthreshold = -1\n", "threshold must be 0 or more"),
        ("[limits]\nmax_concurrent = 0\n", r"\[limits\]"),
        ("[engine\n", "not valid TOML"),
        ("[openapi]\nsource = 'x.yaml'\n", r"write \[\[openapi\]\] above each"),
        ("[[openapi]]\nname = 'x'\n", "openapi.source is missing"),
        ("[[openapi]]\nsource = 'x.yaml'\nsever = 'y'\n", "Did you mean 'server'"),
        ("[[openap]]\nsource = 'x.yaml'\n", "Did you mean 'openapi'"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, says: str):
    with pytest.raises(SetupError, match=says):
        read(tmp_path, text).engine()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[store]\n\n[engine]  # mine\nstrict_validaton = true\n", 4),
        ("[limits]\nstrategy = 'fifo'\nmax_concurrent = 'many'\n", 3),
        ("[limits]\n[engin]\n", 2),
        ("limits = { max_concurrent = 0 }\n", 1),
        ("[engine]\nstrict_validation = true\nretry.frist_delay = 1\n", 3),
        ("[engine]\n\n[engine.breaker]\nthreshold = -1\n", 3),
        ("[[policy.rules]]\nverdict = 'ask'\n\n[[policy.rules]]\nverdict = 'ask'\ntol = 'x'\n", 6),
        ("[policy]\nrules = [{ verdict = 'ask' }, { verdict = 'ask', tol = 'x' }]\n", 2),
        ("[[openapi]]\nsource = 'x.yaml'\n\n[[openapi]]\nname = 'x'\n", 4),
        ("[tools.api_caller.apis.x]\nbase_url = 'https://x.example'\nheaders = { B = 3 }\n", 3),
        ("[limits]\nmax_concurrent =\n", 2),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, line: int):
    with pytest.raises(SetupError, match=rf"ferrule\.toml:{line}: "):
        read(tmp_path, text).engine()


def test_a_bad_variable_is_named_itself(tmp_path: Path):
    with pytest.raises(SetupError, match="FERRULE_LIMITS_MAX_CONCURRENT: .*, not 'many'"):
        read(tmp_path, "", FERRULE_LIMITS_MAX_CONCURRENT="many")


def test_the_nearest_file_upwards_is_found_and_none_is_no_error(tmp_path: Path):
    (tmp_path / "ferrule.toml").write_text("[limits]\nmax_concurrent = 3\n")
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    assert FerruleConfig.find(inner, {}).limits.max_concurrent == 3
    assert FerruleConfig.find(inner, {}).root == tmp_path


def test_openapi_documents_start_at_the_file_unless_they_are_urls(tmp_path: Path):
    config = read(
        tmp_path,
        '[[openapi]]\nsource = "pets.yaml"\nname = "pets"\ncredentials = {key = "PET_KEY"}\n'
        '[[openapi]]\nsource = "https://api.example/openapi.json"\nexclude = ["deleteAll"]\n',
    )
    first, second = config.engine_config_with_paths.openapi
    assert (first.source, first.name, first.credentials) == (str(tmp_path / "pets.yaml"), "pets", {"key": "PET_KEY"})
    assert (second.source, second.exclude) == ("https://api.example/openapi.json", ["deleteAll"])


def test_a_project_says_what_its_agent_is_like(tmp_path):
    (tmp_path / "ferrule.toml").write_text('[agent]\nmodel = "offline"\nturns = 5\ntools = ["calculator"]\n')
    agent = FerruleConfig.read(tmp_path / "ferrule.toml", {"FERRULE_AGENT_MODEL": "local"}).agent
    assert (agent.model, agent.turns, agent.tools) == ("local", 5, ["calculator"])


def test_a_project_has_a_policy(tmp_path):
    rules = '[[policy.rules]]\nverdict = "ask"\ntool = "files__*"\narguments = { path = "/etc/*" }\n'
    policy = read(tmp_path, f'[policy]\ndefault = "deny"\n{rules}').engine().policy
    rule = Rule(verdict="ask", tool="files__*", arguments={"path": "/etc/*"})
    assert policy == Policy(rules=(rule,), default="deny")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[policy]\ndefault = "perhaps"\n', "policy.default: must be 'allow', 'ask' or 'deny', not 'perhaps'"),
        (
            '[[policy.rules]]\nverdict = "ask"\n[[policy.rules]]\nverdict = "maybe"\n',
            "policy.rules.verdict: must be 'allow', 'ask' or 'deny', not 'maybe' (in number 2 of [[policy.rules]])",
        ),
        (
            '[[policy.rules]]\nverdict = "ask"\ntol = "x"\n',
            "there is no 'tol' in [policy.rules]. Did you mean 'tool'? (in number 1 of [[policy.rules]])",
        ),
        ('[[policy.rules]]\ntool = "x"\n', "policy.rules.verdict is missing (in number 1 of [[policy.rules]])"),
        (
            '[[policy.rules]]\nverdict = "ask"\ntool = ["a", "b"]\n',
            "policy.rules.tool: must be a text, not ['a', 'b'] (in number 1 of [[policy.rules]])",
        ),
        ("[policy]\nrules = 3\n", "policy.rules: must be a list, not 3"),
        ('[[policy.rules]]\nverdict = "ask"\neffect = "deadly"\n', "There is no effect 'deadly'"),
        ('[policy]\nprovider = "nobody"\n', "No installed package provides the policy 'nobody'"),
    ],
)
def test_a_wrong_policy_is_explained(tmp_path, text, message):
    with pytest.raises(SetupError, match=re.escape(message)):
        read(tmp_path, text).engine()


def test_tools_in_the_box_are_there_and_say_what_they_need(tmp_path: Path):
    engine = read(tmp_path, "").engine()
    [tool] = engine.registry.candidates("file_processor")
    assert (tool.source, "[tools] workspace" in tool.needs) == ("builtin", True)
    assert read(tmp_path, "[engine]\nbuiltin_tools = false\n").engine().registry.candidates("file_processor") == ()


@pytest.mark.integration
async def test_a_workspace_makes_its_tools_ready_and_protects_what_decides_what_is_run(tmp_path: Path):
    (tmp_path / "my_tools").mkdir()
    config = read(tmp_path, '[tools]\nworkspace = "."\n[engine]\ntools_directory = "my_tools"\n')
    async with config.engine() as engine:
        written = await engine.execute("file_processor__write", {"path": "a.txt", "content": "x"})
        refused = await engine.execute("file_processor__write", {"path": "my_tools/bad.py", "content": "x"})
    assert written.is_success and refused.error_type == "permission_denied"


def test_a_workspace_that_is_not_there_is_told(tmp_path: Path):
    [tool] = read(tmp_path, '[tools]\nworkspace = "gone"\n').engine().registry.candidates("search_files")
    assert "the folder 'gone'" in tool.needs


@pytest.mark.integration
async def test_secrets_are_sent_where_the_project_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHOP_TOKEN", "token-0123456789")
    seen: list[str] = []

    def answer(request: Request) -> tuple[int, dict[str, str], bytes]:
        seen.append(request.headers.get("authorization", ""))
        return 200, {}, b"ok"

    async with serve_http(answer) as server:
        said = f'[tools.http_request]\nsecrets = {{SHOP_TOKEN = ["{server.url}"]}}\n'
        said += "[http]\nallow_private_addresses = true\n"
        async with read(tmp_path, said).engine() as engine:
            headers = {"Authorization": "Bearer ${SHOP_TOKEN}"}
            done = await engine.execute("http_request", {"url": f"{server.url}/items", "headers": headers})
            elsewhere = await engine.execute("http_request", {"url": "https://example.com/", "headers": headers})
    assert done.is_success and seen == ["Bearer token-0123456789"]
    assert not elsewhere.is_success and "may not be sent to this host" in (elsewhere.error or "")
