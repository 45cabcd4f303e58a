"""`ferrule skills`, `ferrule openapi`, tools that need others, and checks of whole projects."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from ferrule.config import FerruleConfig
from ferrule.kinds.openapi.source import OpenApiDocuments
from tests.cli.commands import ferrule, project_with, show_in_terminal, trusted
from tests.kinds.mcp.mcp_servers import RAW_SERVER
from tests.kinds.openapi.documents import document
from tests.kinds.skill.skill_files import write_skill
from tests.support.http_servers import Answer, serve_http_in_thread

pytestmark = pytest.mark.integration

PETS = {
    "/pets/{id}": {
        "get": {"operationId": "getPet", "summary": "Find a pet. More words."},
        "delete": {"operationId": "deletePet", "security": [{"key": []}]},
    }
}
KEY = {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}}
REPORT = "name: 报告\ndescription: Write\ncategory: data_processing\nsubcategory: text\npriority: 5\n"
REPORT += "dependencies: [ghost, echo]\nentry: {type: builtin, handler: echo}\n"


def test_a_tool_that_misses_another_is_listed_with_the_reason(tmp_path: Path):
    project = project_with(tmp_path, report_yaml=REPORT)
    listed = ferrule("tools", "list", "--category", "data_processing/text", cwd=project)
    assert listed.stdout == "tool\tdescription\ttags\tsource\n报告 (unavailable)\tWrite\t\ttools\n"
    assert listed.stderr == "ferrule: 报告 is unavailable: it needs 'ghost', which does not exist.\n"
    shown = ferrule("tools", "show", "报告", cwd=project).stdout
    assert all(words in shown for words in ("data_processing, text", "ghost, echo", "unavailable: it needs 'ghost'"))
    listed = ferrule("tools", "list", "--category", "data_processing", "--source", "tools", "--json", cwd=project)
    [said] = json.loads(listed.stdout)
    assert (said["priority"], said["dependencies"]) == (5, ["ghost", "echo"]) and "'ghost'" in said["unavailable"]
    assert ferrule("call", "报告", cwd=project).returncode == 3
    examined = ferrule("doctor", cwd=project)
    assert examined.returncode == 1 and "unavailable: 报告" in examined.stdout


def test_skills_are_listed_with_the_tools_they_may_use(tmp_path: Path):
    project = project_with(tmp_path)
    write_skill(project / "skills/pdf", "---\nname: pdf\ndescription: Fill in.\nallowed-tools: Read Bash(x:*)\n---\n")
    (project / "skills/travel.py").write_text("class Travel:\n    def plan(self) -> str:\n        return 'x'\n")
    (project / "skills/bad.py").write_text("def (:\n")
    listed = ferrule("skills", "list", cwd=project)
    assert listed.returncode == 1 and "not loaded: skills/bad.py:1:" in listed.stderr
    assert "pdf\tFill in.\tSKILL.md\tRead Bash(x:*)\tskills/pdf/SKILL.md:2" in listed.stdout
    said = json.loads(ferrule("skills", "list", "skills", "--json", cwd=project).stdout)
    assert [(s["name"], s["kind"], s["actions"]) for s in said["skills"]][1] == ("Travel", "python", ["plan"])
    assert said["skills"][0]["allowed_tools"] == ["Read", "Bash(x:*)"] and said["errors"][0]["line"] == 1


def test_skills_are_held_to_the_specification(tmp_path: Path):
    project = project_with(tmp_path)
    write_skill(project / "skills/pdf")
    write_skill(project / "skills/maps", "---\nname: Maps\ndescription: Draw.\n---\n")
    checked = ferrule("skills", "validate", cwd=project)
    assert checked.returncode == 1 and "skills/maps/SKILL.md:2: name 'Maps' is not in lower case" in checked.stdout
    assert checked.stdout.endswith("1 skill valid, 2 problems.\n")
    assert ferrule("skills", "validate", "skills/pdf", cwd=project).stdout == "1 skill valid, 0 problems.\n"
    said = json.loads(ferrule("skills", "validate", "nowhere", "--json", cwd=project).stdout)
    assert (said["skills"], said["errors"][0]["error"]) == ([], "there is no such folder")
    outside = ferrule("skills", "list", cwd=project.parent.parent)
    assert outside.returncode == 2 and "ferrule skills list skills" in outside.stderr


def test_a_document_is_shown_with_its_operations_and_credentials(tmp_path: Path):
    (tmp_path / "pets.json").write_text(document(PETS, components=KEY))
    shown = ferrule("openapi", "show", "pets.json", cwd=tmp_path).stdout
    assert "credential $FERRULE_PET_SHOP_KEY (header X-Key): not set" in shown
    assert "getPet\tGET /pets/{id}\t\tFind a pet." in shown
    assert "deletePet\tDELETE /pets/{id}\t$FERRULE_PET_SHOP_KEY\t" in shown
    said = json.loads(ferrule("openapi", "show", "pets.json", "--credential", "key=K", "--json", cwd=tmp_path).stdout)
    assert said["credentials"] == [{"variable": "K", "sent_as": "header X-Key", "is_set": False}]
    assert [o["action"] for o in said["operations"]] == ["getPet", "deletePet"]
    wrong = ferrule("openapi", "show", "pets.json", "--credential", "kee=K", cwd=tmp_path)
    assert wrong.returncode == 2 and "Did you mean 'key'?" in wrong.stderr


def test_a_document_that_was_added_is_a_tool_of_the_project(tmp_path: Path):
    project = project_with(tmp_path)
    (project / "docs").mkdir()
    (project / "docs/pets.json").write_text(document(PETS, components=KEY))
    added = ferrule("openapi", "add", "pets.json", "--name", "宠物", "--exclude", "getPet", cwd=project / "docs")
    assert added.returncode == 0 and "Set before you call it: FERRULE_KEY" in added.stdout
    [entry] = tomllib.loads((project / "ferrule.toml").read_text())["openapi"]
    assert entry == {"source": "docs/pets.json", "name": "宠物", "exclude": ["getPet"]}
    assert "宠物\t" in ferrule("tools", "list", cwd=project).stdout
    again = ferrule("openapi", "add", "docs/pets.json", "--name", "宠物", cwd=project)
    assert again.returncode == 2 and "already" in again.stderr
    assert ferrule("openapi", "add", "docs/none.json", cwd=project).returncode == 2


def test_a_document_that_cannot_be_added_leaves_the_configuration_as_it_is(tmp_path: Path):
    project = project_with(tmp_path)
    (project / "pets.json").write_text(document(PETS))
    before = 'openapi = [{source = "other.json"}]\n'
    (project / "ferrule.toml").write_text(before)
    listed = ferrule("openapi", "add", "pets.json", cwd=project)
    text = ferrule("openapi", "add", document(PETS), cwd=project)
    assert (listed.returncode, text.returncode, (project / "ferrule.toml").read_text()) == (2, 2, before)
    assert "Write the entry yourself." in listed.stderr and "the file cannot be read" in text.stderr


def test_one_file_can_be_checked_be_it_yaml_python_or_openapi(tmp_path: Path):
    (tmp_path / "pets.json").write_text(document(PETS))
    (tmp_path / "bad.yaml").write_text("openapi: 3.0.0\npaths: {}\n")
    (tmp_path / "tool.yaml").write_text("name: x\n")
    assert ferrule("tools", "validate", "pets.json", cwd=tmp_path).stdout == "1 tool valid, 0 problems.\n"
    assert (
        "bad.yaml:1: the document describes no operations"
        in ferrule("tools", "validate", "bad.yaml", cwd=tmp_path).stdout
    )
    assert "entry is missing" in ferrule("tools", "validate", "tool.yaml", cwd=tmp_path).stdout
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/a.yaml").write_text("name: a\nentry: {type: builtin, handler: ech}\n")
    (tmp_path / "tools/b.yaml").write_text("name: b\nentry: {type: custom, handler: 'nomodule:f'}\n")
    (tmp_path / "tools/c.yaml").write_text("name: c\nentry: {type: custom, handler: 'own:f'}\n")
    (tmp_path / "tools/own.py").write_text("def f():\n    return 1\n")
    assert ferrule("tools", "validate", "tools", cwd=tmp_path).stdout == (
        "tools/a.yaml:1: there is no executor 'ech' (Did you mean 'echo'?)\n"
        "tools/b.yaml:2: entry.handler 'nomodule:f': no module 'nomodule' can be found (install it, or put nomodule.py "
        "next to b.yaml)\n"
        "1 tool valid, 2 problems.\n"
    )


def test_checking_a_project_finds_what_is_wrong_with_its_skills_servers_and_documents_and_starts_nothing(
    tmp_path: Path,
):
    project = project_with(tmp_path)
    write_skill(project / "skills/pdf", "---\nname: pdf\n---\n")
    (project / "mcp.json").write_text('{"mcpServers": {"a": {}, "b": {"command": "touch", "args": ["was_run"]}}}')
    with (project / "ferrule.toml").open("a") as file:
        file.write('[[openapi]]\nsource = "gone.yaml"\n')
    checked = ferrule("tools", "validate", cwd=project)
    assert checked.returncode == 1
    assert all(words in checked.stdout for words in ("SKILL.md:", "MCP server 'a'", "gone.yaml:1:", "3 problems"))
    assert not (project / "was_run").exists()


def test_servers_are_those_of_the_project_wherever_one_stands_in_it(tmp_path: Path):
    project = project_with(tmp_path)
    assert ferrule("mcp", "add", "time", "--command", "uvx", cwd=project / "tools").returncode == 0
    assert list(json.loads((project / "mcp.json").read_text())["mcpServers"]) == ["time"]
    assert ferrule("mcp", "list", cwd=project / "tools").stdout.splitlines()[1].startswith("time\t")


def test_a_file_that_cannot_be_written_is_named_in_one_line(tmp_path: Path):
    project = project_with(tmp_path)
    refused = ferrule("mcp", "add", "time", "--command", "uvx", "--file", "ferrule.toml/mcp.json", cwd=project)
    assert (refused.returncode, refused.stderr) == (2, f"ferrule: {project / 'ferrule.toml'}: File exists.\n")


def test_a_terminal_gets_no_control_characters_from_servers_and_their_names(tmp_path: Path):
    project = project_with(tmp_path)
    (project / "mcp.json").write_text(json.dumps({"mcpServers": {"\x1b]0;owned\x07": {"command": "\x1b[31mx"}}}))
    trusted(project)
    said = show_in_terminal("mcp", "list", cwd=project) + show_in_terminal(
        "mcp", "test", "\x1b]0;owned\x07", cwd=project
    )
    assert "owned" in said and "\x1b]0;" not in said and "\x1b[31m" not in said


def test_a_changed_document_is_used_after_it_was_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = project_with(tmp_path)
    content = document({"/pay": {"post": {"operationId": "pay"}}}, servers=[{"url": "https://a.example"}])

    with serve_http_in_thread(lambda _: Answer(body=content.encode())) as server:
        url = f"{server.url}/api.json"
        text = f'[http]\nallow_private_addresses = true\n[[openapi]]\nsource = "{url}"\nname = "shop"\n'
        (project / "ferrule.toml").write_text(text)
        assert used_servers(project) == ["https://a.example"]
        content = content.replace("a.example", "evil.example")
        assert used_servers(project) == ["https://a.example"]
        refused = ferrule("openapi", "update", cwd=project)
        assert (refused.returncode, "new server https://evil.example" in refused.stderr) == (1, True)
        assert used_servers(project) == ["https://a.example"]
        accepted = ferrule("openapi", "update", "shop", "--yes", "--json", cwd=project)
        assert json.loads(accepted.stdout)[0]["state"] == "updated"
        assert used_servers(project) == ["https://evil.example"]


def used_servers(project: Path) -> list[str]:
    """Where the calls of the only document's tool go."""
    config = FerruleConfig.read(project / "ferrule.toml")
    [tool] = OpenApiDocuments(config.engine_config.openapi, config.address_guard).load().tools
    return list(tool.spec.metadata["servers"])


