# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""PostgreSQL as it is given to a reader: few rights, odd passwords, cancelled queries, locks, and servers that go away."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pyarrow.parquet as pq
import pytest

import sidecar
from sidecar.changelog import ChangeLog
from sidecar.clock import SystemClock
from sidecar.errors import SettingsError, SidecarError, SourceUnavailable
from tests.cases.harness import Project, kinds
from tests.servers import Database, free_port, url_of

STAFF = """\
CREATE ROLE rc55_reader LOGIN PASSWORD 'rc55';
ALTER ROLE rc55_reader SET default_transaction_read_only = on;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
CREATE TABLE staff (id int PRIMARY KEY, name text, tax_no text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL, deleted_at timestamptz);
GRANT SELECT (id, name, created_at, updated_at, deleted_at) ON staff TO rc55_reader;
INSERT INTO staff VALUES (1,'n1','SECRET-1','2024-05-01 10:00+00','2024-05-01 10:00+00',NULL);
"""

CLICKS = """\
CREATE ROLE rc56_reader LOGIN PASSWORD 'rc56';
CREATE TABLE clicks (id bigint PRIMARY KEY, pad text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
GRANT SELECT ON clicks TO rc56_reader;
INSERT INTO clicks SELECT g, repeat('y', 300), '2024-05-01 10:00+00'::timestamptz + g * interval '1 ms', '2024-05-01 10:00+00'::timestamptz + g * interval '1 ms' FROM generate_series(1,300000) g;
"""

HELLO = r"""
CREATE ROLE "rc65 user@x" LOGIN PASSWORD 'p@ss:w/rd#1%2F?&=+ é''"\';
CREATE TABLE hello (id int PRIMARY KEY, v text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
GRANT SELECT ON hello TO "rc65 user@x";
INSERT INTO hello VALUES (1,'hi','2024-05-01 10:00+00','2024-05-01 10:00+00');
"""
PASSWORD = "p@ss:w/rd#1%2F?&=+ é'\"\\"
USER = "rc65 user@x"


class Role:
    """A role of the server's, gone with the test."""

    def __init__(self, pg: Database, setup: str, name: str) -> None:
        self.pg, self.name = pg, name
        self.s1 = pg.connect()
        self._drop()
        self.s1.execute(setup)
        self.s1.execute(
            f'GRANT CONNECT ON DATABASE "{pg.dbname}" TO "{name}"; GRANT USAGE ON SCHEMA public TO "{name}"'
        )

    def _drop(self) -> None:
        if self.s1.execute("SELECT FROM pg_roles WHERE rolname = %s", (self.name,)).fetchall():
            self.s1.execute(f'DROP OWNED BY "{self.name}"; DROP ROLE "{self.name}"')

    def __enter__(self) -> psycopg.Connection[tuple[Any, ...]]:
        return self.s1

    def __exit__(self, *_: object) -> None:
        self._drop()


