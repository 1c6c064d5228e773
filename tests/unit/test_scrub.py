"""No secret leaves, in whatever form it stands."""

from __future__ import annotations

import io
import json
import logging
from urllib.parse import quote, quote_plus

import pytest

from sidecar.settings.scrub import Secrets, in_url

PASSWORD = "p@ss:w/rd#1%2F?&=+ é'\"\\"


@pytest.mark.parametrize(
    "shown",
    [
        PASSWORD,
        quote(PASSWORD),
        quote(PASSWORD, safe=""),
        quote_plus(PASSWORD),
        repr(PASSWORD),
        json.dumps(PASSWORD),
        "ss:w/rd#1%2F?&=+ é'\"\\",
        "w/rd#1%2F?&=+ é'\"\\",
        "1%2F?&=+ é'\"\\",
    ],
)
def test_a_password_is_masked_whole_encoded_and_torn(shown: str) -> None:
    text = Secrets([PASSWORD]).scrub(f"could not connect to {shown} here")
    for part in ("ss:w", "rd#1", "%2F", "%23", "w%2Frd"):
        assert part not in text
    assert text.startswith("could not connect to ")
    assert text.endswith(" here")


def test_a_short_secret_is_masked_as_a_word_only() -> None:
    assert Secrets(["in"]).scrub("login in: in") == "login ***: ***"


def test_nothing_is_masked_where_nothing_is_secret() -> None:
    assert Secrets([""]).scrub("as it is") == "as it is"


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("postgresql://u:geheim@h/d", "geheim"),
        ("postgresql://u:ge@he:im@h/d", "ge@he:im"),
        ("postgresql://u@h/d?password=geheim&x=1", "geheim"),
        ("postgresql://u:geheim@h/d?application_name=a@b", "geheim"),
    ],
)
def test_a_url_gives_away_its_password_to_the_scrubber(url: str, password: str) -> None:
    assert password in list(in_url(url))
    assert password not in Secrets(in_url(url)).scrub(url)


def test_a_url_without_a_password_has_no_secret() -> None:
    assert list(in_url("postgresql://u@h/d")) == []
    assert list(in_url("sqlite:///a:b.db")) == []


def test_log_lines_and_their_tracebacks_are_masked() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(Secrets(["hunter2x"]))
    logger = logging.getLogger("test-scrub")
    logger.propagate = False
    logger.addHandler(handler)
    try:
        raise ValueError("no entry for hunter2x")
    except ValueError:
        logger.exception("failed with %s", "hunter2x")
    finally:
        logger.removeHandler(handler)
    assert "hunter2x" not in stream.getvalue()
    assert stream.getvalue().startswith("failed with ***")
    assert "Traceback" in stream.getvalue()
