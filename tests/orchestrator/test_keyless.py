"""Questions that are answered without any key."""

from pathlib import Path

from ferrule import UnifiedToolLibrary, tool
from ferrule.models.offline import OfflineModel
from ferrule.orchestrator import Orchestrator

TIMES = {"Asia/Tokyo": "2026-03-04 18:30", "Europe/Paris": "2026-03-04 10:30"}


@tool(read_only=True, tags=["time"])
async def get_time(timezone: str = "UTC") -> str:
    """Get the current time in a time zone.

    Args:
        timezone: IANA name of the time zone
    """
    return TIMES[timezone]


def searching(folder: Path):
    @tool(read_only=True)
    async def search_files(pattern: str) -> list[str]:
        """Search files by a pattern of their names.

        Args:
            pattern: a glob pattern such as *.txt
        """
        return sorted(path.name for path in folder.glob(pattern))

    return search_files


async def test_ten_questions_are_answered_without_a_key(tmp_path, workflow):
    for name in ("a.txt", "b.txt", "c.md"):
        (tmp_path / name).touch()
    expected = [
        ("hello!", ["Hello! I am Ferrule"], "fast_path"),
        ("What is 12 * 7?", ["84"], "loop"),
        ("What time is it in Tokyo?", [TIMES["Asia/Tokyo"]], "loop"),
        ("search files *.txt", ["a.txt", "b.txt"], "loop"),
        ("Compute 3 * 4 and then multiply it by 10", ["120"], "loop"),
        ("12 + 30 等于多少？", ["42"], "loop"),
        ("东京现在几点？", [TIMES["Asia/Tokyo"]], "loop"),
        ("what is 2 + 2 and what time is it in Paris", ["4", TIMES["Europe/Paris"]], "loop"),
        ("先计算 3*4，然后把结果乘以 10", ["120"], "loop"),
        ("what did I ask?", ["先计算 3*4，然后把结果乘以 10"], "fast_path"),
        ("what can you do?", ["calculator", "get_time", "search_files"], "fast_path"),
        ("What is  12 * 7?", ["84"], "loop"),
    ]
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path}/calls.db") as library:
        library.register(get_time, searching(tmp_path))
        async with Orchestrator(library, OfflineModel(), workflow=workflow) as orchestrator:
            for question, parts, strategy in expected:
                done = await orchestrator.process_task(question)
                assert all(part in done.answer for part in parts), f"{question} → {done.answer}"
                assert done.strategy == strategy and done.is_finished and not done.errors
        assert done.cached
