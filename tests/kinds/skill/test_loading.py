"""Which skills a folder has, what is read of them, and what happens when files change."""

import asyncio
import os
from pathlib import Path

import pytest

from ferrule import Policy, Principal
from ferrule.core.spec import ToolType
from ferrule.kinds.loading import compare_tools
from ferrule.kinds.skill.directory import SkillsDirectory, skill_folders
from ferrule.kinds.skill.front_matter import parse_tool_names
from ferrule.kinds.source import LoadReport
from ferrule.kinds.watching import FileWatcher
from ferrule.policy.policy import Permissions
from tests.kinds.skill.skill_files import PDF, write_skill


def ids(report: LoadReport) -> list[str]:
    return [tool.id for tool in report.tools]


def test_a_skill_is_a_tool_that_carries_its_front_matter_and_not_its_body(tmp_path: Path):
    said = "license: MIT\ncompatibility: needs jq\nmetadata: {author: Wang}\nallowed-tools: Read Bash(git add:*)\n"
    write_skill(tmp_path / "pdf", PDF.replace("\n---\n\n", f"\n{said}---\n\n"))
    (tool,) = SkillsDirectory(tmp_path).load().tools
    assert (tool.id, tool.source, tool.handler, tool.spec.tool_type) == ("pdf", "skills", "skill", ToolType.SKILL)
    assert [c.name for c in tool.spec.capabilities] == ["activate", "read_file", "run_script"]
    agent = Permissions(Policy(), Principal(kind="agent", name="demo"))
    assert [agent.decide(tool, c).verdict for c in tool.spec.capabilities] == ["allow", "allow", "ask"]
    assert tool.spec.metadata["allowed_tools"] == ("Read", "Bash(git add:*)")
    assert tool.spec.metadata["license"] == "MIT" and tool.spec.metadata["metadata"] == {"author": "Wang"}
    assert tool.origin == f"{tmp_path / 'pdf' / 'SKILL.md'}:2"
    assert "scripts/fill.py" not in repr(tool.spec)


def test_reading_is_read_only_and_running_promises_nothing(tmp_path: Path):
    write_skill(tmp_path / "pdf")
    (tool,) = SkillsDirectory(tmp_path).load().tools
    effects = [tool.spec.effects_of(capability) for capability in tool.spec.capabilities]
    assert [each.read_only for each in effects] == [True, True, False]


def test_skills_are_found_deep_but_not_in_hidden_folders_or_inside_other_skills(tmp_path: Path):
    for place in ["pdf", "office/word", ".git/hidden", "pdf/nested", "_drafts/draft", "node_modules/x", "a/b/c/d/e/f"]:
        write_skill(tmp_path / place, PDF.replace("pdf", Path(place).name, 1))
    assert ids(SkillsDirectory(tmp_path).load()) == ["word", "pdf"]


def test_a_hidden_folder_is_searched_when_it_is_the_one_asked_for(tmp_path: Path):
    write_skill(tmp_path / "skills" / "pdf")
    write_skill(tmp_path / ".claude" / "skills" / "word", PDF.replace("pdf", "word", 1))
    source = SkillsDirectory(tmp_path / "skills", tmp_path / ".claude" / "skills", tmp_path / "missing")
    assert (ids(source.load()), source.load().errors) == (["pdf", "word"], ())


def test_one_name_in_two_folders_is_reported_with_both_places(tmp_path: Path):
    first, second = write_skill(tmp_path / "a" / "pdf"), write_skill(tmp_path / "b" / "pdf")
    report = SkillsDirectory(tmp_path / "a", tmp_path / "b").load()
    (error,) = report.errors
    assert (ids(report), error.path, error.line) == (["pdf"], second / "SKILL.md", 2)
    assert f"there is a tool 'pdf' already, at {first / 'SKILL.md'}:2" in str(error)


def test_a_folder_that_links_to_itself_is_searched_once(tmp_path: Path):
    write_skill(tmp_path / "pdf")
    (tmp_path / "again").symlink_to(tmp_path)
    assert ids(SkillsDirectory(tmp_path).load()) == ["pdf"]


@pytest.mark.parametrize("target", ["loop", "x" * 300])
def test_a_link_that_leads_nowhere_hides_no_skill(tmp_path: Path, target: str):
    write_skill(tmp_path / "pdf")
    (tmp_path / "loop").symlink_to(target)
    report = SkillsDirectory(tmp_path).load()
    assert (ids(report), report.errors) == (["pdf"], ())


def test_a_document_that_became_a_named_pipe_is_not_waited_for(tmp_path: Path):
    path = write_skill(tmp_path / "pdf") / "SKILL.md"
    skills = SkillsDirectory(tmp_path)
    skills.load()
    path.unlink()
    os.mkfifo(path)
    report = skills.load()
    assert ids(report) == ["pdf"] and "is not a file" in str(report.errors[0])