def test_a_reader_with_column_grants_gets_the_columns_it_may_read(
    tmp_path: Path, pg: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """RC-55"""
    url = url_of(pg.host, pg.port, "rc55_reader", "rc55", pg.dbname)
    with Role(pg, STAFF, "rc55_reader") as s1:
        s1.execute(f'REVOKE TEMPORARY ON DATABASE "{pg.dbname}" FROM PUBLIC')
        objects = s1.execute("SELECT count(*) FROM pg_class").fetchone()
        first = Project(tmp_path / "first", url, {"staff": {}})
        (row,) = first.poll()["staff"]
        assert (row["id"], "tax_no" in row) == (1, False)
        s1.execute("GRANT SELECT ON staff TO rc55_reader")
        first.poll()
        s1.execute("REVOKE SELECT ON staff FROM rc55_reader")
        s1.execute("GRANT SELECT (id, created_at, updated_at, deleted_at) ON staff TO rc55_reader")
        assert first.poll()["staff"] == []
        assert "Rows are told apart by their content" in caplog.text
        assert "restored" not in caplog.text
        s1.execute("GRANT SELECT (name) ON staff TO rc55_reader")
        columns = ["id", "name", "created_at", "updated_at", "deleted_at"]
        second = Project(tmp_path / "second", url, {"staff": {"columns": columns}})
        (row,) = second.poll()["staff"]
        assert [k for k in row if not k.startswith("_")] == columns
        refused = Project(tmp_path / "refused", url, {"staff": {"columns": ["id", "tax_no"]}})
        with pytest.raises(SettingsError, match=r'"staff".*"tax_no"'):
            refused.poll()
        s1.execute("SELECT pg_stat_force_next_flush()" if s1.info.server_version >= 150000 else "SELECT 1")
        assert s1.execute("SELECT count(*) FROM pg_class").fetchone() == objects
        assert s1.execute(
            "SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = 'staff'"
        ).fetchone() in [(1, 0, 0), (0, 0, 0)]


@pytest.mark.parametrize("what", ["schema", "table", "key", "cursor", "login", "connect"])
def test_a_missing_right_is_named_with_its_grant(tmp_path: Path, pg: Database, what: str) -> None:
    with Role(pg, "CREATE ROLE few_rights LOGIN PASSWORD 'few'", "few_rights") as s1:
        s1.execute(
            "CREATE SCHEMA hr; GRANT USAGE ON SCHEMA hr TO few_rights; CREATE TABLE hr.staff (id int PRIMARY KEY,"
            " name text, updated_at timestamptz NOT NULL); GRANT SELECT ON hr.staff TO few_rights"
        )
        take = {
            "schema": "REVOKE USAGE ON SCHEMA hr FROM few_rights",
            "table": "REVOKE SELECT ON hr.staff FROM few_rights",
            "key": "REVOKE SELECT ON hr.staff FROM few_rights; GRANT SELECT (name, updated_at) ON hr.staff TO few_rights",
            "cursor": "REVOKE SELECT ON hr.staff FROM few_rights; GRANT SELECT (name, id) ON hr.staff TO few_rights",
            "login": "ALTER ROLE few_rights NOLOGIN",
            "connect": f'REVOKE CONNECT ON DATABASE "{pg.dbname}" FROM few_rights',
        }
        s1.execute(take[what])
        project = Project(tmp_path, url_of(pg.host, pg.port, "few_rights", "few", pg.dbname), {"hr.staff": {}})
        with pytest.raises(SettingsError) as raised:
            project.poll()
        said = str(raised.value)
        assert {"login": "LOGIN", "connect": "CONNECT", "cursor": "updated_at"}.get(what, "GRANT") in said
        assert ("hr.staff" in said) == (what not in ("login", "connect"))


def test_row_security_shows_a_reader_its_rows_only_and_says_so(
    tmp_path: Path, pg: Database, caplog: pytest.LogCaptureFixture
) -> None:
    s1 = pg.connect()
    s1.execute(
        "CREATE TABLE docs (id int PRIMARY KEY, owner text, updated_at timestamptz NOT NULL DEFAULT now());"
        "ALTER TABLE docs ENABLE ROW LEVEL SECURITY;"
        f"CREATE POLICY mine ON docs TO {pg.reader} USING (owner = 'sidecar');"
        "INSERT INTO docs VALUES (1, 'sidecar'), (2, 'other'), (3, 'sidecar')"
    )
    project = Project(tmp_path, pg.reader_url, {"docs": {}})
    assert project.cli("check").text.count("row-level security is on for this role") == 1
    assert sorted(r["id"] for r in project.poll()["docs"]) == [1, 3]
    assert caplog.text.count('table "docs": row-level security is on for this role') == 1
    s1.execute("UPDATE docs SET owner = 'sidecar', updated_at = now() WHERE id = 2")
    assert [r["id"] for r in project.poll()["docs"]] == [2]


def test_a_row_that_a_policy_hides_is_not_purged(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    s1.execute(
        "CREATE TABLE docs (id int PRIMARY KEY, owner text, updated_at timestamptz NOT NULL DEFAULT now());"
        f"CREATE POLICY whole ON docs TO {pg.reader} USING (true); CREATE POLICY others ON docs TO pg_monitor USING (false);"
        "ALTER TABLE docs ENABLE ROW LEVEL SECURITY; INSERT INTO docs VALUES (1, 'sidecar'), (2, 'other')"
    )
    project = Project(tmp_path, pg.reader_url, {"docs": {}})
    assert len(project.poll()["docs"]) == 2
    with sidecar.open(project.path) as sc:
        assert sc.request_backfill("docs", purge=True) is not None
    s1.execute(f"CREATE POLICY own ON docs AS RESTRICTIVE TO {pg.reader} USING (owner = 'sidecar')")
    refused = r'table "docs": what is gone from it cannot be told, so nothing is purged: row-level security is on for'
    with pytest.raises(SettingsError, match=refused):
        project.poll()
    with sidecar.open(project.path) as sc, pytest.raises(SettingsError, match=refused):
        sc.request_backfill("docs", purge=True)
    assert set(project.merged("docs", "id")) == {1, 2}
    s1.execute("DROP POLICY own ON docs; DELETE FROM docs WHERE id = 2")
    project.poll()
    assert set(project.merged("docs", "id")) == {1}


@pytest.mark.parametrize("kind", ["VIEW", "MATERIALIZED VIEW"])
def test_a_reader_of_nothing_but_a_view_follows_it(tmp_path: Path, pg: Database, kind: str) -> None:
    s1 = pg.connect()
    s1.execute(
        "CREATE SCHEMA hidden; CREATE TABLE hidden.t (id int PRIMARY KEY, updated_at timestamptz NOT NULL);"
        "INSERT INTO hidden.t SELECT g, '2024-05-01+00' FROM generate_series(1, 30) g;"
        f"CREATE {kind} shown AS SELECT id, updated_at, id * 2 AS twice FROM hidden.t;"
        f"GRANT SELECT ON shown TO {pg.reader}"
    )
    project = Project(tmp_path, pg.reader_url, {"shown": {"primary_key": ["id"], "page_size": 7}})
    assert len(project.poll()["shown"]) == 30
    assert project.poll()["shown"] == []
    s1.execute("INSERT INTO hidden.t VALUES (0, '2024-05-01+00')")
    if kind != "VIEW":
        s1.execute("REFRESH MATERIALIZED VIEW shown")
    assert [(r["id"], r["twice"]) for r in project.poll()["shown"]] == [(0, 0)]


def test_a_query_cancelled_in_mid_read_loses_nothing(tmp_path: Path, pg: Database) -> None:
    """RC-56"""
    with Role(pg, CLICKS, "rc56_reader") as s1:
        url = url_of(pg.host, pg.port, "rc56_reader", "rc56", pg.dbname)
        project = Project(tmp_path, url, {"clicks": {"page_size": 20000}})
        process = project.start("run", "--once")
        cancelled = 0
        clock = SystemClock()
        # Once the first page is there, what is cancelled is a read of the table, not a look at the catalog.
        while not list(tmp_path.rglob("clicks/*.parquet")) and process.poll() is None:
            clock.sleep(0.002)
        while cancelled < 2 and process.poll() is None:
            found = s1.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'rc56_reader' AND state = 'active'"
            ).fetchall()
            cancelled += bool(found)
            clock.sleep(0.3 if found else 0.002)
        _, said = process.communicate(timeout=60)
        assert cancelled
        assert process.returncode in (0, 3), said
        assert "clicks" in said
        if process.returncode:
            assert "canceling statement" in said
        with sidecar.open(project.path) as sc:
            sc.poll()
            ids = [n for s in sc.log("clicks").list() for n in pq.read_table(s.path, columns=["id"])["id"].to_pylist()]
        assert (len(ids), len(set(ids)), sum(ids)) == (300_000, 300_000, 45_000_150_000)


def test_connections_cut_between_pages_lose_nothing(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    s1.execute(
        "CREATE TABLE clicks (id int PRIMARY KEY, updated_at timestamptz NOT NULL);"
        "INSERT INTO clicks SELECT g, timestamptz '2024-05-01+00' + g % 7 * interval '1 s' FROM generate_series(1, 90) g"
    )
    project = Project(tmp_path, pg.reader_url, {"clicks": {"page_size": 10}})
    cuts = iter([True, False, False, True, False, True])

    def cut(_: object) -> None:
        if next(cuts, False):
            s1.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (pg.reader,))

    with sidecar.open(project.path) as sc:
        assert sc.run(once=True, on_step=cut) == 0
    assert len(project.rows("clicks")) == len(project.merged("clicks", "id")) == 90


def test_a_statement_that_runs_too_long_and_a_table_that_is_locked_are_named(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect(autocommit=False)
    s1.execute(
        "CREATE TABLE slow (id int PRIMARY KEY, updated_at timestamptz NOT NULL); INSERT INTO slow VALUES (1, now());"
        "CREATE VIEW dozing AS SELECT id, updated_at, pg_sleep(5)::text AS zzz FROM slow;"
        f"GRANT SELECT ON dozing TO {pg.reader}"
    )
    s1.commit()
    source = {"url": pg.reader_url, "statement_timeout": "200ms", "lock_timeout": "100ms"}
    tables: dict[str, dict[str, Any]] = {"slow": {}, "dozing": {"primary_key": ["id"]}}
    project = Project(tmp_path, None, tables, source=source)
    with pytest.raises(SourceUnavailable) as raised:
        project.poll()
    assert '"dozing"' in str(raised.value)
    assert "statement_timeout" in str(raised.value)
    assert len(project.rows("slow")) == 1
    project.tables = {"slow": {}}
    project.write()
    s1.execute("LOCK TABLE slow IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(SourceUnavailable) as raised:
        project.poll()
    assert '"slow"' in str(raised.value)
    assert "lock" in str(raised.value)
    s1.rollback()
    assert project.poll()["slow"] == []


def test_a_lock_that_is_let_go_in_time_delays_a_poll_only(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect(autocommit=False)
    s1.execute(
        "CREATE TABLE slow (id int PRIMARY KEY, updated_at timestamptz NOT NULL); INSERT INTO slow VALUES (1, now())"
    )
    s1.commit()
    s1.execute("LOCK TABLE slow IN ACCESS EXCLUSIVE MODE")
    timer = threading.Timer(0.5, s1.rollback)
    timer.start()
    assert kinds(Project(tmp_path, pg.reader_url, {"slow": {}}).poll()["slow"], "id") == [("insert", 1)]
    timer.join()


def leaks(said: str) -> list[str]:
    """Return the pieces of the password, plain or percent-encoded, that stand in *said*."""
    pieces = [PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD), "w/rd#1", "rd#1%2F", "ss:w/rd", "1%2F?&=",
              "ss%3Aw", "%231%252F", "Zz9-wrong", "wrong#pw", "wrong%23pw"]  # fmt: skip
    return [piece for piece in pieces if piece in said]


def test_a_password_of_special_characters_works_and_is_never_shown(tmp_path: Path, pg: Database) -> None:
    """RC-65"""
    with Role(pg, HELLO, USER):
        at: dict[str, Any] = {
            "connector": "postgresql", "host": pg.host, "port": pg.port, "database": pg.dbname,
            "user": USER, "password": "${RC65}",
        }  # fmt: skip
        project = Project(tmp_path / "plain", None, {"hello": {}}, source=at)
        run = project.cli("run", "--once", env={"RC65": PASSWORD})
        assert run.code == 0, run.text
        assert [r["id"] for r in ChangeLog(project.folder / "state" / "log", "hello").rows()] == [1]
        assert leaks(run.text) == []
        project.write(source=at | {"port": free_port()})
        refused = project.cli("run", "--once", env={"RC65": PASSWORD, "SIDECAR_DEBUG": "1"})
        assert (refused.code, leaks(refused.text)) == (3, [])
        assert "refused" in refused.err
        project.write(source=at)
        wrong = project.cli("run", "--once", env={"RC65": "Zz9-wrong#pw", "SIDECAR_DEBUG": "1"})
        assert (wrong.code, leaks(wrong.text)) == (2, [])
        assert "authentication failed" in wrong.err
        assert USER in wrong.err


def test_a_password_in_a_url_works_encoded_and_is_never_shown_raw(tmp_path: Path, pg: Database) -> None:
    with Role(pg, HELLO, USER):
        encoded = url_of(pg.host, pg.port, USER, PASSWORD, pg.dbname)
        project = Project(tmp_path / "encoded", encoded, {"hello": {}})
        assert len(project.poll()["hello"]) == 1
        for raw in (PASSWORD, "Zz9-wrong#pw"):
            url = f"postgresql://{quote(USER)}:{raw}@{pg.host}:{pg.port}/{pg.dbname}"
            project = Project(tmp_path / f"raw{len(raw)}", url, {"hello": {}})
            with pytest.raises(SidecarError) as raised:
                project.poll()
            assert leaks(str(raised.value)) == []
            assert leaks(str(raised.value.__cause__ or raised.value.__context__ or "")) == []
            run = project.cli("check", env={"SIDECAR_DEBUG": "1"})
            assert (run.code in (2, 3), leaks(run.text)) == (True, []), run.text


def test_a_socket_serves_as_well_as_an_address(tmp_path: Path, pg: Database) -> None:
    folder = getattr(pg.server, "socket", None)
    if folder is None:
        pytest.skip("this server's socket is unknown")
    pg.connect().execute(
        "CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL); INSERT INTO t VALUES (1, now())"
    )
    url = url_of(str(folder), pg.port, pg.reader, pg.reader_password, pg.dbname)
    assert len(Project(tmp_path / "url", url, {"t": {}}).poll()["t"]) == 1
