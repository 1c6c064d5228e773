"""What SQLite's tables look like to Sidecar, and which rows a page holds: exact values, exact order, exact errors."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from connectors.sqlite import SQLiteConnector
from connectors.sqlite_cursor import Cursors
from sidecar import codec, cursor
from sidecar.clock import FakeClock
from sidecar.connector import Source
from sidecar.errors import SettingsError, SourceUnavailable
from sidecar.model import DELETED, Page, Pass, PassName, Position, Table, Tracked
from sidecar.polls.quarantine import sorted_out
from sidecar.polls.rows import from_page
from tests.conftest import SQLiteFile


@pytest.fixture
def source(sqlite_db: SQLiteFile, clock: FakeClock) -> Iterator[SQLiteConnector]:
    connector = SQLiteConnector(Source(sqlite_db.url, clock=clock))
    yield connector
    connector.close()


def tracked(source: SQLiteConnector, name: str, **settings: Any) -> Tracked:
    table = source.describe(name)
    return Tracked(
        table,
        settings.pop("key", table.primary_key),
        settings.pop("updated_at", "updated_at"),
        columns=settings.pop("columns", table.columns),
        **settings,
    )


def rows(
    source: SQLiteConnector,
    table: Tracked,
    limit: int = 100,
    closed: Mapping[PassName, int | None] | None = None,
    scan: Pass | None = None,
) -> list[dict[str, Any]]:
    """Return all rows of a pass, read in pages of *limit*, each position once through the codec."""
    scan = scan or table.passes[0]
    after: Position | None = None
    found: list[dict[str, Any]] = []
    names = ((scan.cursor,) if scan.cursor else ()) + table.key
    while True:
        page = Page(table, scan, closed or {}, after, limit)
        data = source.read(page)
        sorted_out(from_page(page, data)[0])
        assert len(data) <= limit
        found += data.to_pylist()
        if len(data) < limit:
            return found
        after = codec.unpack(codec.pack(codec.position(data.slice(len(data) - 1), names)))


def fill(file: SQLiteFile, sql: str, values: Iterable[Sequence[object]]) -> None:
    """Write many rows in one transaction."""
    file.connection.execute("BEGIN")
    file.connection.executemany(sql, values)
    file.connection.execute("COMMIT")


def at(text: str) -> int:
    found = cursor.from_text(text)
    assert found is not None
    return found


# Tables and columns


def test_tables_are_those_of_the_application(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO orders VALUES (1);
        CREATE TABLE docs_data (id INTEGER PRIMARY KEY);
        CREATE TABLE "f_q" (x);
        CREATE VIEW recent AS SELECT * FROM orders;
        CREATE VIRTUAL TABLE search USING fts5(body);
        CREATE VIRTUAL TABLE places USING rtree(id, a, b);
        ANALYZE;
    """)
    assert sorted(source.tables()) == ["docs_data", "f_q", "orders", "recent"]


def test_a_table_is_found_in_any_case_and_its_likeliest_names_are_offered(
    sqlite_db: SQLiteFile, source: SQLiteConnector
) -> None:
    sqlite_db.connection.execute("CREATE TABLE Orders (id INTEGER PRIMARY KEY)")
    assert source.describe("oRDERS").name == "Orders"
    with pytest.raises(SettingsError, match=r'no table or view "ordres"; there are Orders'):
        source.describe("ordres")
    with pytest.raises(SettingsError, match="no table or view"):
        source.describe("sqlite_master")


