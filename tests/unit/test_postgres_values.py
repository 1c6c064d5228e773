"""Values as PostgreSQL's literals, table names, and what URLs must never give away; without a server."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors import postgres_catalog as catalog
from connectors import postgres_literals as literals
from connectors import postgres_types as types
from connectors import postgres_values as values_
from connectors.postgres import PostgresConnector
from connectors.postgres_horizon import _by_number, _kept, _settled, horizon
from connectors.postgres_view import Running, Server, View, _end
from sidecar import cursor
from sidecar.connector import Source
from sidecar.errors import SettingsError
from sidecar.model import INFINITY, Hold

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANT, READING, DATE = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()


@given(st.datetimes())
def test_an_instant_is_written_to_the_microsecond(moment: datetime) -> None:
    micros = (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    assert literals.literal(INSTANT, micros) == f"'{moment.isoformat(' ', 'microseconds')}+00'::timestamptz"
    assert literals.literal(READING, micros) == f"'{moment.isoformat(' ', 'microseconds')}'::timestamp"


@given(st.dates())
def test_a_date_is_written_alike_from_days_and_from_its_cursor_value(day: date) -> None:
    days = (day - date(1970, 1, 1)).days
    ordinal = int(cursor.comparable(pa.array([day]))[0])
    assert literals.literal(DATE, days) == literals.literal(DATE, ordinal) == f"'{day.isoformat()}'::date"


@given(st.dates(), st.integers(-86_400_000_001, 86_400_000_001))
def test_a_bound_on_dates_is_the_last_day_that_is_over(day: date, apart: int) -> None:
    own = int(cursor.comparable(pa.array([day]))[0])
    bound = own + apart
    last = literals.last_day_over(bound)
    assert last <= bound < last + literals.DAY
    assert (own > bound) == (own > last)


def test_times_before_christ_and_after_9999_are_written_as_the_server_reads_them() -> None:
    assert literals.literal(INSTANT, -62_135_596_800_000_001) == "'0001-12-31 23:59:59.999999+00 BC'::timestamptz"
    assert literals.literal(READING, 253_402_300_800_000_000) == "'10000-01-01 00:00:00.000000'::timestamp"
    assert literals.literal(INSTANT, INFINITY) == "'infinity'::timestamptz"
    assert literals.literal(INSTANT, literals.MINUS_INFINITY) == "'-infinity'::timestamptz"


def test_the_least_integer_stays_an_integer() -> None:
    assert literals.literal(pa.int64(), -(2**63)) == "'-9223372036854775808'::int8"


@pytest.mark.parametrize("text", ["o'clock", "back\\slash", "both'\\", "", "100%", "größe"])
def test_a_text_cannot_leave_its_literal(text: str) -> None:
    literal = literals.literal(pa.string(), text).strip()
    body = literal.removeprefix("E")[1:-1]
    assert (body.replace("\\\\", "\\") if literal.startswith("E") else body).replace("''", "'") == text


@given(st.lists(st.one_of(st.none(), st.binary(max_size=9))), st.integers(0, 3))
def test_hex_is_decoded_as_it_was_encoded(values: list[bytes | None], skipped: int) -> None:
    digits = pa.array([None if v is None else v.hex() for v in values], pa.string()).slice(skipped)
    wire = types.Wire("b", "b", pa.binary(), pa.string())
    assert values_.final(digits, wire)[0].to_pylist() == values[skipped:]


names = st.text(st.sampled_from('ab."% é'), min_size=1, max_size=6)


@given(names, names)
def test_a_table_s_identity_is_read_back_as_its_parts(schema: str, name: str) -> None:
    assert catalog.parts(catalog.identity(schema, name)) == (schema, name)
    assert catalog.parts(catalog.identity("public", name)) == (name,)


@pytest.mark.parametrize(
    "known",
    [("public", "orders", "orders"), ("sales", "Orders", "sales.Orders"), ("public", "a.b", '"a.b"')],
)
def test_identities_are_bare_where_nothing_could_be_mistaken(known: tuple[str, str, str]) -> None:
    assert catalog.identity(known[0], known[1]) == known[2]


@pytest.mark.parametrize("name", ["", ".", "a..b", "a.", '"a', 'a"b', '"a"b'])
def test_what_is_no_name_has_no_parts(name: str) -> None:
    assert catalog.parts(name) == ()


SECRETS = ["Sesame@Street", "Sesame/Street", "Sesame#Street", "Sesame?Street", "Sesame%zzStreet", "Se:same@Stre/et"]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_url_that_would_be_split_elsewhere_is_refused_without_its_pieces(secret: str) -> None:
    url = f"postgresql://reader:{secret}@127.0.0.1:1/shop"
    try:
        PostgresConnector(Source(url)).tables()
    except Exception as error:
        shown = f"{error!r} {error} {error.__cause__!r}"
        assert not any(piece in shown for piece in ("Sesame", "same", "Street", "Stre"))
    else:
        raise AssertionError("there is no server at port 1")
    assert secret not in repr(Source(url))


def test_a_password_of_a_source_never_stands_in_its_repr() -> None:
    assert "hidden" not in repr(Source("postgresql://h/db", user="u", password="hidden"))


def test_an_unknown_parameter_is_a_setting_to_mend() -> None:
    with pytest.raises(SettingsError, match='knows no parameter "sslmod"'):
        PostgresConnector(Source("postgresql://h/db?sslmod=require"))
    for url in ("postgresql://u:pa/ss?sswd=x@h/db", "postgresql://u:x@h/db?pass=w@rd"):
        with pytest.raises(SettingsError, match="not a PostgreSQL URL") as refused:
            PostgresConnector(Source(url))
        assert "pass" not in str(refused.value).replace("password", "")
        assert "sswd" not in str(refused.value).replace("password", "")


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=200))
def test_a_thinned_history_never_claims_more_than_a_full_one(steps: list[tuple[int, int, int]]) -> None:
    kept: list[tuple[int, int]] = []
    full: list[tuple[int, int]] = []
    now = xmin = following = 0
    for seconds, begun, ended in steps:
        now, following = now + seconds, following + begun
        xmin = min(following, xmin + ended)
        view = View(xmin, xmin, following, now, now)
        told, true = _by_number(kept, view), _by_number(full, view)
        assert told is None or (true is not None and told <= true)
        kept, full = _kept(kept, view), [*full, (now, following)]
        assert len(kept) <= 64


def test_a_history_of_no_more_than_it_may_keep_answers_exactly() -> None:
    kept: list[tuple[int, int]] = []
    for n in range(20):
        kept = _kept(kept, View(5, 5, 10 + n, 1_000 + n, 1_000 + n))
    assert _by_number(kept, View(21, 21, 40, 2_000, 2_000)) == 1_011
    assert _by_number(kept, View(9, 9, 40, 2_000, 2_000)) is None


def test_comparable_integers_are_those_of_the_core() -> None:
    values = pa.array([date(2024, 5, 1), date(1969, 12, 31), None])
    ours = literals.ordinals(values)
    assert np.array_equal(cursor.comparable(values)[:2], ours.to_numpy(zero_copy_only=False)[:2].astype(np.int64))


@pytest.mark.parametrize(
    ("running", "settled", "by"),
    [
        (Running(95, None, "", None), 95, None),
        (Running(95, 40, "a session", None), 40, "a session"),
        (Running(95, 40, "a session", "waiting"), 40, "a session"),
        (Running(95, 70, "a session", "waiting"), 50, 'the prepared transaction "waiting"'),
        (Running(95, None, "", "waiting"), 50, 'the prepared transaction "waiting"'),
        (None, 50, "transaction 10; a role with pg_read_all_stats sees whose"),
    ],
)
def test_the_oldest_of_sessions_and_prepared_transactions_holds_the_horizon(
    running: Running | None, settled: int, by: str | None
) -> None:
    view = View(10, 12, 15, 100, 100, running)
    found, hold = _settled([(50, 9), (80, 11)], view, Server("s", False, running is not None))
    assert found == settled
    assert hold == (None if by is None else Hold(settled, by))


CLUSTER = "7000000000000000001"
ONE, TWO = f"{CLUSTER}/00000001", f"{CLUSTER}/00000002"


def at(position: int) -> View:
    return View(10, 12, 15, 100, 100, covers=position, reaches=position)


def test_a_standby_that_does_not_know_of_a_new_timeline_yet_is_a_server_that_may_lag() -> None:
    """It says which timeline it follows only once it has written something down of it."""
    primary = horizon(at(500), Server(TWO, standby=False, sees_sessions=False), None, versioned=True)
    standby = horizon(at(400), Server(ONE, standby=True, sees_sessions=False), primary.memory, versioned=True)
    assert (standby.era, standby.covers, standby.reaches) == (primary.era, 400, 400)
    # One of a later timeline took over, one of another cluster is another database, and positions say nothing there.
    for identity in (f"{CLUSTER}/0000000A", "7000000000000000002/00000001"):
        other = horizon(at(400), Server(identity, standby=True, sees_sessions=False), primary.memory, versioned=True)
        assert other.era != primary.era
        assert other.covers is None


def test_a_primary_whose_wal_has_gone_back_was_restored_and_a_standby_s_has_only_to_catch_up() -> None:
    first = horizon(at(500), Server(ONE, standby=False, sees_sessions=False), None, versioned=True)
    restored = horizon(at(499), Server(ONE, standby=False, sees_sessions=False), first.memory, versioned=True)
    assert restored.era != first.era
    assert restored.covers is None
    level = horizon(at(500), Server(ONE, standby=False, sees_sessions=False), first.memory, versioned=True)
    assert level.era == first.era
    behind = horizon(at(499), Server(ONE, standby=True, sees_sessions=False), first.memory, versioned=True)
    assert (behind.era, behind.covers) == (first.era, 499)


@pytest.mark.parametrize(
    ("position", "end"), [(8192 + 24, 8192), (8192 + 40, 8192), (8192, 8192), (8192 + 48, 8192 + 48), (100, 100)]
)
def test_behind_the_header_of_an_empty_page_nothing_has_been_written(position: int, end: int) -> None:
    assert _end(position) == end
