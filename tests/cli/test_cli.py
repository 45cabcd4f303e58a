"""The command line as a person uses it: real processes, real files, real exit codes."""

import json
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.cli.app import app
from tests.cli.commands import RunningCommand, environment, ferrule
from tests.support.waiting import is_running, until_sync

pytestmark = pytest.mark.integration


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = ferrule("init", "shop", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    return tmp_path / "shop"


def test_a_tool_of_the_box_answers_without_any_project(tmp_path: Path):
    done = ferrule("call", "calculator", "expression=2**100 + 1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1267650600228229401496703205377" in done.stdout


def test_a_new_project_has_an_example_of_each_kind_and_they_work(project: Path):
    assert ferrule("call", "add", "a=1", "b=2", cwd=project).stdout == "3\n"
    assert ferrule("call", "today", "format=%Y", cwd=project).stdout.strip().isdigit()
    listed = ferrule("tools", "list", cwd=project).stdout
    assert all(name in listed for name in ("add", "today", "fetch_json", "calculator"))
    assert ferrule("tools", "validate", cwd=project).stdout == "3 tools valid, 0 problems.\n"


def test_init_replaces_nothing_unless_told_to(project: Path):
    (project / "ferrule.toml").write_text("# mine\n")
    refused = ferrule("init", cwd=project)
    assert (refused.returncode, "Use --force" in refused.stderr) == (2, True)
    assert (project / "ferrule.toml").read_text() == "# mine\n"
    assert ferrule("init", "--force", cwd=project).returncode == 0


def test_a_project_whose_folder_cannot_be_trusted_is_created_and_says_how_to_trust_it(tmp_path: Path):
    (tmp_path / "settings").touch()
    env = {**environment(tmp_path), "FERRULE_CONFIG_HOME": str(tmp_path / "settings")}
    made = ferrule("init", "my shop", cwd=tmp_path, env=env)
    assert made.returncode == 2 and (tmp_path / "my shop/ferrule.toml").exists()
    assert made.stderr.startswith("ferrule: The project is created, but not trusted: ")
    assert made.stderr.endswith(" Trust it with: ferrule trust 'my shop'\n")


def test_arguments_may_be_text_json_a_file_or_standard_input(project: Path):
    (project / "params.json").write_text('{"a": 10, "b": 20}')
    assert ferrule("call", "add", "a:=1", "b=2", cwd=project).stdout == "3\n"
    assert ferrule("call", "add", "--params", '{"a": 1}', "b=5", cwd=project).stdout == "6\n"
    assert ferrule("call", "add", "-p", "@params.json", cwd=project).stdout == "30\n"
    assert ferrule("call", "add", "-p", "-", cwd=project, stdin='{"a": 4, "b": 4}').stdout == "8\n"


MISTAKES: list[tuple[list[str], int, str]] = [
    (["add", "a=1"], 2, "b: is required."),
    (["add", "a=one", "b=2"], 2, "a: must be a whole number, not 'one'."),
    (["add", "nonsense"], 2, "written name=value"),
    (["add", "a:={", "b=1"], 2, "a:= is not valid JSON"),
    (["add", "-p", "[1]"], 2, "takes a JSON object"),
    (["add", "-p", "@nowhere.json"], 2, "Cannot read nowhere.json"),
    (["ad", "a=1"], 3, "Did you mean 'add'?"),
    (["calculator", "expression=1/0"], 1, "zero"),
    (["http_request", "url=http://127.0.0.1/"], 6, "allow"),
]


def test_what_goes_wrong_is_one_clear_line_and_an_exit_code(project: Path):
    for arguments, code, message in MISTAKES:
        done = ferrule("call", *arguments, cwd=project)
        assert (done.returncode, done.stdout) == (code, ""), arguments
        assert message in done.stderr and done.stderr.startswith("ferrule: "), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_an_unknown_argument_is_named_where_a_required_one_is_missing(tmp_path: Path):
    done = ferrule("call", "calculator", "exp=2+2", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no parameter 'exp'. The parameters are: expression." in done.stderr
    assert "expression: is required." in done.stderr
    similar = ferrule("call", "calculator", "expresion=2+2", cwd=tmp_path)
    assert similar.stderr.count("expresion") == 1 and "did you mean 'expression'?" in similar.stderr


def test_a_timeout_has_its_own_exit_code(project: Path):
    (project / "tools/slow.yaml").write_text(
        "name: slow\ndescription: Be slow\ncategory: custom\nentry:\n  type: external\n  command: [sleep, infinity]\n"
    )
    done = ferrule("call", "slow", "--timeout", "0.3", cwd=project)
    assert (done.returncode, "did not finish within 0.3 s" in done.stderr) == (4, True)


def test_json_is_printed_for_programs(project: Path):
    result = json.loads(ferrule("call", "add", "a=1", "b=2", "--json", cwd=project).stdout)
    assert (result["is_success"], result["output"]) == (True, {"result": 3})
    failed = ferrule("call", "add", "--json", cwd=project)
    assert (failed.returncode, json.loads(failed.stdout)["error_type"]) == (2, "validation_error")
    tools = json.loads(ferrule("tools", "list", "--json", cwd=project).stdout)
    assert {t["tool_id"] for t in tools} >= {"add", "calculator"}


def test_calls_and_statistics_look_back_over_commands(project: Path):
    ferrule("call", "add", "a=1", "b=2", cwd=project)
    ferrule("call", "add", "a=x", "b=2", cwd=project)
    records = json.loads(ferrule("calls", "--json", cwd=project).stdout)
    assert [r["status"] for r in records] == ["failed", "success"]
    failed = ferrule("calls", "--failed", "--since", "1h", cwd=project).stdout
    assert failed.count("\n") == 2  # the header and the call
    assert "validation_error" in failed
    stats = json.loads(ferrule("stats", "--json", cwd=project).stdout)
    assert (stats["total"], stats["tools"]["add"]["failures"]) == (2, 1)
    assert "2 calls, 50.0 % successful" in ferrule("stats", cwd=project).stdout
    assert "--since takes" in ferrule("stats", "--since", "yesterday", cwd=project).stderr


def test_show_and_search_find_a_tool(project: Path):
    shown = ferrule("tools", "show", "add", cwd=project).stdout
    assert all(words in shown for words in ("Add two whole numbers", "a whole number", "read_only", "arithmetic.py"))
    hits = ferrule("tools", "search", "date", cwd=project).stdout.splitlines()[1:4]
    assert "today" in [hit.partition("\t")[0] for hit in hits]
    missing = ferrule("tools", "search", "zebra", cwd=project)
    assert (missing.returncode, "No tool matches 'zebra'" in missing.stderr) == (1, True)
    assert "Did you mean 'today'?" in ferrule("tools", "show", "toda", cwd=project).stderr


def test_validate_prints_all_problems_at_once(project: Path):
    (project / "tools/bad.yaml").write_text("name: bad\nparametres: []\nentry:\n  type: magic\n")
    (project / "tools/worse.py").write_text("def broken(:\n")
    done = ferrule("tools", "validate", cwd=project)
    assert done.returncode == 1
    assert all(words in done.stdout for words in ("bad.yaml:2:", "bad.yaml:4:", "worse.py:1:", "3 tools valid"))
    listed = ferrule("tools", "list", cwd=project)
    problems = [line for line in listed.stderr.splitlines() if "not loaded:" in line]
    assert len(problems) == len({*problems}) == 3 and all(
        "worse.py:1:" in line or "bad.yaml:" in line for line in problems
    )
    assert "add" in listed.stdout
    assert "No such folder" in ferrule("tools", "validate", "nowhere", cwd=project).stderr


def test_a_bad_configuration_is_explained(project: Path):
    (project / "ferrule.toml").write_text("[limits]\nmax_concurent = 5\n")
    done = ferrule("tools", "list", cwd=project)
    assert done.returncode == 2
    assert "no 'max_concurent' in [limits]. Did you mean 'max_concurrent'?" in done.stderr


def test_the_configuration_of_the_project_holds_in_its_folders(project: Path):
    inner = project / "deep/er"
    inner.mkdir(parents=True)
    assert ferrule("call", "add", "a=1", "b=2", cwd=inner).stdout == "3\n"


def test_doctor_finds_everything_in_order(project: Path):
    done = ferrule("doctor", cwd=project)
    assert done.returncode == 0, done.stdout
    assert all(f"ok   {name} " in done.stdout for name in ("python", "tools", "store", "workers"))
    (project / "tools/bad.yaml").write_text("name: bad\n")
    assert ferrule("doctor", cwd=project).returncode == 1


def test_doctor_works_where_ferrule_is_only_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def find_nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metadata, "requires", find_nothing)
    assert "ok   workers " in CliRunner().invoke(app, ["doctor"]).output


def test_doctor_reports_no_package_that_is_not_needed_here(tmp_path: Path):
    (tmp_path / "ferrule-1.0.dist-info").mkdir()
    requirements = 'Requires-Dist: orjson\nRequires-Dist: not-for-here>=1; python_version < "3"\n'
    (tmp_path / "ferrule-1.0.dist-info/METADATA").write_text(f"Name: ferrule\nVersion: 1.0\n{requirements}")
    done = ferrule("doctor", cwd=tmp_path, env={**environment(tmp_path), "PYTHONPATH": str(tmp_path)})
    assert "ok   orjson " in done.stdout and "pydantic" not in done.stdout and "not-for-here" not in done.stdout


def test_ctrl_c_stops_the_tool_and_says_so(project: Path):
    (project / "tools/slow.py").write_text(
        "import os, threading\nfrom pathlib import Path\nfrom ferrule import tool\n\n@tool\ndef slow() -> None:\n"
        '    """Be slow."""\n    Path("pid.new").write_text(str(os.getpid()))\n    os.rename("pid.new", "pid")\n'
        "    threading.Event().wait()\n"
    )
    command = RunningCommand("call", "slow", cwd=project)
    until_sync((project / "pid").exists)
    assert command.interrupt() == (130, "ferrule: Stopped.\n")
    assert not is_running(int((project / "pid").read_text()))
    [record] = json.loads(ferrule("calls", "--json", cwd=project).stdout)
    assert record["status"] == "cancelled"


def test_help_and_version_are_there(tmp_path: Path):
    assert "call" in ferrule("--help", cwd=tmp_path).stdout
    assert ferrule("--version", cwd=tmp_path).stdout.startswith("ferrule 0.")
    assert "Exit codes" in ferrule("call", "--help", cwd=tmp_path).stdout


def test_a_call_falls_back_to_another_source_as_everywhere_else(project: Path):
    failing = 'from ferrule import tool\n\n@tool\nasync def greet(name: str) -> str:\n    """Greet."""\n'
    (project / "tools" / "a.py").write_text(failing + '    raise ValueError("the first source is broken")\n')
    (project / "skills").mkdir(exist_ok=True)
    (project / "skills" / "b.py").write_text(failing + '    return f"hello {name}"\n')
    answer = ferrule("call", "greet", "name=Ada", cwd=project)
    assert (answer.returncode, answer.stdout.strip()) == (0, "hello Ada"), answer.stderr
