"""Thirty tools as people write them, for the offline model to choose from."""

from typing import Any

from ferrule.core.messages import Schema


def function(name: str, description: str, required: str = "", **parameters: Any) -> Schema:
    """A function schema; parameters are types, or schemas."""
    properties = {n: p if isinstance(p, dict) else {"type": p} for n, p in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": required.split()}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def text(description: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


TOOLS = [
    function(
        "calculator",
        "Computes an arithmetic expression. Knows + - * / // % **, brackets, percent and functions such as sqrt.",
        "expression",
        expression=text('The expression, such as "2 * (3 + 4)".'),
    ),
    function(
        "get_weather",
        "Get the current weather of a city.",
        "city",
        city=text("The name of the city"),
        unit=text(enum=["celsius", "fahrenheit"]),
    ),
    function("get_time", "Tell the current time in a time zone.", "timezone", timezone=text("IANA time zone")),
    function(
        "convert_time",
        "Convert a time from one time zone to another.",
        "time from_timezone to_timezone",
        time=text("Time as HH:MM"),
        from_timezone=text("Source time zone"),
        to_timezone=text("Target time zone"),
    ),
    function(
        "translate",
        "Translate a text into another language.",
        "text target_language",
        text="string",
        target_language=text("ISO code such as 'fr'"),
    ),
    function("web_search", "Search the web.", "query", query="string", limit=text(type="integer")),
    function(
        "send_email",
        "Send an email to somebody.",
        "to subject body",
        to=text(format="email"),
        subject="string",
        body="string",
        cc=text(format="email"),
    ),
    function("read_file", "Read the contents of a text file.", "path", path="string"),
    function("delete_file", "Delete a file from disk.", "path", path="string"),
    function("list_directory", "List the files of a directory.", "path", path="string", recursive="boolean"),
    function(
        "convert_currency",
        "Convert an amount of money from one currency to another.",
        "amount from_currency to_currency",
        amount="number",
        from_currency="string",
        to_currency="string",
    ),
    function(
        "create_reminder",
        "Create a reminder.",
        "text time",
        text="string",
        time=text(format="date-time"),
    ),
    function(
        "create_event",
        "Add an event to the calendar.",
        "title date",
        title="string",
        date=text(format="date"),
        start=text("Start time, HH:MM"),
    ),
    function("fetch_page", "Download a web page and return its text.", "url", url=text(format="uri")),
    function("random_number", "Pick a random number.", "minimum maximum", minimum="integer", maximum="integer"),
    function(
        "roll_dice", "Roll dice.", "", sides=text(type="integer", default=6), count=text(type="integer", default=1)
    ),
    function(
        "average",
        "The average of a list of numbers.",
        "numbers",
        numbers={"type": "array", "items": {"type": "number"}},
    ),
    function(
        "set_light",
        "Switch a lamp in the house on or off.",
        "room state",
        room=text(enum=["kitchen", "bedroom", "living_room"]),
        state=text(enum=["on", "off"]),
    ),
    function("play_music", "Play a song or an artist.", "query", query=text("Song or artist")),
    function(
        "book_flight",
        "Book a flight.",
        "origin destination date",
        origin="string",
        destination="string",
        date=text(format="date"),
    ),
    function("get_order", "Look up the status of an order.", "order_id", order_id="string"),
    function("get_stock_price", "Get the current price of a stock.", "ticker", ticker=text(pattern="^[A-Z]{1,5}$")),
    function("define_word", "Look up the definition of a word in the dictionary.", "word", word="string"),
    function(
        "create_ticket",
        "Open a support ticket.",
        "title priority",
        title="string",
        priority=text(enum=["low", "medium", "high"]),
    ),
    function("run_query", "Run a SQL query on the database.", "sql", sql=text("The SQL statement")),
    function("ping", "Check whether a host answers.", "host", host=text("Host name", pattern=r"^[\w-]+(\.[\w-]+)+$")),
    function(
        "query_train",
        "查询两个城市之间的火车票。",
        "from_city to_city",
        from_city=text("出发城市"),
        to_city=text("到达城市"),
    ),
    function("count_words", "Count the words of a text.", "text", text="string"),
    function(
        "resize_image", "Resize an image file.", "path width height", path="string", width="integer", height="integer"
    ),
    function("shutdown_server", "Shut down a server at once.", "server", server=text("Name of the server")),
    function("finish_task", "End the task with an answer.", "answer", answer="string"),
]
