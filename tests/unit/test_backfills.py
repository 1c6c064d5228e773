"""Backfills as people ask for them: keys as they are written, the command, and what the settings say of them."""

from __future__ import annotations

import datetime as dt
import json
import logging
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sidecar
from connectors.sqlite import SQLiteConnector
from sidecar.backfilling.backfills import keys_in, positions
from sidecar.backfilling.requests import Requests
from sidecar.clock import SECOND, Clock, FakeClock, instant
from sidecar.errors import SettingsError
from sidecar.model import Column, Page, Scope, Table, Tracked
from sidecar.runner import Runner
from tests.cases.harness import Project, Row
from tests.conftest import SQLiteFile
from tests.servers import Database, make

ITEMS = "CREATE TABLE items (id INTEGER PRIMARY KEY, n INTEGER, updated_at TEXT NOT NULL)"


def keyed(*types: pa.DataType) -> Tracked:
    columns = tuple(Column(f"k{n}", str(type_), type_) for n, type_ in enumerate(types))
    names = tuple(c.name for c in columns)
    return Tracked(Table("t", ("t",), columns, names), names, "updated_at", columns=columns)


# -- keys as they are written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "given", "found"),
    [
        ([pa.int64()], ["-9223372036854775808", "9007199254740993"], [(-(2**63),), (9007199254740993,)]),
        ([pa.int32()], [[7], "7", (8,)], [(7,), (8,)]),
        ([pa.string(), pa.int64()], ["a,1", '"a,b",2', '"say ""so""",3'], [("a", 1), ("a,b", 2), ('say "so"', 3)]),
        ([pa.string()], ["", " x ", "é"], [("",), (" x ",), ("é",)]),
        ([pa.date32()], ["2024-05-01", [dt.date(2024, 5, 1)]], [(19844,)]),
        ([pa.timestamp("us", "UTC")], ["2024-05-01T10:00:00Z"], [(1714557600000000,)]),
        ([pa.decimal128(10, 2)], ["1.50"], [("1.50",)]),
        ([pa.bool_()], ["true"], [(True,)]),
        ([pa.binary()], [[b"\0x"]], [(b"\0x",)]),
    ],
)
def test_keys_are_taken_in_the_types_of_their_columns(
    types: list[pa.DataType], given: Sequence[Any], found: list[Any]
) -> None:
    assert list(positions(keyed(*types), given)) == found


