"""PostgreSQL rows: two readers that agree to the bit, and values that no type here can hold but by name."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from connectors.postgres import PostgresConnector
from connectors.postgres_query import Statements
from sidecar import codec
from sidecar.clock import SECOND
from sidecar.connector import Source
from sidecar.errors import SettingsError
from sidecar.model import CURSOR, DELETED, INFINITY, VERSION, Page, Scalar, Tracked, Wishes
from sidecar.testing.contract import scan, tracked, values
from tests.servers import Database, make

Connection = psycopg.Connection[tuple[Any, ...]]

ASKED = Wishes(general={"infinity": "null"})
STAMPS = "created_at timestamptz, updated_at timestamptz"
AT = "'2024-05-01 10:00+00', '2024-05-01 10:00+00'"

ZOO = (
    """CREATE TYPE mood AS ENUM ('ok', 'b''ad')""",
    """CREATE DOMAIN code AS char(5)""",
    """CREATE DOMAIN price AS numeric(12, 3)""",
    f"""CREATE TABLE zoo (id int PRIMARY KEY, b bool, i2 int2, i8 int8, f4 float4, f8 float8, t text, vc varchar(9),
      ch char(5), dom code, pr price, nm name, u uuid, us uuid[], ts text[], ds date[], ns numeric[], j json, jb jsonb,
      iv interval, m mood, by bytea, tm time, tt timetz, ip inet, cd cidr, mac macaddr, mo money, r int4range, d date,
      t0 timestamp, n numeric, n2 numeric(12, 2), n38 numeric(38, 10), n50 numeric(50, 2), neg numeric(5, -2),
      p point, l pg_lsn, tv tsvector, bits bit(3), {STAMPS}, deleted_at timestamptz)""",
    rf"""INSERT INTO zoo VALUES (1, true, -5, 9007199254740993, 1.1, 0.1, E'a\n"q",\\ \t ü', '', 'ab', 'cd', 1.5, 'nm',
      'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}}', '{{"a,b",NULL}}',
      '{{2024-05-01}}', '{{1.5,NULL}}', '{{"k": 9007199254740993,  "k": 1.0}}', '{{"k": 9007199254740993}}',
      '1 mon 2 days 03:04:05.000006', 'b''ad', '\x00ff27', '24:00', '10:00:00+02', '192.168.0.1/24', '10.0.0.0/8',
      '08:00:2b:01:02:03', '12.34', '[1,5)', '2024-05-01', '2024-05-01 10:00:00.000001', 1e-20, -1.5,
      1234567890123456789012345678.1234567891, 1e40, 12345, '(1,2)', '16/B374D848', 'a b', B'101', {AT}, NULL)""",
    r"""INSERT INTO zoo (id, t, by, f4, f8, created_at, updated_at) VALUES
      (2, '\N', '', 'NaN', 'Infinity', '0001-01-01 00:00+00', '9999-12-31 23:59:59.999999+00'),
      (3, '\.', NULL, '-Infinity', '-0', '2024-05-01 10:00:00.5+00', '2024-05-01 10:00:00.5+00'),
      (4, 'NULL', NULL, '1e-45', '5e-324', '1969-12-31 23:59:59.999999+00', '1969-12-31 23:59:59.999999+00')""",
)


def first_page(followed: Tracked, name: str = "updated", limit: int = 100) -> Page:
    return Page(followed, next(p for p in followed.passes if p.name == name), {}, None, limit)


def by_both(connector: PostgresConnector, page: Page) -> pa.Table:
    """Return *page*, after both readers have given it alike."""
    with connector._session.snapshot() as view:
        statements = Statements(page, view.xmax)
        one, other = connector._reader.page(statements), connector._reader.bulk(statements)
    assert other is not None, "connectorx gave up"
    assert one.schema == other.schema
    for name in one.column_names:
        both = [[repr(v) for v in rows.column(name).to_pylist()] for rows in (one, other)]  # NaN equals NaN here
        assert both[0] == both[1], name
    return one


def row(rows: pa.Table, key: int) -> dict[str, Any]:
    found: dict[str, Any] = rows.filter(pc.equal(rows.column("id"), key)).to_pylist()[0]
    return found


def test_every_type_arrives_exactly_and_alike_by_both_readers(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *ZOO)
    followed = tracked(connector, "zoo")
    rows = by_both(connector, first_page(followed))
    assert rows.schema.names == [*(c.name for c in followed.columns), CURSOR, VERSION, DELETED]
    assert [rows.schema.field(c.name).type for c in followed.columns] == [c.arrow for c in followed.columns]
    one = row(rows, 1)
    expected = {
        "b": True,
        "i2": -5,
        "i8": 2**53 + 1,
        "f8": 0.1,
        "t": 'a\n"q",\\ \t ü',
        "vc": "",
        "ch": "ab   ",
        "dom": "cd   ",
        "pr": Decimal("1.500"),
        "nm": "nm",
        "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "us": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None],
        "ts": ["a,b", None],
        "ds": [date(2024, 5, 1)],
        "ns": ["1.5", None],
        "j": '{"k": 9007199254740993,  "k": 1.0}',
        "jb": '{"k": 9007199254740993}',
        "iv": "1 mon 2 days 03:04:05.000006",
        "m": "b'ad",
        "by": b"\x00\xff'",
        "tm": "24:00:00",
        "tt": "10:00:00+02",
        "ip": "192.168.0.1/24",
        "cd": "10.0.0.0/8",
        "mac": "08:00:2b:01:02:03",
        "mo": "$12.34",
        "r": "[1,5)",
        "d": date(2024, 5, 1),
        "t0": datetime(2024, 5, 1, 10, 0, 0, 1),  # noqa: DTZ001  zone-less, as the column is
        "n": "0.00000000000000000001",
        "n2": Decimal("-1.50"),
        "n38": Decimal("1234567890123456789012345678.1234567891"),
        "n50": "1" + "0" * 40 + ".00",
        "neg": "12300",
        "p": "(1,2)",
        "l": "16/B374D848",
        "tv": "'a' 'b'",
        "bits": "101",
        "deleted_at": None,
    }
    assert {name: one[name] for name in expected} == expected
    assert one["f4"] == pytest.approx(1.1)
    assert (row(rows, 2)["t"], row(rows, 3)["t"], row(rows, 4)["t"]) == ("\\N", "\\.", "NULL")
    assert (row(rows, 2)["by"], row(rows, 3)["by"]) == (b"", None)
    assert row(rows, 3)["f4"] == float("-inf")
    assert str(row(rows, 3)["f8"]) == "-0.0"
    assert row(rows, 4)["f8"] == 5e-324


def test_the_years_1_to_9999_arrive_to_the_microsecond(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *ZOO)
    rows = by_both(connector, first_page(tracked(connector, "zoo")))
    assert row(rows, 2)["created_at"] == datetime(1, 1, 1, tzinfo=UTC)
    assert row(rows, 2)["updated_at"] == datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert row(rows, 4)[CURSOR] == -1


def test_an_empty_page_has_the_columns_of_a_full_one(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *ZOO)
    full = by_both(connector, first_page(tracked(connector, "zoo")))
    admin.execute("DELETE FROM zoo")
    assert by_both(connector, first_page(tracked(connector, "zoo"))).schema == full.schema


BULK = (
    f"CREATE TABLE bulk (id int PRIMARY KEY, v text, {STAMPS})",
    "INSERT INTO bulk SELECT n, 'old', now(), now() FROM generate_series(1, 70000) n",
)


def bulk_pages(connector: PostgresConnector, size: int, between: Callable[[], object]) -> list[pa.Table]:
    page = first_page(tracked(connector, "bulk", size), limit=size)
    found = []
    with connector.snapshot():
        while True:
            found.append(connector.read(page))
            if len(found[-1]) < page.limit:
                return found
            last = codec.position(found[-1].slice(len(found[-1]) - 1), (CURSOR, "id"))
            page = dataclasses.replace(page, after=codec.unpack(codec.pack(last)))
            if len(found) in (1, 4):
                between()


@pytest.mark.parametrize("size", [3_000, 10_000, 60_000])
def test_bulk_pages_are_read_ahead_by_connectorx_under_the_snapshot(
    admin: Connection, connector: PostgresConnector, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    make(admin, *BULK)
    change = "UPDATE bulk SET v = 'new', updated_at = now() WHERE id % 1000 = 0"
    with caplog.at_level(logging.DEBUG, "sidecar"):
        found = bulk_pages(connector, size, lambda: admin.execute(change))
    assert not caplog.messages
    assert values(found, "id", "v") == [(n, "old") for n in range(1, 70_001)]
    assert [len(rows) for rows in found] == [*[size] * (70_000 // size), 70_000 % size]
    assert len({str(rows.schema) for rows in found}) == 1


def test_another_page_than_the_next_is_read_anew(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *BULK)
    page = first_page(tracked(connector, "bulk", 10_000), limit=10_000)
    with connector.snapshot():
        at: Scalar = None
        for expected in (1, 10_001, 20_001, 5_001, 60_001, 1):
            after = None if expected == 1 else (at, expected - 1)
            rows = connector.read(dataclasses.replace(page, after=after))
            at = rows.column(CURSOR)[0].as_py()
            assert rows.column("id")[0].as_py() == expected
            assert len(rows) == 10_000
    with connector.snapshot():
        admin.execute("DELETE FROM bulk WHERE id > 20000")
    with connector.snapshot():
        assert len(connector.read(dataclasses.replace(page, after=(at, 10_000)))) == 10_000
        assert len(connector.read(dataclasses.replace(page, after=(at, 20_000)))) == 0


@pytest.mark.parametrize("how", ["unknown parameters", "broken snapshot"])
def test_where_connectorx_cannot_copy_reads_on(
    admin: Connection, pg: Database, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    make(admin, *BULK)
    extra = "?options=-csearch_path%3Dpublic" if how == "unknown parameters" else ""
    connector = PostgresConnector(Source(pg.reader_url + extra))

    def spoil() -> None:
        if not extra:
            connector._session.exported = "00000000-00000000-1"

    with caplog.at_level(logging.DEBUG, "sidecar"):
        found = bulk_pages(connector, 10_000, spoil)
    assert values(found, "id") == [(n,) for n in range(1, 70_001)]
    assert len(caplog.messages) == (not extra)
    connector.close()


ODD = (
    f"CREATE TABLE permits (id int PRIMARY KEY, d date, t0 timestamp, {STAMPS}, deleted_at timestamptz)",
    """INSERT INTO permits VALUES
      (1, '2024-05-01', '2024-05-01', '2024-05-01', '2024-05-01 10:00+00', NULL),
      (2, 'infinity', '-infinity', '2024-05-01', 'infinity', 'infinity'),
      (3, '0044-03-15 BC', '15000-12-31 23:40:28', '2024-05-01', '-infinity', NULL),
      (4, '5874897-12-31', '294276-12-31 23:59:59.999999', '-infinity', '200000-01-01 00:00:00.000001+00', NULL),
      (5, NULL, NULL, '2024-05-01', '4713-01-02 00:00:00.5+00 BC', NULL)""",
)

GONE = ("infinity",)


def test_times_that_no_type_holds_are_null_and_named_and_keep_their_place_in_the_order(
    admin: Connection, connector: PostgresConnector, caplog: pytest.LogCaptureFixture
) -> None:
    make(admin, *ODD)
    followed = tracked(connector, "permits", wishes=ASKED, not_deleted=GONE)
    with caplog.at_level(logging.WARNING, "sidecar"):
        rows = by_both(connector, first_page(followed))
    assert rows.column("id").to_pylist() == [3, 5, 1, 4, 2]
    least, before_christ, plain, far, most = rows.column(CURSOR).to_pylist()
    assert (least, most) == (-INFINITY, INFINITY)
    assert plain == 1_714_557_600_000_000
    assert far == (datetime(2000, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days * 86_400_000_000 + (
        198_000 // 400 * 146_097 * 86_400_000_000 + 1
    )
    assert before_christ % 1_000_000 == 500_000
    assert [row(rows, n)["updated_at"] for n in (2, 3, 4, 5)] == [None] * 4
    assert [row(rows, n)["d"] for n in (1, 2, 3, 4)] == [date(2024, 5, 1), None, None, None]
    assert not row(rows, 2)[DELETED]
    messages = {r.getMessage() for r in caplog.records}
    for name, count in {"d": 3, "t0": 3, "updated_at": 4, "created_at": 1, "deleted_at": 1}.items():
        assert any(f'"permits": column "{name}" holds {count} time' in m and "first key: id=" in m for m in messages)


def test_a_scan_row_by_row_passes_infinities_and_bc(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *ODD)
    found = scan(connector, tracked(connector, "permits", 1, wishes=ASKED, not_deleted=GONE))
    assert values(found, "id") == [(3,), (5,), (1,), (4,), (2,)]


def test_the_greatest_value_is_never_infinite_nor_above_the_limit(
    admin: Connection, connector: PostgresConnector
) -> None:
    make(admin, *ODD)
    page = first_page(tracked(connector, "permits", wishes=ASKED, not_deleted=GONE))
    rows = connector.read(page).column(CURSOR).to_pylist()
    assert connector.greatest(page, None) == rows[3]
    assert connector.greatest(page, rows[3] - 1) == rows[2]
    assert connector.greatest(page, rows[2]) == rows[2]
    assert connector.greatest(dataclasses.replace(page, closed={"updated": rows[3]}), None) is None


def test_infinity_can_be_the_word_for_not_deleted(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *ODD)
    followed = tracked(connector, "permits", wishes=ASKED, not_deleted=("infinity", "0000-00-00 00:00:00"))
    rows = by_both(connector, first_page(followed))
    assert not any(rows.column(DELETED).to_pylist())
    assert len(by_both(connector, first_page(followed, "deleted"))) == 0


def test_a_time_beyond_64_bits_is_refused_by_name(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *ODD, "UPDATE permits SET updated_at = '294276-01-01' WHERE id = 3")
    with pytest.raises(SettingsError, match=r'"permits": column "updated_at" .*294246.* \(key: id=3\)'):
        connector.read(first_page(tracked(connector, "permits", wishes=ASKED, not_deleted=GONE)))


def test_an_infinite_time_in_a_key_is_refused_by_name(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        f"CREATE TABLE spans (upto date PRIMARY KEY, {STAMPS})",
        f"INSERT INTO spans VALUES ('infinity', {AT})",
    )
    with pytest.raises(SettingsError, match=r'"spans": column "upto" .* a key cannot be NULL'):
        connector.read(first_page(tracked(connector, "spans")))


@pytest.mark.parametrize("special", ["NaN", "Infinity"])
def test_what_no_decimal_holds_is_refused_with_its_key(
    admin: Connection, connector: PostgresConnector, special: str
) -> None:
    make(
        admin,
        f"CREATE TABLE ledger (id int PRIMARY KEY, fee numeric{'(20,10)' if special == 'NaN' else ''}, {STAMPS})",
        f"INSERT INTO ledger VALUES (7, 1, {AT}), (8, '{special}', {AT})",
    )
    page = first_page(tracked(connector, "ledger"))
    if special == "NaN":
        with pytest.raises(SettingsError, match=r'"ledger": column "fee" .*decimal128\(20, 10\).* \(key: id=8\)'):
            connector.read(page)
    else:
        assert connector.read(page).column("fee").to_pylist() == ["1", special]


@pytest.mark.parametrize("kind", ["timestamp", "date", "bigint", "int", "smallint"])
def test_each_kind_of_cursor_is_walked_row_by_row(admin: Connection, connector: PostgresConnector, kind: str) -> None:
    time = kind in ("timestamp", "date")
    stamps = "'1969-12-31', '1970-01-01', '1969-12-31', '2024-05-01'" if time else "-7, 0, -7, 32000"
    make(
        admin,
        f"CREATE TABLE walk (id int PRIMARY KEY, updated_at {kind})",
        f"INSERT INTO walk SELECT row_number() OVER (), v::{kind} FROM unnest(ARRAY[{stamps}]) v",
    )
    followed = tracked(connector, "walk", 1)
    assert values(scan(connector, followed), "id") == [(1,), (3,), (2,), (4,)]
    page = by_both(connector, first_page(followed))
    assert (CURSOR in page.column_names) == time
    cursors = page.column(CURSOR if time else "updated_at").to_pylist()
    for n, bound in enumerate(cursors):
        above = connector.read(dataclasses.replace(first_page(followed), closed={"updated": bound}))
        assert len(above) == sum(c > bound for c in cursors), n
        assert connector.greatest(first_page(followed), bound) == bound
        below = max((c for c in cursors if c < bound), default=None)
        assert connector.greatest(first_page(followed), bound - 1) == below


def test_a_date_can_be_cursor_and_part_of_the_key(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        "CREATE TABLE days (updated_at date, n int, PRIMARY KEY (updated_at, n))",
        "INSERT INTO days SELECT date '1969-12-30' + n / 2, n FROM generate_series(0, 7) n",
    )
    assert values(scan(connector, tracked(connector, "days", 1)), "n") == [(n,) for n in range(8)]


@pytest.mark.parametrize(
    "kind", ["numeric", "numeric(10,2)", "uuid", "float4", "mood", "char(3)", "varchar(5)", "name"]
)
def test_keys_of_many_types_are_walked_in_their_own_order(
    admin: Connection, connector: PostgresConnector, kind: str
) -> None:
    keys = {
        "numeric": ["-1e30", "0.1", "2", "10"],
        "numeric(10,2)": ["-1.5", "0.1", "2", "10"],
        "uuid": [f"{n}0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11" for n in "0a"],
        "float4": ["-Infinity", "0.1", "1.1", "NaN"],
        "mood": ["z", "a"],
        "char(3)": ["a", "ab", "b"],
        "varchar(5)": ["", "a'b", "a\\b", "é"],
        "name": ["a", "b"],
    }[kind]
    make(admin, "CREATE TYPE mood AS ENUM ('z', 'a')", f"CREATE TABLE keyed (k {kind} PRIMARY KEY, {STAMPS})")
    for key in reversed(keys):
        admin.execute(f"INSERT INTO keyed VALUES (%s::{kind}, {AT})".encode(), (key,))
    found = [k for (k,) in values(scan(connector, tracked(connector, "keyed", 1)), "k")]
    order = admin.execute("SELECT k::text FROM keyed ORDER BY keyed.k").fetchall()
    assert len(found) == len(keys)
    if kind in ("numeric", "uuid", "mood", "varchar(5)", "name"):
        assert [(k,) for k in found] == order


def test_a_null_in_a_key_is_found_before_a_page_s_end_hides_it(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        f"CREATE TABLE bare (a int, b int, {STAMPS})",
        f"INSERT INTO bare SELECT n, n, {AT} FROM generate_series(1, 5) n",
        f"INSERT INTO bare VALUES (6, NULL, {AT})",
    )
    followed = dataclasses.replace(tracked(connector, "bare", 2), key=("a", "b"), key_is_unique=False)
    with pytest.raises(SettingsError, match='"bare": key column "b" holds a NULL'):
        connector.read(first_page(followed, limit=2))


def test_deleted_when_is_sql_and_may_end_in_a_comment(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        f"CREATE TABLE jobs (id int PRIMARY KEY, status text, {STAMPS})",
        f"INSERT INTO jobs VALUES (1, 'gone 100%', {AT}), (2, 'here', {AT}), (3, NULL, {AT})",
    )
    followed = tracked(connector, "jobs", deleted_when="jobs.status LIKE 'gone%' -- both kinds")
    rows = by_both(connector, first_page(followed))
    assert rows.column(DELETED).to_pylist() == [True, False, False]


def test_a_column_that_cannot_be_a_cursor_is_refused_by_name(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, "CREATE TABLE odd (id int PRIMARY KEY, updated_at text)")
    with pytest.raises(SettingsError, match='"odd": column "updated_at" is text, which cannot be a cursor'):
        connector.read(first_page(tracked(connector, "odd")))


def test_the_cursor_s_index_serves_every_page(admin: Connection, connector: PostgresConnector) -> None:
    """The output's CASE and casts must not stand between ORDER BY and the index."""
    make(
        admin,
        *ODD[:1],
        "INSERT INTO permits SELECT n, NULL, NULL, now(), 'infinity' FROM generate_series(1, 20000) n",
        "CREATE INDEX ON permits (updated_at, id)",
        "ANALYZE permits",
    )
    followed = tracked(connector, "permits")
    page = dataclasses.replace(first_page(followed), after=(INFINITY, 10_000), closed={"updated": 0}, since=3)
    statements = Statements(page, 10_000)
    for careful in (False, True):
        select = statements.select(statements.wires(careful=careful), as_csv=True)
        plan = "\n".join(line for (line,) in admin.execute(f"EXPLAIN {select}".encode()).fetchall())
        assert "Index Scan" in plan
        assert "Sort" not in plan
        assert "ROW(updated_at, id)" in plan.split("Filter")[0]
    assert connector.read(page).column("id").to_pylist() == list(range(10_001, 10_101))