def test_a_server_that_was_just_added_is_offered_to_the_next_question(tmp_path: Path):
    (tmp_path / "ferrule.toml").touch()
    (tmp_path / "actions.json").write_text(
        json.dumps([{"name": "list_penguins", "description": "List the penguins.", "inputSchema": {"type": "object"}}])
    )
    trusted(tmp_path)
    server = ["--command", sys.executable, "--arg", str(RAW_SERVER), "--arg=--actions", "--arg", "actions.json"]
    assert ferrule("mcp", "add", "zoo", *server, cwd=tmp_path).returncode == 0
    asked = ferrule("ask", "list the penguins", cwd=tmp_path)
    assert asked.returncode == 8 and "zoo__list_penguins" in asked.stdout + asked.stderr, asked


def test_no_failed_calls_are_not_no_calls(tmp_path: Path):
    assert ferrule("calls", "--failed", cwd=tmp_path).stdout == "No recorded call failed.\n"
    assert ferrule("calls", "--tool", "x", cwd=tmp_path).stdout == "No recorded call matches these options.\n"
    assert ferrule("calls", cwd=tmp_path).stdout.startswith("No calls yet. Make one: ferrule call ")
    ferrule("call", "calculator", "expression=1+1", cwd=tmp_path)
    assert ferrule("stats", cwd=tmp_path).stdout.startswith("1 call, ")