def test_keys_stand_in_their_own_order_and_nullability_is_what_sqlite_enforces(
    sqlite_db: SQLiteFile, source: SQLiteConnector
) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE a (id INTEGER PRIMARY KEY, x NOT NULL, y);
        CREATE TABLE b (one TEXT, two TEXT, n INT, PRIMARY KEY (two, one));
        CREATE TABLE c (one TEXT, two TEXT, PRIMARY KEY (two, one)) WITHOUT ROWID;
        CREATE TABLE d (id INT PRIMARY KEY);
        CREATE TABLE e (id INTEGER PRIMARY KEY DESC);
        CREATE TABLE f (id TEXT PRIMARY KEY, any_thing ANY) STRICT;
        CREATE TABLE g (x INT, twice INT GENERATED ALWAYS AS (x * 2) VIRTUAL, more INT AS (x + 1) STORED);
        CREATE VIEW v AS SELECT id, x FROM a;
    """)

    def seen(table: Table) -> tuple[tuple[str, ...], list[tuple[str, bool]], str]:
        return table.primary_key, [(c.name, c.nullable) for c in table.columns], table.kind

    assert seen(source.describe("a")) == (("id",), [("id", False), ("x", False), ("y", True)], "table")
    assert seen(source.describe("b")) == (("two", "one"), [("one", True), ("two", True), ("n", True)], "table")
    assert seen(source.describe("c")) == (("two", "one"), [("one", False), ("two", False)], "table")
    assert seen(source.describe("d")) == (("id",), [("id", True)], "table")
    assert seen(source.describe("e")) == (("id",), [("id", True)], "table")
    assert seen(source.describe("f")) == (("id",), [("id", False), ("any_thing", True)], "table")
    assert seen(source.describe("g")) == ((), [("x", True), ("twice", True), ("more", True)], "table")
    assert seen(source.describe("v")) == ((), [("id", True), ("x", True)], "view")


def test_types_are_the_same_before_the_first_row_and_after_any(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.execute(
        "CREATE TABLE assays (id INTEGER PRIMARY KEY, val NUMERIC, meta JSON, flag BOOLEAN, r REAL, b BLOB, d DATETIME,"
        " x, updated_at DATETIME NOT NULL)"
    )
    table = tracked(source, "assays")
    page = Page(table, table.passes[0], {}, None, 10)
    empty = source.read(page)
    blob = b"\x00\xff'"
    values = [
        (1, None, None, None, None, None, None, None, "2024-05-01 10:00:00"),
        (2, 5, '{"k": 9007199254740993}', 1, 2, blob, "2024-05-01", 7, "2024-05-01 10:00:01"),
        (2**63 - 1, 2.5, "[]", 0, 0.1, b"", 1714557600, 0.5, "2024-05-01 10:00:02"),
    ]
    fill(sqlite_db, "INSERT INTO assays VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    full = source.read(page)
    assert full.schema == empty.schema
    assert full.schema.types == [c.arrow for c in table.table.columns]
    assert full.to_pylist()[1:] == [
        dict(zip(full.column_names, (2, 5.0, '{"k": 9007199254740993}', 1, 2.0, blob, "2024-05-01", "7",
                                     "2024-05-01 10:00:01"), strict=True)),
        dict(zip(full.column_names, (2**63 - 1, 2.5, "[]", 0, 0.1, b"", "1714557600", "0.5", "2024-05-01 10:00:02"),
                 strict=True)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "value", "says"),
    [
        ("INTEGER", 1.5, "class real, where its type takes integer"),
        ("INTEGER", "many", "class text, where its type takes integer"),
        ("REAL", "x", "class text, where its type takes real"),
        ("TEXT", b"x", "class blob, where its type takes text"),
        ("BLOB", "x", "class text, where its type takes blob"),
        ("DECIMAL(30,10)", 2**53 + 1, "no double holds exactly"),
        ("DECIMAL(30,10)", "a lot", "class text, where its type takes real"),
    ],
)
def test_a_value_that_its_column_cannot_hold_is_named_with_its_key_and_never_converted(
    sqlite_db: SQLiteFile, source: SQLiteConnector, declared: str, value: object, says: str
) -> None:
    sqlite_db.connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, c {declared}, updated_at TEXT)")
    sqlite_db.connection.execute("INSERT INTO t VALUES (6, NULL, '2024-05-01 10:00:00')")
    sqlite_db.connection.execute("INSERT INTO t VALUES (7, ?, '2024-05-01 10:00:01')", (value,))
    with pytest.raises(SettingsError, match=rf'table "t": column "c" .*{says}.*first key: id=7.*columns'):
        rows(source, tracked(source, "t"))


def test_broken_utf8_is_named_with_its_key_and_not_shown(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE t (code TEXT PRIMARY KEY, b BLOB, note TEXT, updated_at TEXT);
        INSERT INTO t VALUES ('ok', x'ff', 'fine', '2024-05-01 10:00:00');
        INSERT INTO t VALUES ('é', x'ff', CAST(x'736563726574ff' AS TEXT), '2024-05-01 10:00:01');
    """)
    with pytest.raises(SettingsError, match=r'table "t": column "note".*not valid UTF-8.*code=\'é\'') as caught:
        rows(source, tracked(source, "t"))
    assert "secret" not in str(caught.value)
    table = source.describe("t")
    without = tuple(c for c in table.columns if c.name != "note")
    assert len(rows(source, tracked(source, "t", columns=without))) == 2


