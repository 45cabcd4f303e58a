"""Secrets go, everything else stays, and what was JSON is JSON afterwards."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.core.secrets import Redaction
from ferrule.store.escapes import to_storable_text

redaction = Redaction()

FRAGMENTS = st.sampled_from(
    ["password", "apiKey", "x-api-key", "token", "max_tokens", "Bearer ", "Basic ", "://", "@", "=", "?key=", "&sig="]
    + ['"', "'", ": ", "\\", "{", "}", "[", "]", "Cookie: ", "a", "B", " ", "1", "密码", "é", "_", "-", ".", "auth"]
    + ["pass", "Pass", "word", "otp", "\n", "\t", "<", ">", "</", "--", "name", "value", "tokens", "private key-----"]
)
TEXTS = st.one_of(st.text(max_size=12), st.lists(FRAGMENTS, max_size=10).map("".join))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


SECRET_NAMES = """
    token accessToken X-Auth-Token PASSWORD db_passwd client_secret Authorization api_key apiKey X-API-Key cookies
    Set-Cookie credentials privateKey aws_access_key_id sessionId bearer auth basicAuth jwt session_tokens
    refresh_tokens 数据库密码 passWord userPassWord passPhrase passCode passWd pass_phrase APIkey pass db_pass
    smtpPass DB_PASS userpwd authkey authKey ssh_key signing_key encryptionKey otp oauth new_tokens generated_tokens
""".split()
HARMLESS_NAMES = """
    max_tokens token_count total_tokens maxTokens prompt_tokens max_new_tokens n_tokens tokens_per_second tokenizer
    author authority secretary key keyboard monkey compass pass_rate passThrough passed kMaxTokens footpath
    public_key_url
