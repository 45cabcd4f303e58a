"""Activating skills, reading their files and running their scripts, through the engine."""

import os
import sys
from pathlib import Path

import pytest

from ferrule import (
    Policy,
    Rule,
    ToolEngineConfig,
    ToolExecutionContext,
    ToolExecutionResult,
    UnifiedToolLibrary,
)
from ferrule.core.content import Audio, Image, Resource
from ferrule.kinds.skill.folder import MAX_FILE_SIZE, MAX_LISTED, SkillFolder
from tests.kinds.skill.skill_files import PDF, engine_with_skills, write_skill
from tests.support.waiting import is_running, time_out_after_start

ECHO = "import json, os, sys\nprint(json.dumps([sys.argv[1:], sys.stdin.read(), os.getcwd(), sorted(os.environ)]))\n"


async def test_activating_gives_the_instructions_as_they_are_now_and_the_files(tmp_path: Path):
    folder = write_skill(tmp_path / "pdf", scripts__fill_py="pass", references__guide_md="Hello", _env_txt="")
    (folder / ".env").write_text("SECRET=1")
    async with engine_with_skills(tmp_path) as engine:
        write_skill(folder, PDF + "Changed.")
        result = await engine.execute("pdf", action="activate")
    assert result.output["instructions"] == "# How\nRun scripts/fill.py.\nChanged."
    assert [file["path"] for file in result.output["files"]] == [
        *("_env.txt", "references/guide.md", "scripts/fill.py"),
    ]
    assert result.output["files"][1]["size"] == 5 and result.output["folder"] == str(folder)


async def test_allowed_tools_are_told_on_activation(tmp_path: Path):
    write_skill(tmp_path / "pdf", PDF.replace("\n---\n\n", "\nallowed-tools: Read calculator\n---\n\n"))
    async with engine_with_skills(tmp_path) as engine:
        result = await engine.execute("pdf", action="activate")
    assert result.output["allowed_tools"] == ["Read", "calculator"]


async def test_files_come_as_what_they_are(tmp_path: Path):
    folder = write_skill(tmp_path / "pdf", guide_md="你好")
    for name in ["logo.png", "beep.wav", "form.pdf"]:
        (folder / name).write_bytes(b"\0\1\2")
    async with engine_with_skills(tmp_path) as engine:
        calls = {n: engine.execute("pdf", {"path": n}, action="read_file") for n in ["guide.md", "./logo.png"]}
        calls |= {n: engine.execute("pdf", {"path": n}, action="read_file") for n in ["beep.wav", "form.pdf"]}
        text, image, audio, other = [await call for call in calls.values()]
    assert text.output == {"result": "你好"}
    assert image.content == (Image(data=b"\0\1\2", mime_type="image/png"),)
    assert isinstance(audio.content[0], Audio)
    assert other.content == (Resource(uri="skill://pdf/form.pdf", data=b"\0\1\2", mime_type="application/pdf"),)


OUTSIDE = [
    ("../secret.txt", "permission_denied", "leads out of the skill's folder"),
    ("references/../../secret.txt", "permission_denied", "leads out of the skill's folder"),
    ("{tmp}/secret.txt", "permission_denied", "leads out of the skill's folder"),
    ("~/secret.txt", "permission_denied", "leads out of the skill's folder"),
    (".env", "permission_denied", "is hidden"),
    ("link.txt", "permission_denied", "leads through a symbolic link ('link.txt')"),
    ("out/secret.txt", "permission_denied", "leads through a symbolic link ('out')"),
    ("pipe", "execution_error", "is not a file"),
    ("references", "execution_error", "is not a file"),
    ("guide.md/x", "execution_error", "the skill has no file"),
    ("guid.md", "execution_error", "Did you mean 'guide.md'?"),
    ("a\0b", "execution_error", "names no file"),
    ("\ud800", "execution_error", "names no file"),
    ("", "execution_error", "names no file"),
    ("large.bin", "execution_error", "is larger than 5,000,000 bytes"),
]


