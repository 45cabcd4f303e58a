"""The strict check, against the cases of the specification's own validator."""

import json
from pathlib import Path

import pytest

from ferrule.kinds.skill.front_matter import validate_skill
from tests.kinds.skill.skill_files import PDF, write_skill
from tests.support.shared_data import shared_data

CASES = shared_data("skills_ref_cases.jsonl")

OUR_MESSAGES = {
    "Path does not exist": "there is no such folder",
    "Not a directory": "this is not a folder",
    "Missing required file": "SKILL.md is missing",
    "must be lowercase": "is not in lower case",
    "exceeds 64 character limit": "name is longer than 64 characters",
    "cannot start or end with a hyphen": "begins or ends with a hyphen",
    "consecutive hyphens": "two hyphens in a row",
    "contains invalid characters": "characters that are not allowed",
    "must match skill name": "does not have the name of its skill",
    "Unexpected fields": "unknown keys",
    "Description exceeds 1024": "description is longer than 1024",
    "Compatibility exceeds 500": "compatibility is longer than 500",
}


@pytest.mark.skipif(not CASES.exists(), reason="needs shared/data beside the project")
def test_the_check_agrees_with_the_reference(tmp_path: Path):
    differences = []
    for number, case in enumerate(map(json.loads, CASES.read_text().splitlines())):
        folder = tmp_path / str(number) / case["dir_name"]
        folder.parent.mkdir()
        if case["exists"]:
            folder.mkdir() if case["is_dir"] else folder.touch()
        for name, text in case["files"].items():
            (folder / name).write_text(text)
        ours = [str(error) for error in validate_skill(folder)]
        theirs = [next(ours for said, ours in OUR_MESSAGES.items() if said in error) for error in case["errors"]]
        if len(ours) != len(theirs) or not all(words in error for words, error in zip(theirs, ours, strict=True)):
            differences.append((case["test"], ours, theirs))
    assert differences == []


def test_everything_wrong_is_found_at_once_with_its_line(tmp_path: Path):
    text = "---\nname: My--Skill\nname: Bad_\ndescription:\nmetadata: x\nowner: me\n---\n"
    errors = validate_skill(write_skill(tmp_path / "pdf", text))
    assert [error.line for error in errors] == [3, 3, 3, 3, 4, 5, 6]
    assert {error.path for error in errors} == {tmp_path / "pdf" / "SKILL.md"}


def test_a_good_skill_has_no_errors_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(write_skill(tmp_path / "pdf", PDF))
    assert validate_skill(".") == []