def test_text_keeps_what_stands_in_it(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    texts = ["a\0b", "", " ", "'; DROP TABLE t; --", "{0} %s $1 ? :p", "line\nbreak", "日本語 🛒", "\x7f"]
    sqlite_db.connection.execute("CREATE TABLE t (code TEXT PRIMARY KEY, updated_at TEXT)")
    fill(sqlite_db, "INSERT INTO t VALUES (?, '2024-05-01 10:00:00')", [(t,) for t in texts])
    assert [r["code"] for r in rows(source, tracked(source, "t"), limit=1)] == sorted(texts)


# Pages


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(
    ("key", "extra"),
    [
        ("id INTEGER PRIMARY KEY", ""),
        ("id TEXT, tenant TEXT, PRIMARY KEY (tenant, id)", ""),
        ("id BLOB, tenant BLOB, PRIMARY KEY (tenant, id)", " WITHOUT ROWID"),
        ("id, tenant, PRIMARY KEY (tenant, id)", ""),
        ("id REAL PRIMARY KEY", ""),
        ("id TEXT COLLATE NOCASE PRIMARY KEY", ""),
    ],
)
def test_pages_of_any_size_give_each_row_once_in_order_through_ties(
    sqlite_db: SQLiteFile, source: SQLiteConnector, key: str, extra: str, indexed: bool
) -> None:
    columns, _, constraint = key.partition(", PRIMARY")
    declared = f"{columns}, updated_at TEXT" + (f", PRIMARY{constraint}" if constraint else "")
    write = sqlite_db.connection
    write.execute(f"CREATE TABLE t ({declared}){extra}")
    has_tenant = "tenant" in key
    blob, text = "BLOB" in key, "TEXT" in key
    for n in range(40):
        tenant: object = ["A|B", "A", "", "ß"][n % 4]
        id_: object = f"B|{n}" if text else n
        if blob:
            tenant, id_ = str(tenant).encode(), bytes([n, 0, 255])
        values = (id_, tenant) if has_tenant else (id_,)
        marks = ", ".join("?" * (len(values) + 1))
        write.execute(f"INSERT INTO t VALUES ({marks})", (*values, f"2024-05-01 10:00:0{n // 15}"))
    table = tracked(source, "t")
    if indexed:
        write.execute(f"CREATE INDEX t_updated ON t (updated_at, {', '.join(table.key)})")
    names = ", ".join(["updated_at", *table.key])
    expected = [tuple(map(str, r)) for r in write.execute(f"SELECT {names} FROM t ORDER BY {names}")]
    scan = table.passes[0]
    for limit in (1, 2, 7, 39, 40, 41):
        found = [tuple(str(r[n]) for n in ("updated_at", *table.key)) for r in rows(source, table, limit)]
        assert [f[1:] for f in found] == [e[1:] for e in expected] if "REAL" not in key else len(found) == 40
    closed: dict[PassName, int | None] = {"updated": at("2024-05-01 10:00:01")}
    assert len(rows(source, table, 3, closed, scan)) in (10, 25)
    by_key = rows(source, table, 3, {}, Pass("unstamped", None))
    assert len(by_key) == 40
    assert len({tuple(str(r[n]) for n in table.key) for r in by_key}) == 40


@pytest.mark.parametrize("name", ['or"der', "select", "MixedCase", "a%b", "a b", "it's", "x.y", "ünï", "a;b--", "[b]"])
def test_names_of_any_kind_are_names(sqlite_db: SQLiteFile, source: SQLiteConnector, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    write = sqlite_db.connection
    write.execute(f"CREATE TABLE {quoted} (id INTEGER PRIMARY KEY, {quoted} TEXT, updated_at TEXT, deleted_at TEXT)")
    write.execute(f"INSERT INTO {quoted} VALUES (1, 'x', '2024-05-01 10:00:00', NULL)")
    write.execute(f"INSERT INTO {quoted} VALUES (2, 'y', '2024-05-01 10:00:00', '2024-05-01 10:00:00')")
    table = tracked(source, name, key=(name, "id"), deleted_at="deleted_at", deleted_when=f"{quoted} = 'x'")
    found = rows(source, table, 1)
    assert [(r["id"], r[name], r[DELETED]) for r in found] == [(1, "x", True), (2, "y", True)]
    stamped = dataclasses.replace(table, updated_at=name, key=("id",))
    assert [r["id"] for r in rows(source, stamped, 1)] == [1, 2]
    assert [f.level for f in source.check(table)] != []


def test_a_name_that_is_no_column_is_never_taken_for_a_text(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.execute("CREATE TABLE pets (id INTEGER PRIMARY KEY, updated_at TEXT, age INT)")
    sqlite_db.connection.execute("INSERT INTO pets VALUES (1, '2024-05-01 10:00:00', 3)")
    table = tracked(source, "pets")
    rows(source, table)
    sqlite_db.connection.execute("ALTER TABLE pets DROP COLUMN age")
    with pytest.raises(SourceUnavailable, match=r'"pets": changed while it was read \(no such column: pets\.age\)'):
        rows(source, table)
    sqlite_db.connection.execute("ALTER TABLE pets RENAME TO pets_old")
    with pytest.raises(SourceUnavailable, match="no such table"):
        rows(source, table)


def test_an_interrupted_pass_goes_on_over_a_new_connection(sqlite_db: SQLiteFile, clock: FakeClock) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id PRIMARY KEY, updated_at DATETIME)")
    fill(sqlite_db, "INSERT INTO t VALUES (?, '2024-05-01 10:00:00')", [(n,) for n in range(12)])
    after: Position | None = None
    found: list[str] = []
    for _ in range(4):
        connector = SQLiteConnector(Source(sqlite_db.url, clock=clock))
        table = tracked(connector, "t")
        data = connector.read(Page(table, table.passes[0], {}, after, 3))
        found += data.column("id").to_pylist()
        after = codec.position(data.slice(2), ("updated_at", "id"))
        connector.close()
    # The key has no declared type: its numbers arrive as text, and are numbers again in the next position.
    assert found == [str(n) for n in range(12)]


@pytest.mark.parametrize("number", [1_714_557_600, 2_460_431.875])
def test_a_first_load_of_numbers_in_a_column_of_times_goes_on_in_another_process(
    sqlite_db: SQLiteFile, source: SQLiteConnector, number: float
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at DATETIME)")
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", [(1, number), (2, number)])
    table = tracked(source, "t")
    page = Page(table, Pass("all", None), {}, (1,), 10)
    assert source.read(page).to_pylist() == [{"id": 2, "updated_at": repr(number)}]


def test_a_column_of_times_may_get_its_first_number_while_it_is_read(
    sqlite_db: SQLiteFile, source: SQLiteConnector
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at DATETIME)")
    table = tracked(source, "t")
    assert source.greatest(Page(table, table.passes[0], {}, None, 10), None) is None
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", [(1, 1_714_557_600)])
    assert len(source.read(Page(table, Pass("all", None), {}, None, 10))) == 1
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", [(2, "2024-05-01")])
    with pytest.raises(SettingsError, match="holds numbers and text"):
        source.greatest(Page(table, table.passes[0], {}, None, 10), None)


def test_an_index_made_later_is_used_from_then_on(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT)")
    table = tracked(source, "t")
    rows(source, table)
    page = Page(table, table.passes[0], {}, None, 10)
    with source.file.reading() as connection:
        assert not Cursors(source.file).indexed(connection, page)
    sqlite_db.connection.execute("CREATE INDEX t_updated ON t (updated_at)")
    with source.file.reading() as connection:
        assert source._cursors.indexed(connection, page)


# Cursor columns


def test_forms_of_time_may_stand_side_by_side(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    write = sqlite_db.connection
    write.executescript("""
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, updated_at TEXT);
        CREATE INDEX jobs_updated ON jobs (updated_at, id);
        INSERT INTO jobs VALUES (1, '2024-05-02T07:00:00Z'), (2, '2024-05-02 06:00:00'),
                                (3, '2024-05-02T09:30:00+02:00');
    """)
    table = tracked(source, "jobs")
    source.horizon(table, None)
    closed: dict[PassName, int | None] = {"updated": at("2024-05-02T07:30:00Z")}
    write.executescript("""
        INSERT INTO jobs VALUES (4, '2024-05-02 08:00:00'), (5, '2024-05-02T03:05:00-05:00'), (6, '2024-05-02');
        UPDATE jobs SET updated_at = '2024-05-02 08:05:00' WHERE id = 2;
    """)
    assert {r["id"] for r in rows(source, table, 2, closed)} >= {2, 4, 5, 6}
    assert source.greatest(Page(table, table.passes[0], {}, None, 10), None) == at("2024-05-02 23:59:59.999999")
    limit = at("2024-05-02 08:04:00")
    greatest = source.greatest(Page(table, table.passes[0], closed, None, 10), limit)
    assert greatest is None or at("2024-05-02 07:30:00") < greatest <= limit


def test_offsets_once_seen_are_remembered_by_the_next_process(sqlite_db: SQLiteFile, clock: FakeClock) -> None:
    write = sqlite_db.connection
    write.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, updated_at TEXT)")
    write.execute("CREATE INDEX jobs_updated ON jobs (updated_at, id)")
    write.execute("INSERT INTO jobs VALUES (0, '2024-05-01T07:00:00-05:00')")
    fill(sqlite_db, "INSERT INTO jobs VALUES (?, '2024-05-02 07:00:00')", [(n,) for n in range(1, 1000)])
    first = SQLiteConnector(Source(sqlite_db.url, clock=clock))
    assert len(rows(first, tracked(first, "jobs"), 10_000, {})) == 1000
    memory = first.horizon(tracked(first, "jobs"), None).memory
    assert memory == {"offsets": ["updated_at"], "timezone": None}
    first.close()
    write.execute("INSERT INTO jobs VALUES (5000, '2024-05-02T02:30:00-05:00')")
    second = SQLiteConnector(Source(sqlite_db.url, clock=clock))
    table = tracked(second, "jobs")
    assert second.horizon(table, memory).memory == memory
    found = rows(second, table, 100, {"updated": at("2024-05-02 07:00:00")})
    assert [r["id"] for r in found if r["updated_at"].endswith("-05:00")] == [5000]
    second.close()


def test_text_that_is_no_time_is_delivered_and_named_once(
    sqlite_db: SQLiteFile, source: SQLiteConnector, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (code TEXT PRIMARY KEY, updated_at TEXT)")
    table = tracked(source, "t")
    for code, stamp in (("a", ""), ("b", "0000-00-00 00:00:00"), ("c", "2024-05-09 10:00:09' OR 1=1 --"), ("d", "zzz")):
        sqlite_db.connection.execute("INSERT INTO t VALUES (?, ?)", (code, stamp))
    for n in range(5):
        sqlite_db.connection.execute("INSERT INTO t VALUES (?, '2024-05-01 10:00:00')", (f"x{n}",))
    with caplog.at_level(logging.WARNING, "sidecar"):
        for _ in range(2):
            found = rows(source, table, 100, {"updated": at("2024-05-02 10:00:00")})
            assert [r["code"] for r in found] == ["a", "b", "c", "d"]
    (message,) = [r.getMessage() for r in caplog.records]
    assert 'table "t": cursor column "updated_at" holds a text that is no time (first key: code=\'a\')' in message
    assert source.greatest(Page(table, table.passes[0], {}, None, 10), None) == at("2024-05-01 10:00:00")


def test_numbers_and_text_in_one_cursor_column_are_refused_with_one_of_each(
    sqlite_db: SQLiteFile, source: SQLiteConnector
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at DATETIME)")
    sqlite_db.connection.execute("INSERT INTO t VALUES (1, 1714557600), (2, '2024-05-01 10:00:00')")
    with pytest.raises(SettingsError, match=r"t.*updated_at.*numbers and text.*1714557600.*'2024-05-01 10:00:00'"):
        rows(source, tracked(source, "t"))
    sqlite_db.connection.execute("UPDATE t SET updated_at = 1714557600123 WHERE id = 2")
    with pytest.raises(SettingsError, match=r"two units.*1714557600 and 1714557600123"):
        rows(source, tracked(source, "t"))


def test_numbers_in_a_column_declared_for_times_are_read_in_their_unit(
    sqlite_db: SQLiteFile, source: SQLiteConnector
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at DATETIME)")
    first = 1_714_557_600_000
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", [(n, first + n // 2) for n in range(10)])
    table = tracked(source, "t")
    assert [r["id"] for r in rows(source, table, 3)] == list(range(10))
    assert rows(source, table)[0]["updated_at"] == "1714557600000"
    closed: dict[PassName, int | None] = {"updated": (first + 2) * 1000}
    assert [r["id"] for r in rows(source, table, 3, closed)] == [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("declared", "first", "step"),
    [("INTEGER", 1_714_557_600, 1), ("INTEGER", -3, 1), ("REAL", 1_714_557_600.25, 0.000_001), ("NUMERIC", 5, 1)],
)
def test_number_cursors_are_read_above_their_closed_value(
    sqlite_db: SQLiteFile, source: SQLiteConnector, declared: str, first: float, step: float
) -> None:
    sqlite_db.connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at {declared})")
    stamps = [first + n * step for n in range(8)]
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", list(enumerate(stamps)))
    table = tracked(source, "t")
    page = Page(table, table.passes[0], {}, None, 100)
    values = [int(v) for v in cursor.comparable(source.read(page).column("updated_at"))]
    for n in range(8):
        above = {r["id"] for r in rows(source, table, 3, {"updated": values[n]})}
        assert above >= set(range(n + 1, 8))
        assert len(above) <= 8 - n + 1
        greatest = source.greatest(page, values[n])
        assert greatest == values[n]
    assert source.greatest(page, None) == values[-1]
    assert source.greatest(page, values[0] - 1) is None
    assert source.greatest(dataclasses.replace(page, closed={"updated": values[-1]}), None) is None


def test_the_greatest_value_skips_what_lies_in_the_future(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT)")
    future = [(n, f"9999-12-31 23:{n // 60:02}:{n % 60:02}") for n in range(1000)]
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", future)
    table = tracked(source, "t")
    page = Page(table, table.passes[0], {}, None, 10)
    assert source.greatest(page, at("2024-05-02 00:00:00")) is None
    sqlite_db.connection.execute("INSERT INTO t VALUES (5000, '2024-05-01 10:00:00')")
    assert source.greatest(page, at("2024-05-02 00:00:00")) == at("2024-05-01 10:00:00")
    assert source.greatest(page, at("2024-05-01 09:00:00")) is None
    assert source.greatest(page, None) == at("9999-12-31 23:16:39")


# Deletions, and rows without a stamp


def deletions(source: SQLiteConnector, table: Tracked) -> dict[int, bool]:
    return {r["id"]: r[DELETED] for r in rows(source, table)}


def test_a_zero_date_deletes_nothing_until_it_is_explained(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE users (id INTEGER PRIMARY KEY, updated_at TEXT, deleted_at TEXT DEFAULT '0000-00-00 00:00:00');
        INSERT INTO users (id, updated_at) VALUES (1, '2024-05-01 10:00:00'), (2, '2024-05-01 10:01:00');
        INSERT INTO users VALUES (3, '2024-05-01 10:02:00', '2024-05-01 10:05:00');
    """)
    with pytest.raises(SettingsError, match=r'users\.deleted_at holds "0000-00-00 00:00:00".*id=1.*not_deleted = '):
        rows(source, tracked(source, "users", deleted_at="deleted_at"))
    table = tracked(source, "users", deleted_at="deleted_at", not_deleted=("0000-00-00 00:00:00",))
    assert deletions(source, table) == {1: False, 2: False, 3: True}
    closed: dict[PassName, int | None] = {"updated": at("2024-05-01 11:00:00")}
    assert [r["id"] for r in rows(source, table, 2, closed, table.passes[1])] == [3]


def test_a_zero_deletes_nothing_until_it_is_explained(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE users (id INTEGER PRIMARY KEY, updated_at TEXT, deleted_at INTEGER NOT NULL DEFAULT 0);
        INSERT INTO users VALUES (1, '2024-05-01 10:00:00', 0), (2, '2024-05-01 10:00:00', 1714557600);
    """)
    with pytest.raises(SettingsError, match=r"users\.deleted_at holds 0.*id=1"):
        rows(source, tracked(source, "users", deleted_at="deleted_at"))
    assert deletions(source, tracked(source, "users", deleted_at="deleted_at", not_deleted=(0,))) == {1: False, 2: True}


def test_a_condition_says_what_is_deleted(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE users (id INTEGER PRIMARY KEY, status TEXT, updated_at TEXT);
        INSERT INTO users VALUES (1, 'gone', '2024-05-01 10:00:00'), (2, 'here', '2024-05-01 10:00:00'),
                                 (3, NULL, '2024-05-01 10:00:00');
    """)
    for condition in ("status = 'gone'", "status = 'gone' -- as of old", "users.status IN ('gone') OR 0"):
        assert deletions(source, tracked(source, "users", deleted_when=condition)) == {1: True, 2: False, 3: False}
    wrongs = ("state = 'gone'", "status = ", "status = 'gone')", 'status = "gone"', "\"statsu\" = 'gone'")
    for wrong in wrongs:
        with pytest.raises(SettingsError, match=r'"users": deleted_when = .* (is no condition|there is no column)'):
            rows(source, tracked(source, "users", deleted_when=wrong))


def test_rows_without_a_stamp_are_read_by_the_next_best(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE t (id INTEGER PRIMARY KEY, created_at TEXT, updated_at TEXT);
        INSERT INTO t VALUES (1, '2024-05-01 10:00:00', '2024-05-01 11:00:00'), (2, '2024-05-01 10:00:00', NULL),
                             (3, NULL, NULL), (4, NULL, '2024-05-01 11:00:00'), (5, NULL, NULL);
    """)
    table = tracked(source, "t", created_at="created_at")
    found = {scan.name: [r["id"] for r in rows(source, table, 1, {}, scan)] for scan in table.passes}
    assert found == {"updated": [1, 4], "created": [2], "unstamped": [3, 5]}


def test_stretches_in_which_there_is_nothing_are_not_searched_one_by_one(
    source: SQLiteConnector, sqlite_db: SQLiteFile
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT)")
    sqlite_db.connection.execute("CREATE INDEX t_updated ON t (updated_at, id)")
    stamps = ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00.5Z", "2024-05-01 10:00:01", "2024-05-02", "0000-00-00", "")
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", enumerate(stamps, 1))
    table, asked = tracked(source, "t"), list[str]()
    assert {r["id"] for r in rows(source, table, closed={"updated": at("2024-05-01T10:00:00Z")})} >= {2, 3, 4, 5, 6}
    source.file.connection().set_trace_callback(asked.append)
    sqlite_db.connection.execute("DELETE FROM t WHERE id >= 4")
    assert {r["id"] for r in rows(source, table, closed={"updated": at("2024-05-01T10:00:00Z")})} == {2, 3}
    assert sum("ORDER BY" in statement for statement in asked) == 2
    asked.clear()
    assert rows(source, table, closed={"updated": at("2024-05-03T00:00:00Z")}) == []
    assert not [statement for statement in asked if "ORDER BY" in statement]
