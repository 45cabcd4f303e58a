"""The calls of the offline model for a question; `None` where it must call nothing."""

from collections.abc import Sequence
from typing import Any

from ferrule.core.messages import Schema, user_message
from ferrule.core.model import ModelRequest
from ferrule.models.offline import OfflineModel
from tests.models.offline_tools import TOOLS, function, text

QUESTIONS: list[tuple[str, Any]] = [
    # numbers and expressions
    ("what is 15% of 80", ("calculator", {"expression": "15% * 80"})),
    ("2**10 + 3", ("calculator", {"expression": "2**10 + 3"})),
    ("How much is twelve times five?", ("calculator", {"expression": "12 * 5"})),
    ("三加五等于多少？", ("calculator", {"expression": "3 + 5"})),
    ("计算 (12+3)*4", ("calculator", {"expression": "(12+3)*4"})),
    ("80的15%是多少", ("calculator", {"expression": "80 * 15%"})),
    ("80 的 15% 是多少？", ("calculator", {"expression": "80 * 15%"})),
    ("三 加 五 等于 多少", ("calculator", {"expression": "3 + 5"})),
    ("the square root of 144, please", ("calculator", {"expression": "sqrt(144)"})),
    ("what's 7 * (8 - 3)?", ("calculator", {"expression": "7 * (8 - 3)"})),
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
    ("查询从北京到上海的火车票", ("query_train", {"from_city": "北京", "to_city": "上海"})),
    # text, quoted and not
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
    ("Run the query `SELECT * FROM users` on the database", ("run_query", {"sql": "SELECT * FROM users"})),
    # addresses, paths, identifiers, enums, booleans
    ("Download the page https://example.com/a?b=1.", ("fetch_page", {"url": "https://example.com/a?b=1"})),
    ("Read the file notes.txt", ("read_file", {"path": "notes.txt"})),
    ("Show me the contents of /etc/hosts", ("read_file", {"path": "/etc/hosts"})),
    ("读取文件 /tmp/a.txt", ("read_file", {"path": "/tmp/a.txt"})),
    ("Delete the file ./old/report.pdf", ("delete_file", {"path": "./old/report.pdf"})),
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
    # further questions
    ("whats 45 divided by 9", ("calculator", {"expression": "45 / 9"})),
    ("Is it sunny in Oslo?", None),
    ("Give me the weather of Rome in celsius please", ("get_weather", {"city": "Rome", "unit": "celsius"})),
    ("巴黎几点了", ("get_time", {"timezone": "Europe/Paris"})),
    ("广州天气如何", ("get_weather", {"city": "广州"})),
    ("turn the bedroom lamp on", ("set_light", {"room": "bedroom", "state": "on"})),
    ("order status for 99812", ("get_order", {"order_id": "99812"})),
    ("删除文件 /var/tmp/x.log", ("delete_file", {"path": "/var/tmp/x.log"})),
    ("list files in ~/projects", ("list_directory", {"path": "~/projects"})),
    ("Email alice@corp.com", None),
    ("I want to know the price of TSLA stock", ("get_stock_price", {"ticker": "TSLA"})),
    (
        "ping google.com and read /etc/passwd",
        [("ping", {"host": "google.com"}), ("read_file", {"path": "/etc/passwd"})],
    ),
    ("给我讲个笑话", None),
    ("I deleted the wrong file yesterday", None),
    ("what can you do?", None),
    ("是谁发明了电话？", None),
    ("fetch https://python.org", None),
    ("播放周杰伦的歌曲", ("play_music", {"query": "周杰伦"})),
    ("Book me a flight to Rome", None),
    ("shut down the server alpha", ("shutdown_server", {"server": "alpha"})),
    ("what is the time", None),
    ("Search for the weather song", ("web_search", {"query": "the weather song"})),
    ("who won the world cup in 2018", None),
    ("random number from 1 to 6", ("random_number", {"minimum": 1, "maximum": 6})),
    ("Resize photo.jpg to 640 by 480", ("resize_image", {"path": "photo.jpg", "width": 640, "height": 480})),
    (
        "Open a ticket: the VPN is down, priority medium",
        ("create_ticket", {"title": "the VPN is down", "priority": "medium"}),
    ),
    ("Definition of serendipity", ("define_word", {"word": "serendipity"})),
    ("从广州到深圳的火车", ("query_train", {"from_city": "广州", "to_city": "深圳"})),
    ("how much is 19% of 250?", ("calculator", {"expression": "19% * 250"})),
    ("Can you search the web for the best ramen in Osaka?", ("web_search", {"query": "the best ramen in Osaka"})),
    ("I need the weather in Cape Town", ("get_weather", {"city": "Cape Town"})),
    ("Please delete tmp/cache.db", ("delete_file", {"path": "tmp/cache.db"})),
    ("what time is it now in Sydney?", ("get_time", {"timezone": "Australia/Sydney"})),
    ("纽约现在是几点？", ("get_time", {"timezone": "America/New_York"})),
    ("play Bohemian Rhapsody", ("play_music", {"query": "Bohemian Rhapsody"})),
    ("Look up order 77-AB", ("get_order", {"order_id": "77-AB"})),
    ("stock price of MSFT please", ("get_stock_price", {"ticker": "MSFT"})),
    ("set the light in the kitchen to on", ("set_light", {"room": "kitchen", "state": "on"})),
    ("What is 12 squared?", ("calculator", {"expression": "12 ** 2"})),
    (
        "Book a flight from Paris to Rome on 2026-05-01",
        ("book_flight", {"origin": "Paris", "destination": "Rome", "date": "2026-05-01"}),
    ),
    ("计算 100 除以 4", ("calculator", {"expression": "100 / 4"})),
    ("What's the meaning of life?", None),
    ("Who is the president?", None),
    ("I like the weather in Spain", None),
    ("Are you a robot?", None),
    ("今天星期几？", None),
    ("Write a letter to my grandmother", None),
    ("The server is down", None),
    ("Explain how email works", None),
    ("帮我订一张电影票", None),
    ("列出目录 /home 的文件", ("list_directory", {"path": "/home"})),
    ('count words in "hello big world"', ("count_words", {"text": "hello big world"})),
]


async def calls_for(question: str, tools: Sequence[Schema] = TOOLS) -> list[tuple[str, dict[str, Any]]]:
    model = OfflineModel()
    reply = await model.generate(ModelRequest(messages=[user_message(question)], tools=tools))
    assert bool(reply.text) != bool(reply.tool_calls)
    return [(call.name, call.arguments) for call in reply.tool_calls]


async def test_a_question_makes_the_right_calls_and_no_others():
    wrong = {}
    for question, expected in QUESTIONS:
        calls = await calls_for(question)
        if calls != (expected if isinstance(expected, list) else [expected] if expected else []):
            wrong[question] = calls
    assert wrong == {}


async def test_words_are_no_selector_and_a_browser_is_no_search():
    click = function("browser__click", "Click an element of the web page.", "selector", selector=text("which element"))
    for question in ("搜索一下附近的餐厅", "搜索 Python 最新版本", "search for restaurants nearby"):
        assert await calls_for(question, [click]) == []
