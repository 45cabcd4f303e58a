"""What the offline model calls for a question; `None` where it must call nothing."""

from datetime import datetime
from typing import Any

import pytest

from ferrule.messages import user_message
from ferrule.models.model import ModelRequest
from ferrule.models.offline import OfflineModel
from tests.models.offline_tools import TOOLS

NOW = datetime(2026, 3, 4, 10, 0)  # a Wednesday

Q: list[tuple[str, dict[str, Any] | list[tuple[str, dict[str, Any]]] | None]]
QUESTIONS: list[tuple[str, Any]] = [
    # numbers and expressions
    ("what is 15% of 80", ("calculator", {"expression": "15% * 80"})),
    ("2**10 + 3", ("calculator", {"expression": "2**10 + 3"})),
    ("How much is twelve times five?", ("calculator", {"expression": "12 * 5"})),
    ("三加五等于多少？", ("calculator", {"expression": "3 + 5"})),
    ("计算 (12+3)*4", ("calculator", {"expression": "(12+3)*4"})),
    ("80的15%是多少", ("calculator", {"expression": "80 * 15%"})),
    ("the square root of 144, please", ("calculator", {"expression": "sqrt(144)"})),
    ("what's 7 * (8 - 3)?", ("calculator", {"expression": "7 * (8 - 3)"})),
    ("What is the average of 3, 5 and 7?", ("average", {"numbers": [3, 5, 7]})),
    ("Pick a random number between 5 and 20", ("random_number", {"minimum": 5, "maximum": 20})),
    ("Roll the dice", ("roll_dice", {})),
    ("Roll dice with 20 sides", ("roll_dice", {"sides": 20})),
    # places, times, zones, dates
    ("What's the weather in Paris?", ("get_weather", {"city": "Paris"})),
    ("weather for New York in Fahrenheit", ("get_weather", {"city": "New York", "unit": "fahrenheit"})),
    ("Could you please tell me the current weather in san francisco?", ("get_weather", {"city": "san francisco"})),
    ("Tokyo weather", ("get_weather", {"city": "Tokyo"})),
    ("北京今天天气怎么样？", ("get_weather", {"city": "北京"})),
    ("请帮我查一下上海的天气", ("get_weather", {"city": "上海"})),
    ("What time is it in Tokyo?", ("get_time", {"timezone": "Asia/Tokyo"})),
    ("current time in New York", ("get_time", {"timezone": "America/New_York"})),
    ("伦敦现在几点了？", ("get_time", {"timezone": "Europe/London"})),
    (
        "Convert 15:30 from Tokyo to London time",
        ("convert_time", {"time": "15:30", "from_timezone": "Asia/Tokyo", "to_timezone": "Europe/London"}),
    ),
    (
        "Remind me to buy milk tomorrow at 9am",
        ("create_reminder", {"text": "buy milk", "time": "2026-03-05T09:00:00"}),
    ),
    (
        "Add an event titled 'Team lunch' on March 12 at 12:30 to the calendar",
        ("create_event", {"title": "Team lunch", "date": "2026-03-12", "start": "12:30"}),
    ),
    (
        "Book a flight from Berlin to Madrid next Friday",
        ("book_flight", {"origin": "Berlin", "destination": "Madrid", "date": "2026-03-06"}),
    ),
    ("查询从北京到上海的火车票", ("query_train", {"from_city": "北京", "to_city": "上海"})),
    # text, quoted and not
    ("Translate 'good morning' to French", ("translate", {"text": "good morning", "target_language": "fr"})),
    ("translate good night into German", ("translate", {"text": "good night", "target_language": "de"})),
    ("把“你好”翻译成英文", ("translate", {"text": "你好", "target_language": "en"})),
    ("把早上好翻译成日语", ("translate", {"text": "早上好", "target_language": "ja"})),
    ("Search the web for python asyncio tutorials", ("web_search", {"query": "python asyncio tutorials"})),
    ("搜索人工智能的最新进展", ("web_search", {"query": "人工智能的最新进展"})),
    ("search for cats, limit 5", ("web_search", {"query": "cats", "limit": 5})),
    ("Count the words of “to be or not to be”", ("count_words", {"text": "to be or not to be"})),
    ("Look up the definition of the word ferrule", ("define_word", {"word": "ferrule"})),
    ("Play some music by Miles Davis", ("play_music", {"query": "Miles Davis"})),
    (
        "Send an email to bob@example.com with subject 'Hi' saying I am late",
        ("send_email", {"to": "bob@example.com", "subject": "Hi", "body": "I am late"}),
    ),
    (
        "给 bob@example.com 发邮件，标题是“你好”，内容是“明天见”",
        ("send_email", {"to": "bob@example.com", "subject": "你好", "body": "明天见"}),
    ),
    ("Run the query `SELECT * FROM users` on the database", ("run_query", {"sql": "SELECT * FROM users"})),
    # addresses, paths, identifiers, enums, booleans
    ("Download the page https://example.com/a?b=1.", ("fetch_page", {"url": "https://example.com/a?b=1"})),
    ("Read the file notes.txt", ("read_file", {"path": "notes.txt"})),
    ("Show me the contents of /etc/hosts", ("read_file", {"path": "/etc/hosts"})),
    ("读取文件 /tmp/a.txt", ("read_file", {"path": "/tmp/a.txt"})),
    ("Delete the file ./old/report.pdf", ("delete_file", {"path": "./old/report.pdf"})),
    ("List the files in the directory /tmp recursively", ("list_directory", {"path": "/tmp", "recursive": True})),
    ("What is the status of order A-1234?", ("get_order", {"order_id": "A-1234"})),
    ("What's the stock price of AAPL?", ("get_stock_price", {"ticker": "AAPL"})),
    ("Ping example.org", ("ping", {"host": "example.org"})),
    ("Switch the lamp in the living room off", ("set_light", {"room": "living_room", "state": "off"})),
    (
        "Open a support ticket titled 'Printer is broken' with high priority",
        ("create_ticket", {"title": "Printer is broken", "priority": "high"}),
    ),
    (
        "Resize the image cat.png to width 200 and height 100",
        ("resize_image", {"path": "cat.png", "width": 200, "height": 100}),
    ),
    (
        "Convert 100 USD to EUR",
        ("convert_currency", {"amount": 100, "from_currency": "USD", "to_currency": "EUR"}),
    ),
    (
        "100美元是多少人民币",
        ("convert_currency", {"amount": 100, "from_currency": "USD", "to_currency": "CNY"}),
    ),
    # several
    (
        "What's the weather in Paris and what time is it in Tokyo?",
        [("get_weather", {"city": "Paris"}), ("get_time", {"timezone": "Asia/Tokyo"})],
    ),
    ("weather in Paris and London", [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "London"})]),
    ("先查北京的天气，然后计算 3*4", [("get_weather", {"city": "北京"}), ("calculator", {"expression": "3*4"})]),
    (
        "1. Read the file a.txt 2. Ping example.com",
        [("read_file", {"path": "a.txt"}), ("ping", {"host": "example.com"})],
    ),
    (
        "Search the web for tea; then tell me the time in London.",
        [("web_search", {"query": "tea"}), ("get_time", {"timezone": "Europe/London"})],
    ),
    # nothing to call
    ("Hello!", None),
    ("你好，你是谁？", None),
    ("Why is the sky blue?", None),
    ("Tell me a joke about weather", None),
    ("Write a poem about spring", None),
    ("Thanks a lot, that was great", None),
    ("What is the capital of France?", None),
    ("I shut the door of the server room", None),
    ("My file is too large", None),
    ("Do you like music?", None),
    ("给我写一首关于春天的诗", None),
    ("How are you today?", None),
    ("What did you delete?", None),
    ("Who directed the film The Flight?", None),
    ("Send an email", None),
    ("What's the weather?", None),
]


async def calls_for(question: str) -> list[tuple[str, dict[str, Any]]]:
    model = OfflineModel(clock=lambda: NOW)
    reply = await model.generate(ModelRequest(messages=[user_message(question)], tools=TOOLS))
    assert bool(reply.text) != bool(reply.tool_calls)
    return [(call.name, call.arguments) for call in reply.tool_calls]


@pytest.mark.parametrize(("question", "expected"), QUESTIONS, ids=[question for question, _ in QUESTIONS])
async def test_a_question_makes_the_right_calls_and_no_others(question, expected):
    wanted = expected if isinstance(expected, list) else [expected] if expected else []
    assert await calls_for(question) == wanted