def test_a_line_of_very_many_spaces_in_a_broken_document_is_read_in_no_time(tmp_path: Path):
    write_skill(tmp_path / "pdf", f"---\nname: pdf\ndescription: a{' ' * 200_000}b: c\n---\n")
    [tool] = SkillsDirectory(tmp_path).load().tools
    assert tool.spec.description.startswith("a ") and tool.spec.description.endswith(" b: c")


def test_a_skill_folder_may_be_a_link_but_its_document_may_not(tmp_path: Path):
    write_skill(tmp_path / "elsewhere" / "pdf")
    write_skill(tmp_path / "skills" / "word")
    (tmp_path / "skills" / "pdf").symlink_to(tmp_path / "elsewhere" / "pdf")
    (tmp_path / "skills" / "word" / "SKILL.md").unlink()
    (tmp_path / "skills" / "word" / "SKILL.md").symlink_to(tmp_path / "elsewhere" / "pdf" / "SKILL.md")
    report = SkillsDirectory(tmp_path / "skills").load()
    assert ids(report) == ["pdf"]
    assert "leads through a symbolic link" in str(report.errors[0])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("# Just text\n", 1, "its front matter is missing"),
        ("", 1, "its front matter is missing"),
        ("---\nname: pdf\n", 1, "the front matter does not end"),
        ("---\n---\n", 2, "the front matter is empty"),
        ("---\n- pdf\n---\n", 2, "the front matter is not a mapping"),
        ("---\ndescription: x\n---\n", 2, "has no name (write name: pdf)"),
        ("---\nname: pdf\ndescription:\n---\n", 3, "has no description"),
        ("---\nname: pdf\ndescription: [x\n---\n", 3, "not YAML"),
    ],
)
def test_a_broken_document_is_reported_with_its_line_and_harms_no_other(
    tmp_path: Path, text: str, line: int, message: str
):
    write_skill(tmp_path / "pdf", text)
    write_skill(tmp_path / "word", PDF.replace("pdf", "word", 1))
    report = SkillsDirectory(tmp_path).load()
    (error,) = report.errors
    assert (ids(report), error.path, error.line) == (["word"], tmp_path / "pdf" / "SKILL.md", line)
    assert message in str(error)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("description: Use when: the user asks", "Use when: the user asks"),
        ('description: Say "hi": now', 'Say "hi": now'),
        ("description: >\n  folded\n  text", "folded text"),
        ("description: 2024-01-01", "2024-01-01"),
        ("description: 填写表格\nunknown: [1]\nname: pdf", "填写表格"),
    ],
)
def test_documents_of_the_wild_are_read_as_they_are_meant(tmp_path: Path, written: str, meant: str):
    write_skill(tmp_path / "other-name", f"\ufeff---\nname: pdf\n{written}\n---\nBody")
    report = SkillsDirectory(tmp_path).load()
    assert [(tool.id, tool.spec.description) for tool in report.tools] == [("pdf", meant)]


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("Bash(jq:*) Bash(git:*)", ("Bash(jq:*)", "Bash(git:*)")),
        ("Read, Write,Bash(git add:*)", ("Read", "Write", "Bash(git add:*)")),
        (["Read", "Read", "web_search"], ("Read", "web_search")),
        (None, ()),
    ],
)
def test_allowed_tools_are_names_however_they_are_listed(said, names):
    assert parse_tool_names(said) == names


# Changes


def test_a_changed_document_is_an_update_and_the_others_stay_the_same_objects(tmp_path: Path):
    source = SkillsDirectory(tmp_path)
    write_skill(tmp_path / "pdf")
    write_skill(tmp_path / "word", PDF.replace("pdf", "word", 1))
    before = source.load().tools
    write_skill(tmp_path / "pdf", PDF + "More.")
    after = source.load().tools
    assert compare_tools(before, after).updated == (after[0],)
    assert after[1] is before[1]


def test_a_broken_edit_keeps_the_last_good_skill_and_a_deleted_one_is_gone(tmp_path: Path):
    source = SkillsDirectory(tmp_path)
    folder = write_skill(tmp_path / "pdf")
    before = source.load().tools
    write_skill(folder, "---\nname: pdf\n")
    broken = source.load()
    assert broken.tools == before and len(broken.errors) == 1
    os.remove(folder / "SKILL.md")
    assert source.load().tools == ()


