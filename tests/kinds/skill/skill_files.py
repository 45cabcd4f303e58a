"""Writing skills into a folder, and calling them as the engine does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ferrule.engine import ToolEngine, ToolEngineConfig
from ferrule.kinds.skill.directory import SkillExecutor, SkillsDirectory

PDF = "---\nname: pdf\ndescription: Fill in PDF forms.\n---\n\n# How\nRun scripts/fill.py.\n"


def write_skill(directory: Path, text: str = PDF, **files: str) -> Path:
    """A skill's folder; `scripts__fill_py="…"` becomes `scripts/fill.py`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "SKILL.md").write_text(text, encoding="utf-8")
    for name, content in files.items():
        stem, _, suffix = name.replace("__", "/").rpartition("_")
        path = directory / f"{stem}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return directory


@asynccontextmanager
async def engine_with_skills(directory: Path) -> AsyncIterator[ToolEngine]:
    config = ToolEngineConfig(tools_directory=str(directory / "no_tools"), builtin_tools=False)
    async with ToolEngine(config) as engine:
        engine.register_executor("skill", SkillExecutor())
        engine.register(*SkillsDirectory(directory).load().tools)
        yield engine
