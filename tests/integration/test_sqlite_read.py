"""What SQLite's tables look like to Sidecar, and which rows a page holds: exact values, exact order, exact errors."""

from __future__ import annotations

import dataclasses

import pytest

from connectors.sqlite import SQLiteConnector
from connectors.sqlite_cursor import Cursors
from sidecar import codec
from sidecar.clock import FakeClock
from sidecar.connector import Source
from sidecar.errors import SettingsError, SourceUnavailable
from sidecar.model import DELETED, Page, Pass, PassName, Position, Table
from tests.conftest import SQLiteFile
from tests.integration.sqlite_reading import at, fill, rows, tracked

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
