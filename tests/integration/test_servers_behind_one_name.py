"""A primary and its standbys under one name: whoever answers, nothing comes twice, nor the older after the newer."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

import sidecar
from connectors.postgres import PostgresConnector
from sidecar import Sidecar
from sidecar.backfill import Chunk
from sidecar.backfilling.copying import Borrowing, Failed, Work
from sidecar.clock import SystemClock
from sidecar.connector import Source
from sidecar.errors import SourceUnavailable
from sidecar.model import Page, Pass
from sidecar.poll import poll
from sidecar.runner import Runner
from sidecar.testing.contract import Follower, tracked
from tests.servers import Database, NoServer, Server, fresh_database
from tests.standby import caught_up, standby_of

Connection = psycopg.Connection[tuple[Any, ...]]
TABLE = "CREATE TABLE t (id int PRIMARY KEY, v int, created_at timestamptz, updated_at timestamptz)"
LAGS = "does not show all that was read before"


def versions(rows: Iterable[Mapping[str, Any]], key: object) -> list[Any]:
    return [row["v"] for row in rows if row["id"] == key]


class Servers:
    """A primary, a standby whose replay can be held, and one table's followers, who share a position."""

    def __init__(self, pg: Database, standby: str, folder: Path) -> None:
        self.url, self.primary = pg.reader_url, pg.connect()
        self.primary.execute(TABLE)
        caught_up(self.primary, standby)
        self.standby = standby
        self.there = psycopg.connect(standby, user=pg.server.user, password=pg.server.password, autocommit=True)
        self.connectors = {
            "primary": PostgresConnector(Source(pg.reader_url)),
            "standby": PostgresConnector(Source(standby)),
        }
        followed = dataclasses.replace(tracked(self.connectors["primary"], "t"), page_size=2)
        self.follower = Follower(self.connectors["primary"], followed, folder)

    def put(self, key: int, v: int) -> None:
        self.primary.execute(
            "INSERT INTO t VALUES (%s, %s, now(), now()) ON CONFLICT (id) DO UPDATE SET v = excluded.v,"
            " updated_at = now()",
            (key, v),
        )

    def poll(self, where: str) -> dict[Any, Any]:
        self.follower.connector = self.connectors[where]
        rows = self.follower.poll()
        found = {row["id"]: row["v"] for row in rows}
        assert len(found) == len(rows)
        return found

    def pause(self) -> None:
        self.there.execute("SELECT pg_wal_replay_pause()")
        while self.there.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() != ("paused",):
            pass

    def resume(self) -> None:
        self.there.execute("SELECT pg_wal_replay_resume()")
        caught_up(self.primary, self.standby)

    def close(self) -> None:
        self.resume()
        self.primary.execute("DROP TABLE t")
        self.there.close()
        for connector in self.connectors.values():
            connector.close()


@pytest.fixture(scope="module")
def pair(pg_server: Server) -> Iterator[tuple[Database, str]]:
    """A database, and its URL at a standby."""
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(fresh_database(pg_server))
        try:
            standby = stack.enter_context(standby_of(database))
        except NoServer as error:
            pytest.skip(str(error))
        yield database, standby


@pytest.fixture
def servers(pair: tuple[Database, str], tmp_path: Path) -> Iterator[Servers]:
    found = Servers(*pair, tmp_path / "log")
    yield found
    found.close()


def test_a_standby_that_lags_what_was_read_last_is_read_once_it_has_caught_up(servers: Servers) -> None:
    servers.put(1, 1)
    servers.put(2, 1)
    assert servers.poll("primary") == {1: 1, 2: 1}
    servers.pause()
    servers.put(1, 2)
    servers.put(3, 1)
    assert servers.poll("primary") == {1: 2, 3: 1}
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match=LAGS):
            servers.poll("standby")
    assert servers.poll("primary") == {}
    servers.resume()
    assert servers.poll("standby") == {}
    servers.put(2, 2)
    caught_up(servers.primary, servers.standby)
    assert servers.poll("standby") == {2: 2}
    assert servers.poll("primary") == {}
    servers.put(2, 3)
    assert servers.poll("primary") == {2: 3}
    assert servers.follower.store.watermark("t") is not None


def test_a_poll_that_was_interrupted_goes_on_where_all_that_its_pages_have_shown_is_to_be_seen(
    servers: Servers,
) -> None:
    for key in range(1, 6):
        servers.put(key, 1)
    caught_up(servers.primary, servers.standby)
    servers.poll("standby")
    for key in range(1, 6):
        servers.put(key, 2)
    follower = servers.follower

    def one_page() -> None:
        steps = poll(servers.connectors["primary"], follower.followed, follower.log, follower.store)
        next(steps)
        steps.close()

    one_page()
    servers.pause()
    # Of the second page's view there is more than the poll knew of when it began.
    servers.put(1, 3)
    servers.put(4, 3)
    one_page()
    with pytest.raises(SourceUnavailable, match=LAGS):
        servers.poll("standby")
    servers.resume()
    servers.poll("standby")
    assert servers.poll("primary") == {}
    rows = list(follower.log.rows())
    assert {row["id"]: row["v"] for row in rows} == {1: 3, 2: 2, 3: 2, 4: 3, 5: 2}
    assert versions(rows, 4) == sorted(set(versions(rows, 4)))


