"""Tables that others put into a database which Sidecar follows as a whole, and what they do to those beside them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import sidecar
from sidecar.clock import FakeClock
from sidecar.errors import SettingsError, SourceUnavailable, StateDamaged
from tests.cases.harness import Project, kinds, sqlite_file, wait_for
from tests.servers import Database, fresh_database

STAMPS = (
    "created_at timestamptz NOT NULL DEFAULT '2024-05-01+00', updated_at timestamptz NOT NULL DEFAULT '2024-05-01+00'"
)
PLAIN = f"CREATE TABLE plain (id int PRIMARY KEY, {STAMPS}); INSERT INTO plain VALUES (1);"


@pytest.mark.parametrize("through", ["the command line", "Python"])
def test_a_new_table_that_cannot_be_followed_is_named_and_the_others_go_on(
    tmp_path: Path, pg: Database, through: str
) -> None:
    s1 = pg.connect()
    s1.execute(PLAIN.encode())
    project = Project(tmp_path, None, {}, source={"url": pg.reader_url, "include": ["public.*"]})
    project.poll()
    s1.execute(f"CREATE TABLE keyless (id int, {STAMPS}); CREATE TABLE stampless (id int PRIMARY KEY);".encode())
    s1.execute(f"CREATE TABLE fresh (id int PRIMARY KEY, {STAMPS})".encode())
    s1.execute("INSERT INTO plain VALUES (2, now(), now()); INSERT INTO fresh VALUES (1)")
    if through == "Python":
        with sidecar.open(project.path) as sc:
            for _ in range(2):
                with pytest.raises(SettingsError, match=r'"(keyless|stampless)"'):
                    sc.poll()
    else:
        run = project.cli("run", "--once")
        assert run.code == 2
        assert 'table "keyless": it has no primary key' in run.err
        assert 'table "stampless": there is no column "updated_at"' in run.err
    assert kinds(project.rows("plain"), "id") == [("insert", 1), ("insert", 2)]
    assert kinds(project.rows("fresh"), "id") == [("insert", 1)]
    s1.execute("DROP TABLE keyless, stampless")
    assert project.cli("run", "--once").code == 0


def test_a_partition_with_a_section_of_its_own_is_not_said_to_be_gone_however_it_is_spelt(
    tmp_path: Path, pg: Database
) -> None:
    s1 = pg.connect()
    s1.execute(PLAIN.encode())
    s1.execute(f"CREATE TABLE events (id int PRIMARY KEY, {STAMPS}) PARTITION BY RANGE (id)".encode())
    s1.execute("CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (1) TO (10); INSERT INTO events VALUES (1)")
    source = {"url": pg.reader_url, "include": ["public.*"], "exclude": ["public.events"]}
    project = Project(tmp_path, None, {"public.events_1": {}}, source=source)
    project.poll()
    s1.execute("INSERT INTO events VALUES (2, now(), now())")
    run = project.cli("run", "--once")
    assert (run.code, run.err.count("table=events_1 rows=1 offset=2")) == (0, 1), run.err


def test_a_key_of_far_away_dates_is_named_and_the_others_go_on(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    s1.execute(PLAIN.encode())
    s1.execute(f"CREATE TABLE days (d date, n numeric(9,2), PRIMARY KEY (d, n), {STAMPS})".encode())
    s1.execute("INSERT INTO days VALUES ('0044-03-15 BC', 1), ('2024-05-01', 1), ('infinity', 1), ('infinity', 2)")
    project = Project(tmp_path, pg.reader_url, {"days": {}, "plain": {}})
    run = project.cli("run", "--once")
    assert run.code == 2
    assert 'table "days": column "d" holds' in run.err
    assert 'infinity = { d = "keep as string" }' in run.err
    assert kinds(project.rows("plain"), "id") == [("insert", 1)]
    project.tables = {"days": {"infinity": {"d": "keep as string"}, "chunk_size": 1}, "plain": {}}
    project.write()
    project.poll()
    assert [d for d, _ in project.merged("days", "d", "n")] == ["0044-03-15 BC", "2024-05-01", "infinity", "infinity"]


def test_a_key_of_no_numbers_is_named_and_the_others_go_on(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    s1.execute(PLAIN.encode())
    s1.execute(f"CREATE TABLE lots (n numeric(9,2), id int, PRIMARY KEY (n, id), {STAMPS})".encode())
    s1.execute("INSERT INTO lots VALUES (1, 1), ('NaN', 2), ('NaN', 3), ('NaN', 4)")
    project = Project(tmp_path, pg.reader_url, {"lots": {}, "plain": {}})
    with pytest.raises(SettingsError, match=r'"lots": column "n" .*NaN .*Say infinity = { n = "keep as string" }'):
        project.poll()
    assert kinds(project.rows("plain"), "id") == [("insert", 1)]


def test_another_database_is_not_polled_from_where_this_one_stands(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    s1.execute(PLAIN.encode())
    project = Project(tmp_path, pg.reader_url, {"plain": {}})
    project.poll()
    with fresh_database(pg.server) as other:
        other.connect().execute(PLAIN.encode())
        project.write(source={"url": other.reader_url})
        run = project.cli("run", "--once")
        assert run.code == 2
        assert f'"{pg.dbname}", which is still there' in run.err
        assert f'"{other.dbname}"' in run.err
        project.write(source={"url": pg.url})
        assert project.poll() == {"plain": []}


def test_a_source_of_another_kind_is_not_polled_from_where_this_one_stands(tmp_path: Path, pg: Database) -> None:
    pg.connect().execute("CREATE TABLE u (id int PRIMARY KEY, ver bigint NOT NULL); INSERT INTO u VALUES (2, 5)")
    file = tmp_path / "s.db"
    sqlite_file(file, "CREATE TABLE u (id INTEGER PRIMARY KEY, ver INTEGER); INSERT INTO u VALUES (1, 10)").close()
    project = Project(tmp_path, f"sqlite:///{file}", {"u": {"updated_at": "ver"}})
    project.poll()
    project.write(source={"url": pg.reader_url})
    run = project.cli("run", "--once")
    assert run.code == 2
    assert "was made from a sqlite source" in run.err
    assert kinds(project.rows("u"), "id") == [("insert", 1)]


def test_a_state_that_was_made_before_the_kind_of_source_was_noted_goes_on(tmp_path: Path, pg: Database) -> None:
    pg.connect().execute(PLAIN.encode())
    project = Project(tmp_path, pg.reader_url, {"plain": {}})
    project.poll()
    noted = tmp_path / "state" / "source"
    noted.write_text(pg.dbname)
    assert project.poll() == {"plain": []}
    assert noted.read_text() == f"{pg.dbname}\npostgresql"


def test_a_new_table_that_a_pattern_lets_in_is_followed_by_a_loop_within_a_minute(tmp_path: Path, pg: Database) -> None:
    s1, clock = pg.connect(), FakeClock()
    s1.execute(PLAIN.encode())
    project = Project(tmp_path, None, {}, source={"url": pg.reader_url, "include": ["public.*"]})
    with sidecar.open(project.path, clock=clock) as sc:
        sc.poll()
        s1.execute(PLAIN.replace("plain", "fresh").encode())
        assert list(sc.poll()) == ["plain"]
        clock.advance(61)
        assert {name: found.rows for name, found in sc.poll().items()} == {"fresh": 1, "plain": 0}


def test_what_is_left_out_in_vain_is_named(tmp_path: Path) -> None:
    columns = "(id INTEGER PRIMARY KEY, updated_at TEXT)"
    file = tmp_path / "s.db"
    sqlite_file(file, f"CREATE TABLE orders {columns}; CREATE TABLE customers {columns}; ").close()
    source = {"url": f"sqlite:///{file}", "include": ["*"], "exclude": ["custmers", "gone", "orders"]}
    project = Project(tmp_path, None, {"orders": {}}, source=source)
    for command in (("run", "--once"), ("check",)):
        run = project.cli(*command)
        assert 'no table matches "custmers"; did you mean "customers"? That one is not left out' in run.err + run.out
        assert '"orders" leaves "orders" out, and [tables.orders] has it followed' in run.err + run.out
        assert "gone" not in run.err + run.out
    project.tables = {}
    project.write(source={**source, "exclude": ["*"]})
    run = project.cli("run", "--once")
    assert run.code == 2
    assert "leave none of the 2 tables to be followed" in run.err


def test_a_source_that_goes_away_before_it_is_known_which_it_is_is_waited_for(tmp_path: Path, pg: Database) -> None:
    s1, stop = pg.connect(), threading.Event()
    s1.execute(PLAIN.encode())
    project = Project(tmp_path, pg.reader_url, {"plain": {}})
    with sidecar.open(project.path) as sc:
        assert list(sc.tracked) == ["plain"]
        s1.execute(f'ALTER ROLE "{pg.reader}" CONNECTION LIMIT 0'.encode())
        s1.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (pg.reader,))
        with pytest.raises(SourceUnavailable):
            sc.poll()
        assert not list((tmp_path / "state" / "backfills").rglob("*.json")), "nothing is begun of a database unknown"
        loop = threading.Thread(target=sc.run, kwargs={"interval": 0.1, "stop": stop})
        loop.start()
        loop.join(0.5)
        assert loop.is_alive()
        s1.execute(f'ALTER ROLE "{pg.reader}" CONNECTION LIMIT -1'.encode())
        came = wait_for(lambda: bool(list(sc.log("plain").rows())))
        stop.set()
        loop.join()
    assert came


def test_another_file_is_not_polled_from_where_this_one_stands_and_a_moved_one_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = "CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT); INSERT INTO t VALUES ({}, '2024-05-0{} 10:00');"
    first, other = tmp_path / "first.db", tmp_path / "other.db"
    sqlite_file(first, setup.format(1, 9)).close()
    sqlite_file(other, setup.format(2, 1)).close()
    project = Project(tmp_path / "p", f"sqlite:///{first}", {"t": {}})
    project.poll()
    project.write(source={"url": f"sqlite:///{other}"})
    with sidecar.open(project.path) as sc:
        for _ in range(2):
            with pytest.raises(SettingsError, match=r"first\.db.*other\.db"):
                sc.poll()
        assert list(sc.tracked) == ["t"]
        with pytest.raises(SettingsError, match=r"first\.db.*other\.db"):
            sc.run(once=True)
    assert [row["id"] for row in project.rows("t")] == [1]
    first.rename(tmp_path / "moved.db")
    project.write(source={"url": f"sqlite:///{tmp_path}/moved.db"})
    assert project.poll() == {"t": []}
    assert f'no other database is known as "{first}" any more; "{tmp_path}/moved.db" is taken for it' in caplog.text
    other.rename(first)
    assert project.poll() == {"t": []}, "what stands there now is another one"
    (tmp_path / "p" / "state" / "source").write_bytes(b"\xff")
    with pytest.raises(StateDamaged, match="It says which database this state is of"):
        project.poll()


def test_a_key_that_holds_for_the_parent_alone_is_named_where_a_child_has_it_too(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    s1.execute(PLAIN.encode())
    s1.execute("CREATE TABLE child () INHERITS (plain); INSERT INTO child VALUES (2)")
    project = Project(tmp_path, pg.reader_url, {"plain": {}})
    assert kinds(project.poll()["plain"], "id") == [("insert", 1), ("insert", 2)]
    s1.execute("INSERT INTO child VALUES (1, now(), now()), (1, now(), now())")
    with pytest.raises(SettingsError, match=r'table "plain": 1 key stands more than once \(first: id=1\)'):
        project.poll()
    assert "is not unique (first: id=1)" in project.cli("check").text


@pytest.mark.parametrize("condition", ["true; DROP TABLE plain", "1=1) OR (1=1", "nope = 1", "id"])
def test_a_condition_that_is_none_deletes_nothing_and_is_named(tmp_path: Path, pg: Database, condition: str) -> None:
    pg.connect().execute(PLAIN.encode())
    project = Project(tmp_path, pg.reader_url, {"plain": {"deleted_when": condition}})
    with pytest.raises(SettingsError, match=r'table "plain": the condition ') as raised:
        project.poll()
    assert condition in str(raised.value)
    assert not list((tmp_path / "state").rglob("*.parquet"))