@pytest.mark.parametrize(
    ("types", "given", "named"),
    [
        ([pa.int64()], ["1", "one"], "'one' is no value of its key column \"k0\""),
        ([pa.int64()], ["9223372036854775808"], "9223372036854775808"),
        ([pa.int32()], [[2**40]], str(2**40)),
        ([pa.int64()], ["1.5"], "1.5"),
        ([pa.int64()], [[None]], "None is no value"),
        ([pa.date32()], ["yesterday"], "yesterday"),
        ([pa.int64()], ["1,2"], r"'1,2' is no key of it: its key is \(k0\), so a key has 1 value$"),
        ([pa.int64(), pa.int64()], ["1,2", "3"], r"'3' is no key of it: its key is \(k0, k1\)"),
        ([pa.int64()], [], "no keys are given"),
    ],
)
def test_what_is_no_key_is_named(types: list[pa.DataType], given: Sequence[Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        positions(keyed(*types), given)


@pytest.mark.parametrize("given", [5, "5,6"])
def test_keys_that_are_no_list_are_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="give a list of keys"):
        positions(keyed(pa.int64()), given)


def test_keys_stand_in_a_file_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text("\ufeffa,1\n\nb,2\r\n", encoding="utf-8")
    assert keys_in(["x,0", f"@{path}"]) == ["x,0", "a,1", "b,2"]
    path.write_text("a\u2028b\nc\x85d\x0c,1\n", encoding="utf-8")
    assert keys_in([f"@{path}"]) == ["a\u2028b", "c\x85d\x0c,1"]
    with pytest.raises(SettingsError, match="cannot be read"):
        keys_in([f"@{tmp_path / 'nowhere'}"])


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def items(tmp_path: Path, sqlite_db: SQLiteFile) -> Project:
    sqlite_db.connection.execute(ITEMS)
    sqlite_db.connection.executemany(
        "INSERT INTO items VALUES (?, ?, '2024-05-01 10:00:00')", [(n, n % 3) for n in range(10)]
    )
    return Project(tmp_path, sqlite_db.url, {"items": {"chunk_size": 3}})


def test_a_backfill_is_asked_for_beside_a_process_that_runs_which_says_how_many_keys_are_not_there(
    items: Project, caplog: pytest.LogCaptureFixture
) -> None:
    items.poll()
    with sidecar.open(items.path) as running:
        assert running.store.tables() == {"items"}, "opened, and so locked"
        asked = items.cli("backfill", "items", "--keys", "3", "--keys", "4", "--keys", "77")
        assert (asked.code, "3 values of (id)" in asked.out) == (0, True), asked.text
        before = running.log("items").last()
        running.poll()
        assert [(r["id"], r["_origin"]) for r in running.log("items").rows(before)] == [
            (3, "backfill"),
            (4, "backfill"),
        ]
        (found,) = [b for b in running.backfills("items") if b.kind == "requested"]
        assert (found.state, found.read, found.written) == ("done", 2, 2)
    assert "table=items backfill=done: 1 of 3 keys not found in the source" in caplog.text


def test_backfills_are_listed_and_cancelled(items: Project) -> None:
    items.poll()
    assert items.cli("backfill", "items", "--where", "n = 1").code == 0
    assert items.cli("backfill", "items", "--purge").code == 0
    listed = json.loads(items.cli("backfill", "--list", "--json").out)
    assert [(b["table"], b["state"]) for b in listed] == [("items", "done"), ("items", "waiting"), ("items", "waiting")]
    table = items.cli("backfill", "items", "--list").out
    assert "where n = 1" in table
    assert "then purge" in table
    assert "2 cancelled" in items.cli("backfill", "items", "--cancel").out
    assert "no backfill is waiting" in items.cli("backfill", "items", "--cancel").out
    assert items.poll()["items"] == []


def test_a_backfill_that_is_cancelled_under_way_says_how_far_it_has_come(items: Project) -> None:
    items.poll()
    with sidecar.open(items.path) as sc:
        sc.request_backfill("items")
        stop = threading.Event()
        Runner(sc, stop=stop, on_step=lambda _: stop.set()).poll()
        assert len(sc.cancel_backfill("items")) == 1
        ended = sc.backfills("items")[-1]
        assert (ended.state, ended.read, ended.written, ended.began is None) == ("cancelled", 3, 3, False)


def test_of_keys_it_is_known_how_many_are_still_to_come(items: Project) -> None:
    items.poll()
    with sidecar.open(items.path) as sc:
        sc.request_backfill("items", keys=[1, 3, 5, 7])
        stop = threading.Event()
        Runner(sc, stop=stop, on_step=lambda _: stop.set()).poll()
        under_way = sc.backfills("items")[-1]
        assert (under_way.state, under_way.read, under_way.expected) == ("running", 3, 4)
        assert under_way.eta is not None


def test_a_backfill_of_a_table_that_is_not_followed_any_more_can_be_cancelled(
    items: Project, sqlite_db: SQLiteFile
) -> None:
    sqlite_db.connection.execute(ITEMS.replace("items", "others"))
    items.poll()
    assert items.cli("backfill", "items", "--keys", "3").code == 0
    items.tables = {"others": {}}
    items.write()
    assert "1 cancelled" in items.cli("backfill", "items", "--cancel").out


def test_what_the_settings_would_ask_for_again_is_not_said_to_be_cancelled(items: Project) -> None:
    requests = Requests(items.folder / "state")
    requests.ask("items", 1, kind="automatic")
    refused = items.cli("backfill", "items", "--cancel")
    assert (refused.code, "auto_backfill = false" in refused.text) == (2, True), refused.text
    assert [r.kind for r in requests.open("items")] == ["automatic"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["items", "--keys", "x"], "'x' is no value of its key column"),
        (["items", "--keys", "@nowhere"], "cannot be read"),
        (["items", "--keys", "1", "--quarantined"], "--quarantined says which rows"),
        # Those that the condition leaves out would be set aside no more, and not have come either.
        (["items", "--where", "n = 1", "--quarantined"], "--quarantined says which rows"),
        (["items", "--where", "n = 1", "--purge"], "a condition cannot be asked of"),
        (["items", "--where", " "], "the condition is empty"),
        (["items", "--empty"], "--empty is about a purge"),
        (["nothing"], '"nothing" is not followed; followed are: items'),
        ([], "name the table to backfill"),
    ],
)
def test_what_cannot_be_asked_for_is_said(items: Project, arguments: list[str], said: str) -> None:
    items.poll()
    found = items.cli("backfill", *arguments)
    assert (found.code, said in found.err) == (2, True), found.text
    assert len(json.loads(items.cli("backfill", "--list", "--json").out)) == 1


def test_a_condition_that_the_source_refuses_is_refused_when_it_is_asked_for(items: Project) -> None:
    items.poll()
    found = items.cli("backfill", "items", "--where", "nowhere = 1")
    assert (found.code, "nowhere" in found.err, "Traceback" in found.text) == (2, True, False), found.text
    assert items.cli("backfill", "--list").text.count("waiting") == 0


