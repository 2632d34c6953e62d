"""`asyncio_operator.services.secrets`: what is secret is hidden in every form, and nothing else is."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import hypothesis
import pytest
from hypothesis import strategies as st

from asyncio_operator.services.secrets import Secrets, _pattern, of_header, of_named, of_url

WRITTEN: list[Callable[[str], str]] = [
    str,
    lambda text: quote(text, safe=""),
    lambda text: quote(text, safe="").lower(),
    lambda text: quote(quote(text, safe=""), safe=""),
    quote,
    quote_plus,
    json.dumps,
    lambda text: json.dumps(text, ensure_ascii=False),
    lambda text: json.dumps(text).replace("/", "\\/"),
    lambda text: json.dumps(json.dumps(text)),
    repr,
    html.escape,
    lambda text: "".join(f"&#{ord(character)};" if not character.isalnum() else character for character in text),
    lambda text: " ".join(text.split()),
    str.upper,
]

TEXTS = st.text(st.characters(max_codepoint=126, min_codepoint=32) | st.sampled_from('\\"%+ü€😀'), max_size=12)


@hypothesis.given(TEXTS, st.sampled_from(WRITTEN))
def test_X5_a_secret_is_found_in_every_form(text: str, write: Callable[[str], str]) -> None:
    secret = f"begin{text}ended"
    hidden = Secrets([secret]).hide(f"you sent {write(secret)}, didn't you?").lower()
    assert "begin" not in hidden
    assert "ended" not in hidden


@hypothesis.given(TEXTS.filter(bool), st.sampled_from(WRITTEN), TEXTS, TEXTS)
def test_X5_a_look_at_its_letters_first_misses_no_secret(
    secret: str, write: Callable[[str], str], before: str, after: str
) -> None:
    text = f"{before} {write(secret)} {after}"
    if _pattern(secret).sub("", text) != text:
        assert Secrets([secret]).hide(text) != text


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", ["\\", " +", '"', "%25", '\\"', "\\\\ ", "&amp;", "\\é"])
def test_X5_hiding_ends_whatever_the_service_says(unit: str) -> None:
    secret = unit * 200
    for nearly in (secret[:-1], "\\" * 4000, json.dumps(secret), json.dumps(json.dumps(secret)), quote(quote(secret))):
        Secrets([f"begin{secret}end"]).hide(f"begin{nearly}, end")


def test_X5_numbers_and_separators_without_a_telltale_name_stay_readable() -> None:
    secrets = Secrets([*of_named("page", "12"), *of_named("key", "-"), *of_named("page", "2024"), *of_header("X", " ")])
    assert secrets.hide("page 12 - of 2024") == "page 12 - of 2024"


def test_X5_short_secrets_are_hidden_as_words_and_long_ones_inside_of_words_too() -> None:
    assert Secrets(["pin"]).hide("the pin: spinning") == "the ***: spinning"
    assert Secrets(["hunter2hunter2"]).hide("XHunter2hunter2X") == "X***X"


def test_X5_a_secret_that_equals_a_public_text_is_not_told_by_hiding_it() -> None:
    secrets = Secrets(["postgres", "Shop"], public=["postgres", "shop"])
    assert secrets.hide("user postgres, database shop: Shop") == "user postgres, database shop: ***"


@pytest.mark.parametrize(
    ("url", "text", "hidden"),
    [
        ("x://bob:p%40ss@h:5/shop", "bob p@ss p%40ss h:5/shop", "bob *** *** h:5/shop"),
        ("x://h/shop?user=bob&pasword=hun+ter", "bob hun+ter 'hun ter' shop", "bob *** '***' shop"),
        ("x://h/shop?size=12&token=12345&lang=en", "12 12345 en", "12 *** ***"),
        ("x://bob@h/shop", "x://bob@h/shop bob shop", "*** bob shop"),
        ("", "anything", "anything"),
    ],
)
def test_X5_of_a_url_the_password_and_the_options_that_are_not_public_are_secret(
    url: str, text: str, hidden: str
) -> None:
    assert of_url(url, frozenset({"user"})).hide(text) == hidden


def test_tokens_that_expired_long_ago_are_forgotten_and_nothing_else_is() -> None:
    secrets = Secrets(["lasting"])
    for number in range(1000):
        secrets.renew([f"token-{number:04}-of-many"])
        secrets.renew([f"token-{number:04}-of-many"])
    assert secrets.hide("lasting token-0999-of-many token-0998-of-many") == "*** *** ***"
    assert secrets.hide("token-0500-of-many") == "token-0500-of-many"


def test_a_text_in_a_message_is_one_printable_line_cut_behind_what_is_hidden() -> None:
    secrets = Secrets(["hunter2"])
    assert secrets.line("two\n lines\t\x1b[31m hunter2 \ud800", 100) == "two lines ?[31m *** ?"
    assert secrets.line("x" * 9 + " hunter2 " + "y" * 50, 15) == "x" * 9 + " **..."
    assert secrets.show(["hunter2", 5]) == "['***', 5]"


def test_X5_an_error_tells_what_a_traceback_of_it_would_show() -> None:
    def error_with(**attributes: object) -> Exception:
        error = ValueError("harmless")
        for name, value in attributes.items():
            setattr(error, name, value)
        return error

    secret = KeyError("hunter2")
    noted = ValueError("harmless")
    noted.add_note("it was hunter2")
    told = [
        secret,
        noted,
        error_with(__cause__=secret),
        error_with(__context__=error_with(__cause__=secret)),
        ExceptionGroup("harmless", [ValueError("x"), secret]),
        UnprintableError(),
    ]
    for error in told:
        assert Secrets(["hunter2"]).shown_by(error), repr(error.args)
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    for harmless in (None, ValueError("harmless"), error_with(__cause__=KeyError("other")), first):
        assert not Secrets(["hunter2"]).shown_by(harmless)


class UnprintableError(Exception):
    """No list of names knows what it says."""

    def __str__(self) -> str:
        raise RuntimeError("no words")