async def test_nothing_outside_the_folder_is_read(tmp_path: Path):
    folder = write_skill(tmp_path / "pdf", guide_md="x", references__a_md="x")
    (tmp_path / "secret.txt").write_text("s3cret")
    (folder / ".env").write_text("s3cret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "out").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    with (folder / "large.bin").open("wb") as file:
        file.truncate(MAX_FILE_SIZE + 1)
    async with engine_with_skills(tmp_path) as engine:
        for path, error_type, message in OUTSIDE:
            result = await engine.execute("pdf", {"path": path.replace("{tmp}", str(tmp_path))}, action="read_file")
            assert (result.is_success, result.error_type) == (False, error_type), path
            assert message in (result.error or "") and "s3cret" not in str(result), path


async def test_no_descriptor_is_left_open(tmp_path: Path):
    folder = write_skill(tmp_path / "pdf", a__b__c_md="x")
    (folder / "out").symlink_to(tmp_path)
    async with engine_with_skills(tmp_path) as engine:
        await engine.execute("pdf", {"path": "a/b/c.md"}, action="read_file")
        before = len(os.listdir("/dev/fd"))
        for path in ["a/b/c.md", "a/x/c.md", "a/b/none", "out/x", "a/b"] * 5:
            await engine.execute("pdf", {"path": path}, action="read_file")
        assert len(os.listdir("/dev/fd")) == before


# Scripts


@pytest.mark.integration
async def test_a_script_gets_its_arguments_as_they_are_in_its_folder_with_a_small_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TEST_API_KEY", "s3cret")
    folder = write_skill(tmp_path / "pdf", scripts__echo_py=ECHO)
    args = ["--flag", "${TEST_API_KEY}", "{stdin}", "; rm -rf /", ""]
    async with engine_with_skills(tmp_path) as engine:
        call = {"path": "scripts/echo.py", "args": args, "stdin": "你好"}
        result = await engine.execute("pdf", call, action="run_script")
    given, stdin, cwd, variables = result.output["result"]
    assert (given, stdin, cwd) == (args, "你好", str(folder))
    assert "PATH" in variables and "TEST_API_KEY" not in variables


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "text", "mode", "printed"),
    [
        ("scripts__x_py", "import sys\nprint(sys.executable)", 0o644, sys.executable),
        ("scripts__x_sh", "echo from sh", 0o644, "from sh"),
        ("scripts__x_sh", "#!/usr/bin/env bash\nx=(a b); echo ${x[1]}", 0o644, "b"),
        ("scripts__deep__x_tool", "#!/bin/sh\necho from shebang", 0o755, "from shebang"),
    ],
)
async def test_what_runs_a_script_is_told_by_its_name_or_its_first_line(tmp_path: Path, name, text, mode, printed):
    folder = write_skill(tmp_path / "pdf", **{name: text})
    (path,) = [path for path in (folder / "scripts").rglob("x.*")]
    path.chmod(mode)
    async with engine_with_skills(tmp_path) as engine:
        result = await engine.execute("pdf", {"path": str(path.relative_to(folder))}, action="run_script")
    assert result.output == {"result": printed}


async def test_only_scripts_of_the_skill_are_run(tmp_path: Path):
    folder = write_skill(tmp_path / "pdf", helper_py="", scripts__data_txt="x", scripts__tool_rb="#!/usr/bin/ruby\n")
    (folder / "scripts" / "link.py").symlink_to(folder / "helper.py")
    messages = {
        "helper.py": "only files in scripts/ can be run. They are: scripts/data.txt",
        "scripts": "only files in scripts/ can be run",
        "scripts/../helper.py": "leads out of the skill's folder",
        "scripts/link.py": "leads through a symbolic link",
        "scripts/gone.py": "the skill has no file",
        "scripts/data.txt": "its interpreter is unknown",
        "scripts/tool.rb": "is not executable. Run: chmod +x",
    }
    async with engine_with_skills(tmp_path) as engine:
        for path, message in messages.items():
            result = await engine.execute("pdf", {"path": path}, action="run_script")
            assert not result.is_success and message in (result.error or ""), path


@pytest.mark.integration
async def test_a_failing_script_tells_what_it_said(tmp_path: Path):
    write_skill(tmp_path / "pdf", scripts__bad_py="import sys\nsys.exit('no such form')")
    async with engine_with_skills(tmp_path) as engine:
        result = await engine.execute("pdf", {"path": "scripts/bad.py"}, action="run_script")
    assert result.error_type == "execution_error"
    assert "exit code 1: no such form" in (result.error or "")


@pytest.mark.integration
async def test_a_script_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path):
    note = tmp_path / "child"
    write_skill(tmp_path / "pdf", scripts__slow_sh=f"sleep 600 &\necho $! > {note}.part; mv {note}.part {note}\nwait\n")
    async with engine_with_skills(tmp_path) as engine:
        result = await time_out_after_start(
            lambda timeout: engine.execute("pdf", {"path": "scripts/slow.sh"}, action="run_script", timeout=timeout),
            note.exists,
        )
        assert result.error_type == "timeout" and not is_running(int(note.read_text()))


@pytest.mark.integration
async def test_an_approval_of_a_script_is_for_the_files_as_they_were(tmp_path):
    folder = tmp_path / "tidy"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: tidy\ndescription: Tidies up.\n---\nRun the script.\n")
    script = folder / "scripts" / "run.py"
    script.write_text("print('harmless')")
    policy = Policy(rules=[Rule(verdict="ask", tool="tidy__run_script")])
    config = ToolEngineConfig(skills_directories=(str(tmp_path),))
    async with UnifiedToolLibrary(config, policy=policy) as library:

        async def run(approval_id: str | None = None) -> ToolExecutionResult:
            context = ToolExecutionContext(approval_id=approval_id)
            return await library.execute_tool("tidy", "run_script", {"path": "scripts/run.py"}, context=context)

        approval_id = (await run()).metadata["approval_id"]
        await library.engine.approvals.record_decision(approval_id, True)
        script.write_text("print('changed')")
        refused = await run(approval_id)
        assert refused.error_type == "approval_required" and "earlier version" in str(refused.error)
        script.write_text("print('harmless')")
        assert (await run(approval_id)).is_success


def test_the_version_of_a_skill_is_of_all_its_files(tmp_path):
    (tmp_path / "SKILL.md").write_text("---\nname: many\ndescription: Many files.\n---\n")
    for number in range(MAX_LISTED + 5):
        (tmp_path / f"{number:04}.md").write_text("")
    folder = SkillFolder(tmp_path, "SKILL.md")
    before = folder.code_digest, folder.digest
    (tmp_path / f"{MAX_LISTED + 4:04}.md").write_text("changed")
    assert folder.code_digest != before[0] and folder.digest != before[1]