""".split()


def test_a_name_that_says_so_makes_its_value_secret():
    shown = [name for name in SECRET_NAMES if redaction.redact({"a": [{name: "x1"}]}) != {"a": [{name: "[redacted]"}]}]
    assert shown == []


def test_a_name_that_only_sounds_like_it_does_not():
    assert redaction.redact(dict.fromkeys(HARMLESS_NAMES, "hunter2")) == dict.fromkeys(HARMLESS_NAMES, "hunter2")


@pytest.mark.parametrize("value", [None, True, False, ""])
def test_nothing_and_yes_and_no_are_not_secrets(value):
    assert redaction.redact({"password": value}) == {"password": value}


def test_tokens_that_are_numbers_are_counts():
    assert redaction.redact({"tokens": 12, "token": 12}) == {"tokens": 12, "token": "[redacted]"}


def test_numbers_of_tokens_and_of_passes_are_counts():
    counts = {"pass": 5, "fail": 1, "input_tokens": 12, "new_tokens": [1, 2]}
    assert redaction.redact(counts) == counts
    text = "pass=5? no: input_tokens=12, new_tokens: 3, all tests pass: 5"
    assert redaction.redact_text(text) == text.replace("pass=5?", "pass=[redacted]")


def test_a_name_may_stand_beside_its_value():
    assert redaction.redact({"name": "X-Api-Key", "value": "x"}) == {"name": "X-Api-Key", "value": "[redacted]"}
    assert redaction.redact({"Key": "db_password", "Value": "x"}) == {"Key": "db_password", "Value": "[redacted]"}
    assert redaction.redact([["X-Api-Key", "x"], ("a", "b")]) == [["X-Api-Key", "[redacted]"], ["a", "b"]]
    assert redaction.redact(["psql", "--password", "x", "db"]) == ["psql", "--password", "[redacted]", "db"]
    others = [{"name": "colour", "value": "x"}, {"required": ["password", "email"]}, ["--no-auth", "--verbose"]]
    assert redaction.redact(others) == others


def test_secrets_beside_their_names_are_removed_wherever_else_they_appear():
    params = {"env": [{"name": "TOKEN", "value": "aaaaaaaa"}], "headers": [["X-Api-Key", "bbbbbbbb"]]}
    params["argv"] = ["--password", "cccccccc"]
    assert set(redaction.find_secrets(params, frozenset())) == {"aaaaaaaa", "bbbbbbbb", "cccccccc"}


def test_a_secret_with_members_goes_as_a_whole():
    assert redaction.redact({"credentials": {"user": "bob", "pin": 1}}) == {"credentials": "[redacted]"}


SECRETS_IN_TEXTS = [
    ("Authorization: Bearer abc.def-1\nHost: x", "Authorization: [redacted]\nHost: x"),
    ("send Bearer xyz along", "send Bearer [redacted] along"),
    ("send Basic Bearer xyz along", "send Basic Bearer [redacted] along"),
    ("Basic dXNlcjpwYXNz", "Basic [redacted]"),
    ("Basic usage of Bearers", "Basic usage of Bearers"),
    ("postgresql://bob:p@ss@host/db", "postgresql://bob:[redacted]@host/db"),
    ("https://ghp_abc@github.com/x", "https://[redacted]@github.com/x"),
    ("ssh://git@github.com/x", "ssh://git@github.com/x"),
    ("https://h/?a=1&api_key=abc&key=x&b=2", "https://h/?a=1&api_key=[redacted]&key=[redacted]&b=2"),
    ("next=https://h/?access_token=abc&b=2", "next=https://h/?access_token=[redacted]&b=2"),
    ("PGPASSWORD='a b' psql", "PGPASSWORD=[redacted] psql"),
    ("curl -H 'X-Api-Key: abc' h", "curl -H 'X-Api-Key: [redacted]' h"),
    ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----.", "[redacted]."),
    ("KeyError: {'password': 'a\"b', 'n': 1}", "KeyError: {'password': '[redacted]', 'n': 1}"),
    ("PRIVATE-TOKEN: abc\nHost: x", "PRIVATE-TOKEN: [redacted]\nHost: x"),
    ("X-Access-Token:abc", "X-Access-Token:[redacted]"),
    ("Api-Key: abc", "Api-Key: [redacted]"),
    ("password: abc", "password: [redacted]"),
    ("password = abc", "password = [redacted]"),
    ('token = "a b" # mine', "token = [redacted] # mine"),
    ('password=\\"a b\\", n=1', "password=[redacted], n=1"),
    ("{password:'abc'}", "{password:[redacted]}"),
    ("tokens: ['abc', 'def'] and", "tokens: [redacted] and"),
    ("- pass: abc", "- pass: [redacted]"),
    ("mysql --password abc -u bob", "mysql --password [redacted] -u bob"),
    ("ran ['mysql', '--password', 'a b', 'db']", "ran ['mysql', '--password', '[redacted]', 'db']"),
    ("{'name': 'X-Api-Key', 'value': 'abc'", "{'name': 'X-Api-Key', 'value': '[redacted]'"),
    ("[('Token', 'abc'), ('a', 'b')", "[('Token', '[redacted]'), ('a', 'b')"),
    ("<password>a b</password><n>1</n>", "<password>[redacted]</password><n>1</n>"),
    ("<w:Token t='x'><![CDATA[abc]]></w:Token>", "<w:Token t='x'>[redacted]</w:Token>"),
    ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nabc\n-----END PGP PRIVATE KEY BLOCK-----.", "[redacted]."),
    ("---- BEGIN SSH2 PRIVATE KEY ----\nabc\n---- END SSH2 PRIVATE KEY ----.", "[redacted]."),
    ("the password: must have 8 letters", "the password: [redacted] have 8 letters"),
]


def test_a_secret_inside_a_text_goes_and_the_text_stays():
    results = [(text, redaction.redact_text(text)) for text, _ in SECRETS_IN_TEXTS]
    assert results == SECRETS_IN_TEXTS


HARMLESS_TEXTS = [
    "please pass: the salt",
    "all tests pass: 12 of 12",
    "for x in y:\n    pass\n",
    "if password == other: ...",
    "def f(password: str, token: str | None = None): ...",
    "Unexpected token: }",
    "http://auth:8080/x",
    "List<Token> x",
    "password: null, has_password=true",
    "cmd --no-auth --verbose",
    "-----BEGIN PUBLIC KEY-----\nabc",
]


def test_prose_and_code_that_only_speak_of_secrets_stay():
    assert [redaction.redact_text(text) for text in HARMLESS_TEXTS] == HARMLESS_TEXTS


def test_json_inside_a_string_is_read_and_stays_json():
    inner = json.dumps({"token": "abc", "body": json.dumps({"password": "x", "n": 2**80})})
    cleaned = redaction.redact({"reply": inner})
    assert json.loads(cleaned["reply"]) == {
        "token": "[redacted]",
        "body": f'{{"password": "[redacted]", "n": {2**80}}}',
    }


def test_json_that_was_cut_off_loses_its_secrets_too():
    assert redaction.redact_text('{"password": "hunter2", "page": "lon') == '{"password": "[redacted]", "page": "lon'
    assert redaction.redact_text('{"a": 1, "password": "hunt') == '{"a": 1, "password": "[redacted]"'
    assert redaction.redact_text(r'say "{\"token\": \"abc\"}" and st') == r'say "{\"token\": \"[redacted]\"}" and st'


def test_declared_secrets_are_removed_wherever_else_they_appear():
    params = {"pin": "s3/cr ét", "note": "my pin is s3/cr ét", "n": 1234}
    secrets = redaction.find_secrets(params, frozenset({"pin"}))
    assert redaction.redact_params(params, frozenset({"pin"}), secrets) == {
        "pin": "[redacted]",
        "note": "my pin is [redacted]",
        "n": 1234,
    }
    values = ["echo s3/cr ét", {"s3/cr ét": 1}, "?q=s3%2Fcr%20%C3%A9t", '{"said": "s3/cr \\u00e9t"}']
    cleaned = ["echo [redacted]", {"[redacted]": 1}, "?q=[redacted]", '{"said": "[redacted]"}']
    assert redaction.redact(values, secrets) == cleaned


def test_a_declared_number_is_removed_as_number_and_as_text():
    secrets = redaction.find_secrets({"pin": 123456}, frozenset({"pin"}))
    assert redaction.redact([123456, "pin 123456!", '{"pin": 123456}', 12], secrets) == [
        "[redacted]",
        "pin [redacted]!",
        '{"pin": "[redacted]"}',
        12,
    ]


def test_short_values_are_removed_only_where_they_stand():
    assert redaction.find_secrets({"pin": "abc", "session": "main"}, frozenset({"pin"})) == ()


def test_of_a_call_with_very_many_secrets_nothing_is_recorded():
    params = {"body": {"token": [f"secret-{n}" for n in range(20_000)], "x": ["other"] * 20_000}, "n": 1}
    secrets = redaction.find_secrets(params, frozenset())
    assert 100 < len(secrets) < 1000  # there is no end to searching every text for every secret
    assert redaction.redact_params(params, frozenset(), secrets) == {"[redacted]": "[redacted]"}
    assert redaction.redact_text("secret-19999 is wrong", secrets) == "[redacted]"
    assert redaction.redact(None, secrets) is None
    assert (redaction.redact(True, secrets), redaction.redact("", secrets)) == (True, "")


def test_names_that_become_the_same_are_told_apart():
    cleaned = redaction.redact({f"?token={n}": None for n in range(5000)})
    assert len(cleaned) == 5000
    assert list(cleaned)[:2] == ["?token=[redacted]", "?token=[redacted] 2"]


def test_secrets_that_contain_themselves_are_collected_once():
    endless: list[Any] = ["hunter2-hunter2"]
    endless += [endless, endless]
    assert redaction.find_secrets({"password": endless, "a": [endless]}, frozenset()) == ("hunter2-hunter2",)
    assert redaction.find_secrets({"pin": endless}, frozenset({"pin"})) == ("hunter2-hunter2",)


def test_a_rule_of_ones_own():
    own = Redaction(names=["iban", "card_number", "value"], replacement="***")
    value = {
        "iban": "DE1",
        "value": 5,
        "my-iban": "DE2",
        "caribana": "x",
        "cardNumber": "4",
        "password": "p",
        "h": "Bearer abc",
    }
    assert own.redact(value) == {
        "iban": "***",
        "value": "***",
        "my-iban": "***",
        "caribana": "x",
        "cardNumber": "***",
        "password": "p",
        "h": "Bearer ***",
    }


def test_values_json_cannot_say_are_replaced():
    class Odd:
        def __str__(self) -> str:
            return "odd"

    value = ["a\0b", "half \ud800", float("nan"), float("inf"), 10**5000, {1: Odd()}, (1, 2), {3}]
    cleaned = ["a\0b", "half \ud800", None, None, hex(10**5000), {"1": "odd"}, [1, 2], [3]]
    assert redaction.redact(value) == cleaned


def test_what_contains_itself_ends_somewhere():
    endless: list[Any] = [1]
    endless += [endless, endless]
    assert redaction.redact(endless) == [1, "[nested too deep]", "[nested too deep]"]


REPEATED_PIECES = [
    *("A", '"', "token=", "://", "bearer ", '"token": "', "-----BEGIN PRIVATE KEY-----", "\\", "{", "[", " ", "x@"),
    *("&key=", "token: '", "token=[", "<token>", "<token ", "--token ", "--token', '", "[['token', '"),
    *("'name': 'token', 'value': '", "n_"),
]


@pytest.mark.parametrize("piece", REPEATED_PIECES)
def test_no_text_takes_for_ever(piece):
    text = piece * (100_000 // len(piece)) + " password=x"
    redaction.redact([text, {text: 1}])


@given(VALUES)
def test_the_screen_sees_everything_the_walk_would_change(value):
    encoded = json.dumps(value, ensure_ascii=False)
    if redaction.redact(value) != value:
        assert redaction.may_contain_secret(to_storable_text(encoded)) or not _plain(value)


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
def test_json_text_becomes_the_text_of_what_the_json_becomes(value):
    text = json.dumps(value, ensure_ascii=False)
    assert json.loads(redaction.redact_text(text)) == redaction.redact(value)


@given(
    secret=st.text(min_size=4, max_size=20).map(lambda text: f"S3{text}"),
    before=TEXTS,
    after=TEXTS,
    name=st.sampled_from(["note", "password", "pin"]),
)
def test_a_declared_secret_is_nowhere_afterwards(secret, before, after, name):
    params = {"pin": secret, name: secret, "note": before + secret + after}
    secrets = redaction.find_secrets(params, frozenset({"pin"}))
    values = [params["note"], {before + secret: after}, json.dumps({"x": [secret, after]}), [[secret]]]
    text = json.dumps([redaction.redact_params(params, frozenset({"pin"}), secrets), redaction.redact(values, secrets)])
    assert to_storable_text(secret) not in str(json.loads(text))
    assert json.dumps(to_storable_text(secret))[1:-1] not in text


def _plain(value: Any) -> bool:
    """Whether the fast way can encode it at all: halves of characters always take the slow one."""
    return to_storable_text(json.dumps(value, ensure_ascii=False)) == json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-abcdefghijklmnopqrstuvwx",
        "ghp_abcdefghijklmnopqrstuvwxyz0123",
        "xoxb-123456789012-abcdef",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc-DEF_123",
    ],
)
def test_a_key_is_known_by_its_shape_wherever_it_stands(key):
    redaction = Redaction()
    assert redaction.may_contain_secret(f"the key is {key}, keep it")
    assert redaction.redact_text(f"the key is {key}, keep it") == "the key is [redacted], keep it"
    assert redaction.redact_text("task-list-for-the-next-quarter-of-2026") == "task-list-for-the-next-quarter-of-2026"


def test_images_stay_as_they_are_and_a_secret_of_the_call_is_still_removed_from_one():
    image = "data:image/png;base64," + "passwordAAAA+token/" * 3 + "="
    assert redaction.redact({"image_url": {"url": image}}) == {"image_url": {"url": image}}
    assert "hunter2hunter2" not in redaction.redact_text(image + "hunter2hunter2", ("hunter2hunter2",))
    assert "hunter2" not in redaction.redact_text(f"{image} password=hunter2")