def test_a_page_among_rows_of_one_timestamp_begins_where_the_last_one_ended(
    admin: Connection, connector: PostgresConnector
) -> None:
    make(
        admin,
        *ODD[:1],
        "INSERT INTO permits SELECT n, NULL, NULL, now(), '2024-05-01' FROM generate_series(1, 50000) n",
        "CREATE INDEX ON permits (updated_at, id)",
        "VACUUM ANALYZE permits",
    )
    at = 1_714_521_600 * SECOND
    page = dataclasses.replace(first_page(tracked(connector, "permits")), closed={"updated": at - SECOND}, since=3)
    touched = []
    for after in (None, (at, 100), (at, 49_000)):
        statements = Statements(dataclasses.replace(page, after=after), 10_000)
        select = statements.select(statements.wires(careful=False), as_csv=True)
        plan = admin.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {select}".encode()).fetchall()[0][0][0]["Plan"]
        touched.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    assert max(touched) < min(touched) + 20, "pages before it were read again"
    assert connector.read(dataclasses.replace(page, after=(at, 49_000))).column("id").to_pylist()[0] == 49_001


@dataclasses.dataclass(frozen=True)
class Panicking(Statements):
    """What connectorx has no type for."""

    def select(self, wires: object, *, as_csv: bool) -> str:
        return "SELECT '1 day'::interval AS c0"


def test_a_panic_of_connectorx_is_caught_like_any_failure(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *ZOO)
    page = first_page(tracked(connector, "zoo"))
    with connector.snapshot():
        assert connector._reader.bulk(Panicking(page)) is None
        assert connector._reader.bulk(Statements(page)) is None, "it rests until the snapshot is over"
    with connector.snapshot():
        assert connector._reader.bulk(Statements(page)) is not None