async def test_a_new_skill_is_noticed_by_the_watcher(tmp_path: Path):
    noticed = asyncio.Queue[set[Path]]()
    folder = tmp_path / "group" / "pdf"
    folder.mkdir(parents=True)
    watcher = FileWatcher(SkillsDirectory(tmp_path).watched_folders(), noticed.put, interval=0.05, instant=True)
    watcher.start()
    write_skill(folder)
    async with asyncio.timeout(120):
        assert await noticed.get() == {folder / "SKILL.md"}
    await watcher.aclose()


# Python classes


def test_public_classes_of_a_python_file_are_skills(tmp_path: Path):
    (tmp_path / "travel.py").write_text(
        "import enum\nfrom dataclasses import dataclass\nfrom pathlib import Path\n\n"
        "class TravelError(Exception):\n    def why(self): ...\n"
        "class Colour(enum.Enum):\n    RED = 1\n"
        "@dataclass\nclass Trip:\n    city: str\n    def cost(self) -> int: ...\n"
        "class Settings:\n    limit = 3\n"
        "class _Base:\n    def plan(self, city: str) -> str:\n        return f'to {city}'\n"
        "class Travel(_Base):\n    '''Plan trips.'''\n    def book(self, city: str) -> str:\n        return city\n"
    )
    (tool,) = SkillsDirectory(tmp_path).load().tools
    assert (tool.id, tool.source, tool.handler, tool.spec.description) == (
        *("Travel", "skills", "function", "Plan trips."),
    )
    assert [c.name for c in tool.spec.capabilities] == ["plan", "book"]
    assert tool.target.function("plan")(city="Rome") == "to Rome"


def test_a_python_file_that_decorates_says_itself_what_its_tools_are(tmp_path: Path):
    (tmp_path / "own.py").write_text(
        "from ferrule import tool\n\nclass Helper:\n    def help(self): ...\n\n"
        "@tool\ndef greet() -> str:\n    return 'hi'\n"
    )
    assert ids(SkillsDirectory(tmp_path).load()) == ["greet"]


def test_python_files_inside_a_skill_or_a_deeper_folder_are_not_run(tmp_path: Path):
    write_skill(tmp_path / "pdf", scripts__fill_py="raise SystemExit", helper_py="raise SystemExit")
    write_skill(tmp_path / "_drafts", helper_py="raise SystemExit")
    (tmp_path / "_private.py").write_text("raise SystemExit")
    report = SkillsDirectory(tmp_path).load()
    assert (ids(report), report.errors) == (["pdf"], ())


def test_a_class_that_cannot_be_made_is_reported_at_its_line_and_the_last_good_one_stays(tmp_path: Path):
    path, source = tmp_path / "shop.py", SkillsDirectory(tmp_path)
    path.write_text("class Shop:\n    def buy(self) -> int:\n        return 1\n")
    before = source.load().tools
    path.write_text(
        "\n\nclass Shop:\n    def __init__(self, owner): ...\n    def buy(self) -> int:\n        return 1\n"
    )
    report = source.load()
    assert report.tools == before
    assert str(report.errors[0]).startswith(f"{path}:3: class 'Shop' cannot be created without arguments")


@pytest.mark.parametrize("target", ["/", "..", "../.."])
def test_a_link_out_of_the_folder_is_not_searched(tmp_path: Path, target: str):
    skills = tmp_path / "project" / "skills"
    write_skill(skills / "pdf")
    write_skill(tmp_path / "others" / "word", PDF.replace("pdf", "word", 1))
    (skills / "x").symlink_to(target)
    (skills / "pdf" / "loop").symlink_to(skills)
    assert skill_folders(skills) == [skills, skills / "pdf"]
    assert ids(SkillsDirectory(skills).load()) == ["pdf"]


def test_a_link_to_a_skill_elsewhere_is_that_skill(tmp_path: Path):
    write_skill(tmp_path / "shared" / "pdf")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "pdf").symlink_to(tmp_path / "shared" / "pdf")
    assert ids(SkillsDirectory(tmp_path / "skills").load()) == ["pdf"]


def test_a_skill_is_found_by_its_own_path_and_not_by_a_link(tmp_path: Path):
    write_skill(tmp_path / "pdf")
    (tmp_path / "again").symlink_to("pdf")
    report = SkillsDirectory(tmp_path).load()
    assert (ids(report), report.errors) == (["pdf"], ())
    assert report.tools[0].origin.startswith(str(tmp_path / "pdf"))


def test_the_number_of_folders_that_are_searched_is_limited(tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setattr("ferrule.kinds.skill.directory.MAX_FOLDERS", 10)
    write_skill(tmp_path / "pdf")
    for number in range(20):
        (tmp_path / "pile" / str(number) / "inner").mkdir(parents=True)
    assert len(skill_folders(tmp_path)) == 10
    assert ids(SkillsDirectory(tmp_path).load()) == ["pdf"]  # it is nearer than the others
    assert "too many folders" in caplog.text
