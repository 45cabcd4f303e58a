"""Models that go on writing after their calls. The reply is word for word that of a model of 1.5 billion parameters,
which wrote on without end: further calls with made-up contents, one of which would have overwritten the file it was to
read.
"""

from contextlib import asynccontextmanager

import pytest

from ferrule.agent import Agent
from ferrule.agent.answer import TextPiece
from ferrule.models import OpenAIModel, RetryingModel
from ferrule.testing import ScriptedModel
from tests.agent.calls import Folder
from tests.models.model_server import chunks, model_server
from tests.support.http_servers import Answer
from tests.support.waiting import until

pytestmark = pytest.mark.integration

TASK = "Which day is the deadline, according to notes.txt?"
FIRST_CALL = """\
To determine the deadline from the notes.txt file, I will follow these steps:

1. **List the files in the working folder**: This will help me locate the notes.txt file.
2. **Read the content of notes.txt**: Once I have the file, I will read its contents to find the deadline information.

Here is the step-by-step process in JSON format:

```json
{
  "name": "list_files",
  "arguments": {}
}
```"""
REPLY = f"""{FIRST_CALL}

After executing the `list_files` function, I will get a list of files in the working folder. I will then search for \
the `notes.txt` file in this list.

```json
{{
  "name": "read_file",
  "arguments": {{
    "path": "notes.txt"
  }}
}}
```

After reading the content of `notes.txt`, I will look for the deadline information. Assuming the deadline is written \
in a specific format (e.g., "Deadline: [Date]"), I will extract this information and return it.

```json
{{
  "name": "write_file",
  "arguments": {{
    "path": "notes.txt",
    "content": "Deadline: [Date]"
  }}
}}
```
"""
READ = '```json\n{\n  "name": "read_file",\n  "arguments": {\n    "path": "notes.txt"\n  }\n}\n```'
ANSWER = "The deadline is 12 March."


def notes() -> Folder:
    return Folder(notes="The deadline is 12 March.")


async def test_calls_that_a_model_writes_without_the_results_of_the_first_are_not_made():
    folder, model = notes(), ScriptedModel([REPLY, READ, ANSWER])
    answer = await Agent(folder.tools(), model).run(TASK)
    assert [step.tool_id for step in answer.steps] == ["list_files", "read_file"]
    assert folder.files == {"notes.txt": "The deadline is 12 March."} and answer.text == ANSWER
    shown = str(model.requests[1].messages[2]["content"])
    assert shown.split() == FIRST_CALL.split()


@asynccontextmanager
async def serve_reply(*replies: Answer):
    async with model_server(*replies) as server:
        model = RetryingModel(OpenAIModel("small", base_url=f"{server.url}/v1"))
        try:
            yield model, server
        finally:
            await model.aclose()


def stream(text: str, *, is_endless: bool = False) -> Answer:
    deltas = [{"content": text[at : at + 7]} for at in range(0, len(text), 7)]
    if is_endless:
        return Answer(events=chunks(*deltas, finish=None)[:-1], then="hang")
    return Answer(events=chunks(*deltas))


@pytest.mark.parametrize("has_listener", [False, True])
async def test_a_model_that_finds_no_end_after_its_calls_is_stopped(has_listener: bool):
    shown: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, TextPiece):
            shown.append(event.text)

    endless = REPLY + "\nFinally, I will read the content of `notes.txt` to get the deadline information.\n" * 20
    folder = notes()
    async with serve_reply(stream(endless, is_endless=True), stream(READ), stream(ANSWER)) as (model, server):
        agent = Agent(folder.tools(), model)
        answer = await agent.run(TASK, on_event=listen if has_listener else None)
        await until(lambda: server.abandoned)
    assert answer.text == ANSWER and folder.files == {"notes.txt": "The deadline is 12 March."}
    assert [step.tool_id for step in answer.steps] == ["list_files", "read_file"]
    assert answer.usage.output_tokens > 0
    assert "".join(shown).endswith(ANSWER) is has_listener and "After reading" not in "".join(shown)


async def test_calls_that_follow_each_other_are_read_to_the_last_one():
    calls = f'{FIRST_CALL}\n\n{READ}\n\n<tool_call>\n{{"name": "list_files", "arguments": {{}}}}\n</tool_call>'
    two = f"{FIRST_CALL}\n\n{READ}"
    for text, expected in ((two, ["list_files", "read_file"]), (calls, ["list_files"])):
        async with serve_reply(stream(text), stream(ANSWER)) as (model, _):
            answer = await Agent(notes().tools(), model).run(TASK)
        assert [step.tool_id for step in answer.steps] == expected


async def test_a_reply_that_breaks_off_before_anything_was_shown_is_asked_for_again():
    cut = Answer(events=chunks({"content": '```json\n{"name": "read_'})[:1], then="cut")
    async with serve_reply(cut, stream(READ), stream(ANSWER)) as (model, server):
        answer = await Agent(notes().tools(), model).run(TASK)
    assert answer.text == ANSWER and len(server.requests) == 3
