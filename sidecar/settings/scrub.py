"""Secrets stay inside: every known one is replaced before a text leaves the process."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl, quote, quote_plus, unquote

MASK = "***"
SHORT = 4

_DIVIDERS = "@:/#?"
_SECRET_PARAMETERS = ("password", "sslpassword")


class Secrets(logging.Filter):
    """The secrets of one run; also a logging filter, so that no log line shows one."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        super().__init__()
        self._forms: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.update(values)

    def update(self, values: Iterable[str]) -> None:
        """Know *values* as secrets from now on."""
        for value in values:
            self._forms.update(_forms(value))
        self._compile()

    def absorb(self, other: Secrets) -> None:
        """Know what *other* knows, too."""
        self._forms |= other._forms
        self._compile()

    def _compile(self) -> None:
        # The longest first: a secret may begin with another one.
        patterns = [_exactly(form) for form in sorted(self._forms, key=len, reverse=True)]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def scrub(self, text: str) -> str:
        """Return *text* with every known secret masked: plain, percent-encoded, quoted, or torn at a `@ : / # ?`."""
        return self._pattern.sub(MASK, text) if self._pattern else text

    def filter(self, record: logging.LogRecord) -> bool:
        """Let *record* through, scrubbed; a traceback in it as well."""
        record.msg, record.args = self.scrub(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self.scrub(record.exc_text)
        return True


def in_url(url: str) -> Iterator[str]:
    """Yield what may be a password in *url*, wherever its reader may think that the password ends."""
    _, _, rest = url.partition("://")
    for at in (i for i, letter in enumerate(rest) if letter == "@"):
        _, colon, password = rest[:at].partition(":")
        if colon and password:
            yield password
    query = rest.partition("?")[2]
    yield from (value for name, value in parse_qsl(query) if name.lower() in _SECRET_PARAMETERS)


def _forms(secret: str) -> Iterator[str]:
    for plain in {secret, unquote(secret)} - {""}:
        for part in (plain, *_torn(plain)):
            yield from (part, quote(part, safe=""), quote(part), quote_plus(part))
            yield from (repr(part)[1:-1], json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1])


def _torn(secret: str) -> Iterator[str]:
    # A URL that is split at the wrong place names a piece of the password as its host or port.
    for i, letter in enumerate(secret):
        if letter in _DIVIDERS:
            yield from (part for part in (secret[:i], secret[i + 1 :]) if len(part) >= SHORT)


def _exactly(form: str) -> str:
    # A password of two letters would mask half of every message, were it not looked for as a word.
    return re.escape(form) if len(form) >= SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
