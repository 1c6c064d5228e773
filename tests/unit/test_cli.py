"""The command line: what it prints, what it exits with, and what it never shows."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.changelog import ChangeLog
from sidecar.clock import SystemClock
from sidecar.log import queries
from tests.command import Sidecar, settings
from tests.conftest import SQLiteFile
from tests.servers import Database

# -- help and usage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    ["init", "check", "run", "status", "changes", "backfill", "export", "schema", "demo"]
    + [f"watermark {name}" for name in ("show", "set", "reset", "forget")],
)
def test_every_command_teaches_itself_by_an_example_and_says_how_it_exits(sidecar: Sidecar, command: str) -> None:
    answer = sidecar(*command.split(), "--help")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    assert f"Example: sidecar {command}" in text
    assert "Exit codes: 0 done · " in text


def test_help_lists_commands_and_exit_codes(sidecar: Sidecar) -> None:
    text = " ".join(sidecar("--help").out.split())
    for word in ("init", "check", "run", "status", "changes", "watermark", "demo", "4 another process holds the state"):
        assert word in text


@pytest.mark.parametrize(
    "arguments",
    [["--nothing"], ["nothing"], ["run", "--nothing"], ["changes"], ["changes", "t", "--since", "x"], ["init"]],
)
def test_wrong_usage_is_one_line_and_exits_with_2(sidecar: Sidecar, arguments: list[str]) -> None:
    answer = sidecar(*arguments)
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert "--help" in answer.err
    assert len(answer.err.splitlines()) == 1


def test_an_interval_needs_a_unit(sidecar: Sidecar) -> None:
    answer = sidecar("run", "--interval", "5")
    assert answer.code == 2
    assert 'write "5s"' in answer.err


# -- settings ----------------------------------------------------------------------------------------------------------


def test_every_problem_of_the_settings_is_a_line_of_its_own(
    sidecar: Sidecar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings('[source]\nurl = "sqlite:///x.db"\ntimeout = 5\n[tables.orders]\nlookback = "60"\n')
    answer = sidecar("status")
    assert answer.code == 2
    lines = answer.err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("error: sidecar.toml: [") for line in lines)


def test_another_settings_file_is_named_by_an_option(
    sidecar: Sidecar, shop: SQLiteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path("sidecar.toml").absolute()
    elsewhere = shop.path.parent.parent
    monkeypatch.chdir(elsewhere)
    assert sidecar("status").code == 2
    assert sidecar("run", "--once", "-c", str(file)).code == 0
    assert "orders" in sidecar("status", "--config", str(file)).out
    assert not (elsewhere / ".sidecar").exists()


def test_a_misspelt_column_fails_before_anything_is_written(sidecar: Sidecar, shop: SQLiteFile) -> None:
    settings(f'[source]\nurl = "sqlite:///{shop.path.name}"\n[tables.orders]\nupdated_at = "updatd_at"\n')
    answer = sidecar("run", "--once")
    assert answer.code == 2
    assert answer.err.count("error: ") == 1
    assert 'table "orders"' in answer.err
    assert "updatd_at" in answer.err
    assert not list(Path(".sidecar").glob("log/*/*"))
    settings(f'[source]\nurl = "sqlite:///{shop.path.name}"\n[tables.orders]\nupdated_at = "UPDATED_AT"\n')
    assert sidecar("run", "--once").code == 0


# -- run, status, changes ----------------------------------------------------------------------------------------------


def test_a_poll_is_one_line_on_stderr(sidecar: Sidecar, shop: SQLiteFile) -> None:
    answer = sidecar("run", "--once")
    assert answer.code == 0
    assert answer.out == ""
    lines = answer.err.splitlines()
    assert len(lines) == 2
    assert re.match(r"20\d\d-\S+Z info: table=orders rows=3 offset=1 backfill=done ms=", lines[0])
    assert " ms=" in lines[0]


def test_nothing_new_says_nothing(sidecar: Sidecar, shop: SQLiteFile) -> None:
    sidecar("run", "--once")
    answer = sidecar("run", "--once")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


def test_changes_as_jsonl_keep_every_value(sidecar: Sidecar, shop: SQLiteFile) -> None:
    sidecar("run", "--once")
    answer = sidecar("changes", "orders", "--format", "jsonl")
    rows = [json.loads(line) for line in answer.out.splitlines()]
    assert [(row["id"], row["_change_type"]) for row in rows] == [
        (1, "insert"),
        (2, "insert"),
        (9007199254740993, "delete"),
    ]
    first, second, _ = rows
    assert list(first) == [
        "_change_type", "_commit_version", "_commit_timestamp", "_origin",
        "id", "total", "raw", "created_at", "updated_at", "deleted_at",
    ]  # fmt: skip
    assert first["_commit_version"] == 1
    assert first["_commit_timestamp"].endswith("Z")
    assert first["raw"] == "AP8="
    assert (first["total"], second["total"]) == (1.5, "Infinity")


def test_changes_can_begin_after_an_offset_and_end_early(sidecar: Sidecar, shop: SQLiteFile) -> None:
    sidecar("run", "--once")
    shop.connection.execute(
        "INSERT INTO orders VALUES (3, 0, NULL, '2024-05-02T10:00:00Z', '2024-05-02T10:00:00Z', NULL)"
    )
    sidecar("run", "--once")
    jsonl = ("changes", "orders", "--format", "jsonl")
    assert [json.loads(line)["id"] for line in sidecar(*jsonl, "--since", "1").out.splitlines()] == [3]
    assert [json.loads(line)["id"] for line in sidecar(*jsonl, "--limit", "1").out.splitlines()] == [3], "the newest"
    assert len(sidecar(*jsonl, "--since", "0", "--limit", "2").out.splitlines()) == 2
    assert json.loads(sidecar(*jsonl, "--since", "0", "--limit", "1").out)["id"] == 1
    assert sidecar(*jsonl, "--since", "2").out == ""
    assert "backfill" in sidecar("changes", "orders").out
    assert "backfill" not in sidecar("changes", "orders", "--limit", "1").out


def test_an_unknown_table_is_an_error_that_lists_the_known_ones(sidecar: Sidecar, shop: SQLiteFile) -> None:
    assert sidecar("changes", "orders").err == 'error: table "orders": nothing has been polled yet: sidecar run\n'
    sidecar("run", "--once")
    answer = sidecar("changes", "nothing")
    assert answer.code == 2
    assert answer.err.splitlines() == ['error: table "nothing" has no change log yet; there are: orders, ticks']


def test_who_opens_no_source_needs_no_password_of_it(
    sidecar: Sidecar, shop: SQLiteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("sidecar.toml")
    path.write_text(path.read_text().replace(shop.path.name, "${SHOP}"))
    monkeypatch.setenv("SHOP", shop.path.name)
    assert sidecar("run", "--once").code == 0
    monkeypatch.delenv("SHOP")
    for command in (
        "status", "changes orders", "backfill --list", "backfill orders --list", "schema orders",
        "watermark show orders --json",
    ):  # fmt: skip
        answer = sidecar(*command.split())
        assert (command, answer.code) == (command, 0)
    for command in ("check", "run --once", "watermark reset orders", "backfill orders"):
        answer = sidecar(*command.split())
        assert (command, answer.code) == (command, 2)
        assert answer.err == (
            "error: sidecar.toml: [source] url: the environment variable SHOP is not set (${SHOP} stands there)\n"
        )


# -- watermark ---------------------------------------------------------------------------------------------------------


def test_a_watermark_can_be_seen_set_and_reset(sidecar: Sidecar, shop: SQLiteFile) -> None:
    assert "not polled yet" in sidecar("watermark", "show", "orders").out
    sidecar("run", "--once")
    assert "greatest seen 2024-05-01T12:00:00" in sidecar("watermark", "show", "orders").out
    assert json.loads(sidecar("watermark", "show", "ticks", "--json").out)["offset"] == 1
    moved = sidecar("watermark", "set", "orders", "2024-05-01T11:00:00Z")
    assert moved.code == 0
    assert "closed up to 2024-05-01T11:00:00" in moved.out
    assert "Z info: table=orders rows=1 " in sidecar("run", "--once").err
    assert sidecar("watermark", "reset", "orders").code == 0
    assert "Z info: table=orders rows=3 " in sidecar("run", "--once").err


@pytest.mark.parametrize(
    ("value", "zone", "said"),
    [
        ("2024-05-01", None, "read as UTC, and stands for the end of its day"),
        ("2024-05-01 11:00", None, "read as UTC, and stands for the end of its minute"),
        ("2024-05-01 11:00:00", "Europe/Berlin", "read as Europe/Berlin"),
        ("2024-05-01 11:00:00Z", None, None),
        ("2024-05-01 11:00:00 +0200", None, None),
        ("1714561200", None, None),
    ],
)
def test_a_time_without_a_zone_is_answered_by_how_it_is_read(
    sidecar: Sidecar, shop: SQLiteFile, value: str, zone: str | None, said: str | None
) -> None:
    if zone is not None:
        shop.connection.execute("UPDATE orders SET updated_at = '2024-05-01 10:00:00'")
        settings(Path("sidecar.toml").read_text().replace("[tables.orders]", f'[tables.orders]\ntimezone = "{zone}"'))
    sidecar("run", "--once")
    answer = sidecar("watermark", "set", "orders", value)
    assert answer.code == 0
    told = [line for line in answer.out.splitlines() if "has no zone" in line]
    assert told == ([] if said is None else [f'orders: "{value}" has no zone: it is {said}'])


def test_a_watermark_is_set_by_the_numbers_of_its_column_without_a_word_on_zones(
    sidecar: Sidecar, shop: SQLiteFile
) -> None:
    sidecar("run", "--once")
    answer = sidecar("watermark", "set", "ticks", "6")
    assert (answer.code, "zone" in answer.out) == (0, False)


def test_a_query_that_reads_the_log_is_shown_beside_the_sinks_until_it_is_forgotten(
    sidecar: Sidecar, shop: SQLiteFile
) -> None:
    sidecar("run", "--once")
    queries.save(ChangeLog(Path(".sidecar/log"), "orders"), "dashboard", 0)
    assert json.loads(sidecar("status", "--json").out)[0]["queries"] == {"dashboard": {"offset": 0, "behind": 1}}
    assert "query dashboard 0 (1 behind)" in sidecar("status").out
    assert sidecar("watermark", "forget", "orders", "dashboard").code == 0
    assert json.loads(sidecar("status", "--json").out)[0]["queries"] == {}
    assert sidecar("watermark", "forget", "orders", "dashboard").code == 2


def test_a_log_begun_anew_lies_behind_all_that_a_query_has_had(sidecar: Sidecar, shop: SQLiteFile) -> None:
    sidecar("run", "--once")
    queries.save(ChangeLog(Path(".sidecar/log"), "orders"), "dashboard", 7)
    assert sidecar("run", "--once").code == 5
    assert sidecar("watermark", "reset", "orders").code == 0
    assert sidecar("run", "--once").code == 0
    assert json.loads(sidecar("status", "--json").out)[0]["queries"]["dashboard"]["behind"] > 0


@pytest.mark.parametrize(("table", "value"), [("orders", "yesterday"), ("ticks", "yesterday"), ("nothing", "1")])
def test_a_watermark_that_makes_no_sense_is_refused(sidecar: Sidecar, shop: SQLiteFile, table: str, value: str) -> None:
    answer = sidecar("watermark", "set", table, value)
    assert answer.code == 2
    assert answer.err.count("error: ") == 1


# -- check -------------------------------------------------------------------------------------------------------------


def test_check_groups_findings_by_table_with_an_index_to_copy(sidecar: Sidecar, shop: SQLiteFile) -> None:
    answer = sidecar("check")
    assert answer.code == 0
    lines = answer.out.splitlines()
    at = lines.index("orders")
    advice = [line.strip() for line in lines[at:] if line.strip().startswith("CREATE INDEX")]
    assert advice
    shop.connection.execute(advice[0])
    assert "sinks" in lines


def test_check_exits_with_1_on_an_error(sidecar: Sidecar, shop: SQLiteFile) -> None:
    with Path("sidecar.toml").open("a") as file:
        file.write('[sinks.lake]\npath = "lake"\ntransform = "no_such_module:f"\n')
    answer = sidecar("check")
    assert answer.code == 1
    assert "no_such_module" in answer.out
    assert "1 error" in answer.out


def test_check_says_each_problem_of_a_table_on_a_line_of_its_own(sidecar: Sidecar, shop: SQLiteFile) -> None:
    shop.connection.execute("CREATE TABLE loose (a TEXT)")
    with Path("sidecar.toml").open("a") as file:
        file.write("[tables.loose]\n")
    lines = sidecar("check").out.splitlines()
    at = lines.index("loose")
    assert [line[:22] for line in lines[at + 1 : at + 4]] == ['  error: table "loose"', '  error: table "loose"', ""]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_an_unexpected_failure_is_one_line_and_more_only_on_request(
    sidecar: Sidecar, shop: SQLiteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A connector with a mistake of its own, as its author would register it.
    package = Path("broken_connector")
    package.mkdir()
    (package / "__init__.py").write_text(
        "from sidecar.connector import SourceConnector\n"
        "class Broken(SourceConnector):\n"
        "    scheme = 'broken'\n"
        "    def tables(self): return 1 / 0\n"
        "    def describe(self, table): raise ValueError('first\\nsecond ' + self.source.url)\n"
        "    def read(self, page): ...\n"
    )
    info = Path("broken-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sidecar.connectors]\nbroken = broken_connector:Broken\n")
    monkeypatch.syspath_prepend(str(Path().absolute()))
    settings('[source]\nurl = "broken://user:hunter2x@host/db"\n[tables.orders]\n')
    monkeypatch.delenv("SIDECAR_DEBUG", raising=False)
    answer = sidecar("check")
    assert answer.code == 1
    assert answer.err.splitlines() == [
        "error: unexpected ValueError: first second broken://user:***@host/db; "
        "run again with SIDECAR_DEBUG=1 for details"
    ]
    monkeypatch.setenv("SIDECAR_DEBUG", "1")
    answer = sidecar("check")
    assert answer.code == 1
    assert "Traceback" in answer.err
    assert "hunter2x" not in answer.err


@pytest.mark.parametrize("change", ["port", "password"])
def test_a_password_with_special_characters_works_and_is_never_shown(
    sidecar: Sidecar, pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    password = "p@ss:w/rd#1%2F?&=+ é'\"\\"
    connection = pg.connect()
    connection.execute(
        "CREATE TABLE hello (id int PRIMARY KEY, created_at timestamptz, updated_at timestamptz NOT NULL)"
    )
    connection.execute("INSERT INTO hello VALUES (1, now(), now())")
    quoted = password.replace("'", "''")
    connection.execute(f"ALTER ROLE \"{pg.reader}\" PASSWORD '{quoted}'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PW", password)
    url = f"postgresql://{pg.reader}:${{PW}}@{pg.host}:{pg.port}/{pg.dbname}"
    settings(f'[source]\nurl = "{url}"\nconnect_timeout = "2s"\n[tables.hello]\n')
    assert sidecar("run", "--once").code == 0
    assert json.loads(sidecar("changes", "hello", "--format", "jsonl").out)["id"] == 1
    if change == "port":
        settings(Path("sidecar.toml").read_text().replace(f":{pg.port}/", ":1/"))
    else:
        password = "Zz9-wrong#pw"
        monkeypatch.setenv("PW", password)
    answer = sidecar("check")
    assert answer.code in (2, 3)
    for part in (password, password.partition("#")[2], "Zz9-wrong", "ss:w/rd", "w/rd", "%2F", "%23"):
        assert part not in answer.out + answer.err
    assert "invalid port" not in answer.err
    assert answer.err.startswith("error: ")


def process(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sidecar.cli", *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )


def waiting_for(condition: Callable[[], bool]) -> None:
    clock = SystemClock()
    until = clock.monotonic() + 60
    while not condition():
        assert clock.monotonic() < until, "it did not come"
        clock.sleep(0.05)


def test_a_runner_is_seen_by_status_keeps_others_out_and_stops_in_good_order(
    sidecar: Sidecar, shop: SQLiteFile
) -> None:
    runner = process("run", "--interval", "100ms")
    try:
        waiting_for(lambda: Path(".sidecar/log/ticks").is_dir() and any(Path(".sidecar/log/ticks").glob("*.parquet")))
        assert len(json.loads(sidecar("status", "--json").out)) == 2
        held = sidecar("run", "--once")
        assert held.code == 4
        assert len(held.err.splitlines()) == 1
        assert str(runner.pid) in held.err
        runner.send_signal(signal.SIGTERM)
        _, err = runner.communicate(timeout=60)
        assert runner.returncode == 0
        assert "Traceback" not in err
    finally:
        runner.kill()
        runner.wait()
    assert sidecar("run", "--once").code == 0


def test_a_reader_that_has_seen_enough_ends_changes_without_a_word(shop: SQLiteFile, sidecar: Sidecar) -> None:
    with sqlite3.connect(shop.path) as connection:
        connection.execute("DELETE FROM orders")
        connection.executemany(
            "INSERT INTO orders VALUES (?, 1, NULL, '2024-05-01T10:00:00Z', '2024-05-01T10:00:00Z', NULL)",
            [(i,) for i in range(20_000)],
        )
    connection.close()
    sidecar("run", "--once")
    changes = process("changes", "orders", "--format", "jsonl")
    assert changes.stdout is not None
    assert changes.stderr is not None
    changes.stdout.readline()
    changes.stdout.close()
    assert changes.stderr.read() == ""
    changes.stderr.close()
    changes.wait(timeout=60)


def test_nothing_heavy_is_imported_for_help() -> None:
    code = (
        "import sys, sidecar.cli; sidecar.cli.execute(['--help']); "
        "print(sorted({'pyspark', 'pyarrow', 'numpy', 'sqlite_utils', 'psycopg', 'rocksdict'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_an_idle_run_starts_no_jvm_and_imports_nothing_large(shop: SQLiteFile, sidecar: Sidecar) -> None:
    for table in ("orders", "ticks"):
        shop.connection.execute(f"CREATE INDEX {table}_updated ON {table} (updated_at, id)")
    with Path("sidecar.toml").open("a") as file:
        file.write('[defaults]\nlookback = "1ms"\n[spark]\nmaster = "local[1]"\n')
    for _ in range(3):
        sidecar("run", "--once")
        SystemClock().sleep(1.0)  # long after lookback: what has been seen is closed
    code = (
        "import sys, sidecar.cli; code = sidecar.cli.execute(['run', '--once']); "
        "print(code, sorted({'pyspark', 'rich', 'psycopg', 'connectorx', 'pandas', 'pyarrow._fs'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "0 []"