def test_a_key_that_the_source_refuses_is_refused_when_it_is_asked_for(pg: Database, tmp_path: Path) -> None:
    make(pg.connect(), "CREATE TABLE t (id uuid PRIMARY KEY, updated_at timestamptz NOT NULL)")
    project = Project(tmp_path, pg.reader_url, {"t": {}})
    with sidecar.open(project.path) as sc:
        with pytest.raises(SettingsError, match='type uuid: "none"'):
            sc.request_backfill("t", keys=["none"])
        assert sc.backfills() == []


def test_an_error_that_stays_the_same_is_said_once_a_minute(
    items: Project, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    items.poll(clock=clock)
    Requests(items.folder / "state").ask("items", 1, scope=Scope(where="nowhere = 1"))
    with sidecar.open(items.path, clock=clock) as sc:
        runner = Runner(sc)
        for _ in range(10):
            clock.advance(10)
            assert runner.run(once=True, interval=1) == 2
    assert sum("nowhere" in record.message for record in caplog.records if record.levelname == "ERROR") == 2


def test_a_condition_that_holds_no_more_fails_that_table_until_it_is_cancelled(items: Project) -> None:
    items.poll()
    Requests(items.folder / "state").ask("items", 1, scope=Scope(where="nowhere = 1"))
    found = items.cli("run", "--once")
    assert (found.code, "nowhere" in found.err) == (2, True), found.text
    assert "Traceback" not in found.text
    assert items.cli("backfill", "items", "--cancel").code == 0
    assert items.cli("run", "--once").code == 0


def test_a_damaged_request_holds_its_own_table_only(items: Project, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.execute(ITEMS.replace("items", "others"))
    sqlite_db.connection.execute("INSERT INTO others VALUES (1, 1, '2024-05-01 10:00:00')")
    items.poll()
    items.tables = {"items": {}, "others": {}}
    items.write()
    folder = items.folder / "state" / "backfills" / "items"
    (folder / "0000000000000001-aaaaaa.json").write_text("{")
    found = items.cli("run", "--once")
    assert found.code != 0
    assert "not a readable request" in found.err
    assert "Traceback" not in found.text
    assert len(items.rows("others")) == 1


# -- the settings ------------------------------------------------------------------------------------------------------


def test_a_version_brings_that_table_again_and_once(items: Project, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.execute(ITEMS.replace("items", "others"))
    sqlite_db.connection.execute("INSERT INTO others VALUES (1, 1, '2024-05-01 10:00:00')")
    items.tables = {"items": {"backfill_version": "1"}, "others": {}}
    items.write()
    assert {t: len(rows) for t, rows in items.poll().items()} == {"items": 10, "others": 1}
    assert {t: len(rows) for t, rows in items.poll().items()} == {"items": 0, "others": 0}
    items.tables = {"items": {"backfill_version": "2"}, "others": {}}
    items.write()
    assert {t: len(rows) for t, rows in items.poll().items()} == {"items": 10, "others": 0}
    assert {t: len(rows) for t, rows in items.poll().items()} == {"items": 0, "others": 0}
    shutil.rmtree(items.folder / "state" / "db")
    assert {t: len(rows) for t, rows in items.poll().items()} == {"items": 0, "others": 0}
    with sidecar.open(items.path) as sc:
        sc.set_watermark("items", "2025-01-01T00:00:00Z")
    assert items.poll()["items"] == [], "a position that was set says nothing of what a backfill has brought"


def test_a_state_that_was_lost_calls_no_backfill_cancelled_that_was_done(
    items: Project, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sidecar")
    items.poll()
    with sidecar.open(items.path) as sc:
        (done,) = sc.backfills()
        assert (done.state, done.began is not None and done.asked <= done.began <= (done.ended or 0)) == ("done", True)
    shutil.rmtree(items.folder / "state" / "db")
    assert items.poll()["items"] == []
    assert "rolled_forward" in caplog.text
    assert "cancelled" not in caplog.text


def written(execute: Any, clock: Clock, key: int, back: float) -> None:
    at = instant(clock.now() - round(back * SECOND)).strftime("%Y-%m-%d %H:%M:%S.%f")
    execute(f"INSERT INTO items VALUES ({key}, 0, '{at}+00')")


def only_changes(project: Project, execute: Any, clock: Any) -> None:
    for key, back in enumerate([7200, 30, 5, 0]):
        written(execute, clock, key, back)
    assert project.poll(clock=clock)["items"] == []
    written(execute, clock, 10, 1)
    assert [row["id"] for row in project.poll(clock=clock)["items"]] == [10]
    shutil.rmtree(project.folder / "state" / "db")
    assert project.poll(clock=clock)["items"] == []
    written(execute, clock, 11, 1)
    execute("UPDATE items SET n = 5, updated_at = (SELECT max(updated_at) FROM items) WHERE id = 2")
    found: list[Row] = project.poll(clock=clock)["items"]
    assert sorted((row["id"], row["n"]) for row in found) == [(2, 5), (11, 0)]
    with sidecar.open(project.path, clock=clock) as sc:
        sc.request_backfill("items")
    assert sorted(row["id"] for row in project.poll(clock=clock)["items"]) == [0, 1, 2, 3, 10, 11]


def test_only_changes_from_now_on_are_delivered_where_that_is_asked_for(
    tmp_path: Path, sqlite_db: SQLiteFile, clock: FakeClock
) -> None:
    sqlite_db.connection.execute(ITEMS)
    project = Project(tmp_path, sqlite_db.url, {"items": {"auto_backfill": False, "lookback": "60s"}})
    only_changes(project, sqlite_db.connection.execute, clock)


def test_only_changes_from_now_on_are_delivered_of_postgresql_too(tmp_path: Path, pg: Database) -> None:
    from sidecar.clock import SystemClock

    writer = pg.connect()
    writer.execute("CREATE TABLE items (id int PRIMARY KEY, n int, updated_at timestamptz NOT NULL)")
    project = Project(tmp_path, pg.reader_url, {"items": {"auto_backfill": False, "lookback": "60s"}})
    only_changes(project, lambda q: writer.execute(q.encode()), SystemClock())


def test_a_scope_that_is_asked_for_leaves_a_reset_as_it_is(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.execute(ITEMS)
    sqlite_db.connection.executemany("INSERT INTO items VALUES (?, 0, '2024-05-01 10:00:00')", [(n,) for n in range(5)])
    project = Project(tmp_path, sqlite_db.url, {"items": {"auto_backfill": False}})
    assert project.poll()["items"] == []
    with sidecar.open(project.path) as sc:
        sc.reset_watermark("items")
        sc.request_backfill("items", keys=["1"])
    assert sorted(row["id"] for row in project.poll()["items"]) == [0, 1, 2, 3, 4]


def test_rows_that_are_set_aside_are_read_again_once_they_are_mended(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.execute(ITEMS)
    s1.executemany(
        "INSERT INTO items VALUES (?, ?, '2024-05-01 10:00:00')",
        [(1, 1), (2, "soon"), (3, "later"), (4, 4)],
    )
    project = Project(tmp_path, sqlite_db.url, {"items": {"on_bad_value": "quarantine", "chunk_size": 2}})
    assert sorted(row["id"] for row in project.poll()["items"]) == [1, 4]
    # Mended without a new stamp: no poll sees it.
    s1.execute("UPDATE items SET n = 2 WHERE id = 2")
    with sidecar.open(project.path) as sc:
        (status,) = sc.status()
        assert status.quarantined == 2
        assert sc.request_backfill("items", quarantined=True) is not None
    assert [row["id"] for row in project.poll()["items"]] == [2]
    with sidecar.open(project.path) as sc:
        (status,) = sc.status()
        assert status.quarantined == 1
    s1.execute("UPDATE items SET n = 3 WHERE id = 3")
    with sidecar.open(project.path) as sc:
        sc.request_backfill("items", quarantined=True)
    assert [row["id"] for row in project.poll()["items"]] == [3]
    with sidecar.open(project.path) as sc:
        assert sc.request_backfill("items", quarantined=True) is None


def test_a_backfill_has_begun_once_its_rows_are_read_and_not_while_it_waits_for_another(
    tmp_path: Path, sqlite_db: SQLiteFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, read = FakeClock(), SQLiteConnector.read

    def slow(self: SQLiteConnector, page: Page) -> pa.Table:
        if page.scan.name == "all":
            clock.advance(30)
        return read(self, page)

    monkeypatch.setattr(SQLiteConnector, "read", slow)
    sqlite_db.connection.executescript(
        f"{ITEMS}; INSERT INTO items VALUES (1, 1, '2024-05-01 10:00:00'), (2, 2, '2024-05-01 10:00:00');"
        f"{ITEMS.replace('items', 'others')}; INSERT INTO others SELECT * FROM items;"
    )
    project = Project(tmp_path, sqlite_db.url, {"items": {"chunk_size": 2}, "others": {"chunk_size": 3}})
    with sidecar.open(project.path, clock=clock) as sc:
        sc.request_backfill("items")
        sc.request_backfill("others")
        clock.advance(600)
        caplog.set_level(logging.INFO, "sidecar")
        sc.poll()
        began = {b.table: ((b.began or 0) - b.asked) // SECOND for b in sc.backfills()}
        took = {b.table: ((b.ended or 0) - (b.began or 0)) // 1000 for b in sc.backfills()}
    assert began["items"] == 600
    assert began["others"] >= began["items"] + 60
    for table, ms in took.items():
        assert f"table={table} rows=2 offset=1 backfill=done ms={ms}" in caplog.text