def project(url: str, folder: Path) -> Sidecar:
    (folder / "sidecar.toml").write_text(
        f'[source]\nurl = "{url}"\n[state]\npath = "state"\n[tables.t]\nchunk_size = 2\n'
    )
    return sidecar.open(folder / "sidecar.toml")


def test_a_backfill_reads_no_standby_that_lags_and_no_poll_one_that_lags_a_backfill(
    servers: Servers, tmp_path: Path
) -> None:
    for key in range(1, 6):
        servers.put(key, 1)
    caught_up(servers.primary, servers.standby)
    with project(servers.url, tmp_path) as opened:
        opened.poll()
    servers.pause()
    servers.put(1, 2)
    with project(servers.url, tmp_path) as opened:
        opened.poll()
        opened.request_backfill("t")
        before = opened.log("t").last()
    with project(servers.standby, tmp_path) as opened:
        with pytest.raises(SourceUnavailable, match=LAGS):
            opened.poll()
        assert opened.log("t").last() == before
    # The backfill's chunks show what no poll has read yet.
    with project(servers.url, tmp_path) as opened:
        servers.put(2, 2)
        runner = Runner(opened)
        list(runner._jobs.work(None))
        runner._jobs.close()
        assert [row["v"] for row in opened.log("t").rows(before) if row["id"] == 2] == [2]
    with project(servers.standby, tmp_path) as opened, pytest.raises(SourceUnavailable, match=LAGS):
        opened.poll()
    servers.resume()
    with project(servers.standby, tmp_path) as opened:
        opened.poll()
        rows = list(opened.log("t").rows())
        assert versions(rows, 2) == sorted(versions(rows, 2))
        assert {row["id"]: row["v"] for row in rows} == {1: 2, 2: 2, 3: 1, 4: 1, 5: 1}


def test_after_a_standby_that_lags_the_next_connection_may_reach_another_server(
    servers: Servers, tmp_path: Path
) -> None:
    servers.put(1, 1)
    servers.pause()
    servers.put(1, 2)
    servers.poll("primary")
    servers.put(2, 1)
    here, there = servers.primary.info, servers.there.info
    login, _, rest = servers.url.rpartition("@")
    database = rest.partition("/")[2]
    url = f"{login}@{there.host}:{there.port},{here.host}:{here.port}/{database}?load_balance_hosts=random"
    servers.connectors["either"] = PostgresConnector(Source(url))
    for _ in range(60):
        with contextlib.suppress(SourceUnavailable):
            assert servers.poll("either") == {2: 1}
            return
    raise AssertionError("always the same server answers")


def test_whatever_answers_versions_only_go_forward(servers: Servers) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    paused = False
    held: Connection | None = None
    refused = 0
    for version in range(150):
        step = chance.choice(
            ["put", "put", "put", "hold", "commit", "pause", "resume", "primary", "standby", "standby"]
        )
        if step == "put":
            servers.put(chance.randrange(6), version)
        elif step == "hold" and held is None:
            held = psycopg.connect(servers.primary.info.dsn, password=servers.primary.info.password)
            held.execute("INSERT INTO t VALUES (%s, %s, now(), now())", (100 + version, version))
        elif step == "commit" and held is not None:
            held.commit()
            held.close()
            held = None
        elif step == "pause" and not paused:
            servers.pause()
            paused = True
        elif step == "resume" and paused:
            servers.resume()
            paused = False
        elif step in ("primary", "standby"):
            try:
                servers.poll(step)
            except SourceUnavailable:
                assert step == "standby"
                refused += 1
    if held is not None:
        held.commit()
        held.close()
    servers.resume()
    servers.poll("standby")
    assert servers.poll("primary") == {}
    rows = list(servers.follower.log.rows())
    for key in {row["id"] for row in rows}:
        assert versions(rows, key) == sorted(set(versions(rows, key))), f"seed {seed}, key {key}"
    there: dict[Any, Any] = dict(servers.primary.execute("SELECT id, v FROM t").fetchall())
    assert {row["id"]: row["v"] for row in rows} == there, f"seed {seed}"
    assert refused, f"seed {seed}"


def test_polls_connection_lent_to_a_backfill_reads_no_standby_that_lags_the_phase_s_beginning(servers: Servers) -> None:
    """It may be lost between two chunks, and the next one lead elsewhere."""
    servers.put(1, 1)
    servers.pause()
    servers.put(2, 1)
    servers.poll("primary")
    mark = servers.follower.store.watermark("t")
    assert mark is not None
    page = Page(servers.follower.followed, Pass("all", None), {}, None, 10)
    work = Work("job", 0, 0, page, 0, mark.memory, adaptive=False, era=mark.era, reached=mark.reached)

    def chunk(where: str) -> Chunk | None:
        copying = Borrowing(servers.connectors[where], SystemClock())
        copying.begin([work])
        return copying.next(1)

    with pytest.raises(Failed, match=LAGS):
        chunk("standby")
    found = chunk("primary")
    assert found is not None
    assert len(found.data) == 2
    assert found.reached is not None
    assert mark.reached is not None
    assert found.reached >= mark.reached
    servers.resume()
    assert chunk("standby") is not None
