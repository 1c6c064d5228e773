"""What a log says of a SQLite table is what SQLite itself says, value for value, whatever is declared and stored."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sqlite3
import tempfile
from base64 import b64decode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import sidecar
from connectors import sqlite_times as times
from connectors import sqlite_types as types
from sidecar import cursor
from sidecar.errors import SettingsError

SETTINGS = settings(
    max_examples=400 if os.environ.get("SIDECAR_SOAK") else 25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
POLICIES = ("error", "null", "quarantine")

declarations = st.sampled_from(
    ["", "ANY", "ANYTHING", "INTEGER", "BIGINT", "REAL", "DOUBLE PRECISION", "TEXT", "VARCHAR(20)", "BLOB", "NUMERIC",
     "DECIMAL(30,10)", "BOOLEAN", "DATE", "DATETIME", "TIMESTAMP", "TIME", "JSON", "UUID"]
)  # fmt: skip
integers = st.one_of(
    st.sampled_from([0, 1, 2, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63 - 512]),
    st.integers(-(2**63), 2**63 - 1),
)
reals = st.one_of(st.sampled_from([0.1, 2.5, 1e300, 5e-324, float("inf")]), st.floats(allow_nan=False))
texts = st.one_of(
    st.sampled_from(["", "a\0b", "007", "abc", "1.50", "123456789012345678901234567890.12", '{"k": 1}', "日本 🛒"]),
    st.text(st.characters(codec="utf-8"), max_size=8),
)
blobs = st.binary(max_size=6)
broken = st.sampled_from([b"secret\xff", b"\xc3", b"\xed\xa0\x80"])
moments = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)).map(  # noqa: DTZ001  readings
    lambda m: m.isoformat(" ")
)
stamps = st.one_of(
    st.sampled_from(
        ["2024-05-01", "2024-05-01 10:00", "2024-05-01T10:00:00", "2024-05-01 10:00:00.5", "0001-01-01", "2024-02-30",
         "2024-05-01 10:00:00.1234567", "2024-05-01T10:00:00,25"]
    ),
    moments,
)  # fmt: skip
zoned = st.one_of(
    st.sampled_from(["2024-05-01T10:00:00Z", "2024-05-01 10:00:00+02:00", "2024-05-01 10:00:00.123 UTC"]),
    st.builds(lambda text, zone: text + zone, moments, st.sampled_from(["Z", "+00:00", "-05:30"])),
)
epochs = st.one_of(
    st.integers(10**8, 10**10 - 1), st.sampled_from([1714557600.25, 2460431.9166, 1714557600123, 1714557600123456789])
)
days = st.dates(dt.date(1, 1, 1)).map(dt.date.isoformat)
kinds = (integers, reals, texts, blobs, broken.map(lambda b: ("text", b)), stamps, zoned, epochs, days,
         st.sampled_from([0, 1]))  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[Any]], int]:
    """Return the columns' declarations, rows, and how many of these are there before the first poll."""
    declared = draw(st.lists(declarations, min_size=1, max_size=4))
    # Mostly of one kind a column, as in life; now and then of any.
    values = [st.none() | draw(st.sampled_from([*kinds, st.one_of(*kinds)])) for _ in declared]
    rows = draw(st.lists(st.tuples(*values).map(list), max_size=8))
    for row in rows:
        if draw(st.integers(0, 9)) == 0:
            row[draw(st.integers(0, len(declared) - 1))] = draw(st.one_of(*kinds))
    return declared, rows, draw(st.integers(0, len(rows)))


class Source:
    """A SQLite file with one table, and a project that follows it."""

    def __init__(self, declared: list[str], policy: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sidecar-types-"))
        self.writer = sqlite3.connect(self.folder / "s.db", isolation_level=None)
        self.names = [f"c{n}" for n in range(len(declared))]
        columns = "".join(f", {name} {type_}" for name, type_ in zip(self.names, declared, strict=True))
        self.writer.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at INTEGER NOT NULL{columns})")
        self.settings = self.folder / "sidecar.toml"
        self.settings.write_text(
            f'[source]\nurl = "sqlite:///{self.folder}/s.db"\n[state]\npath = "state"\n'
            f'[tables.t]\non_bad_value = "{policy}"\npage_size = 3\n'
        )

    def write(self, rows: list[list[Any]], first: int) -> None:
        """Insert *rows* under the keys from *first* on; a text's own bytes come as a pair."""
        for key, row in enumerate(rows, first):
            places = ", ".join("CAST(? AS TEXT)" if isinstance(v, tuple) else "?" for v in row)
            values = [v[1] if isinstance(v, tuple) else v for v in row]
            self.writer.execute(f"INSERT INTO t VALUES ({key}, {key}, {places})", values)

    def poll(self) -> str | None:
        """Poll as a new process would; return the error, if it is one of a bad value."""
        with sidecar.open(self.settings) as sc:
            try:
                sc.poll()
            except SettingsError as error:
                return str(error)
        return None

    def stored(self) -> dict[int, dict[str, tuple[str, Any]]]:
        """Return what SQLite itself says: by key and column, the class and the value; text as bytes."""
        wanted = ", ".join(f"typeof({n}), CASE typeof({n}) WHEN 'text' THEN CAST({n} AS BLOB) ELSE {n} END"
                           for n in self.names)  # fmt: skip
        rows = self.writer.execute(f"SELECT id, {wanted} FROM t").fetchall()
        return {int(row[0]): {n: row[1 + 2 * i : 3 + 2 * i] for i, n in enumerate(self.names)} for row in rows}

    def log(self) -> tuple[pa.Schema, dict[int, dict[str, Any]]]:
        """Return the log's columns, and its rows by key, each of which stands there once."""
        with sidecar.open(self.settings, read_only=True) as sc:
            log = sc.log("t")
            schema = log.schema()
            rows: list[dict[str, Any]] = list(log.rows())
        assert len({row["id"] for row in rows}) == len(rows)
        return schema or pa.schema([]), {row["id"]: row for row in rows}

    def aside(self) -> dict[int, dict[str, Any]]:
        """Return what is set aside, by key, each of which stands there once."""
        lines = [json.loads(line) for f in sorted((self.folder / "state").glob("quarantine/t/*.jsonl"))
                 for line in f.read_text(encoding="utf-8").split("\n") if line]  # fmt: skip
        assert len({line["row"]["id"] for line in lines}) == len(lines)
        return {line["row"]["id"]: line for line in lines}

    def close(self) -> None:
        self.writer.close()
        shutil.rmtree(self.folder)


def expected(kind: str, value: Any, type_: pa.DataType) -> Any:
    """Return what a column of *type_* says of a stored value; LookupError if it cannot hold it."""
    if kind == "null":
        return None
    if kind == "text":
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise LookupError from None
    if pa.types.is_string(type_) and kind != "blob":
        return value if kind == "text" else repr(value)
    if pa.types.is_binary(type_) and kind == "blob":
        return value
    if pa.types.is_int64(type_) and kind == "integer":
        return value
    if pa.types.is_boolean(type_) and kind == "integer" and value in (0, 1):
        return bool(value)
    if pa.types.is_float64(type_) and (kind == "real" or (kind == "integer" and int(float(value)) == value)):
        return float(value)
    if pa.types.is_temporal(type_) and kind != "blob":
        return moment(value, type_)
    raise LookupError


def moment(value: Any, type_: pa.DataType) -> Any:
    """Return the time that *value* is, by Python's own reading of it."""
    if not isinstance(value, str):
        at = cursor.exact_number(repr(value))
        if type_ != times.INSTANT or at is None:
            raise LookupError
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=at)
    if "2024-05-01 10:00:00.1234567" in value:
        raise LookupError
    try:
        found = dt.datetime.fromisoformat(value.replace(" UTC", "Z"))
        if value[4:5] != "-" or (found.tzinfo is not None) != (type_ == times.INSTANT):
            raise LookupError
        if type_ == times.DATE:
            return dt.date.fromisoformat(value)
        return found.astimezone(dt.UTC) if found.tzinfo else found
    except (ValueError, OverflowError):
        raise LookupError from None


def whole(kind: str, value: Any) -> Any:
    """Return how a stored value stands in a row that is set aside, read back."""
    if kind == "text":
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"text": value}
    return {"real": value} if kind == "real" else {"blob": value} if kind == "blob" else value


def read_back(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return {kind: float(text) if kind == "real" else b64decode(text)}


@pytest.mark.parametrize("policy", POLICIES)
@SETTINGS
@given(table=tables())
def test_the_log_says_what_sqlite_says_or_which_value_it_cannot_keep(
    policy: str, table: tuple[list[str], list[list[Any]], int]
) -> None:
    declared, rows, before = table
    source = Source(declared, policy)
    try:
        source.write(rows[:before], 0)
        errors = [source.poll()]
        kept = source.log()[0]
        source.write(rows[before:], before)
        errors += [source.poll(), source.poll()]
        schema, log = source.log()
        assert kept == schema or not kept.names, "a type was decided twice"
        bad = check(source, policy, errors[-1], schema, log)
        for number, type_ in enumerate(declared):
            name = f"c{number}"
            there = [row[number] for row in rows[:before]]
            if types.choices(type_) and not any(isinstance(v, (bytes, tuple)) for v in there):
                # What all values decide, fits all of them.
                assert [key for key in range(before) if name in bad.get(key, ())] == []
    finally:
        source.close()


def check(
    source: Source, policy: str, error: str | None, schema: pa.Schema, log: dict[int, dict[str, Any]]
) -> dict[int, set[str]]:
    """Assert that the log holds what is stored, and return the values that it cannot hold: by key, the columns."""
    stored, aside = source.stored(), source.aside()
    bad: dict[int, set[str]] = {}
    for key, row in stored.items():
        for name, (kind, value) in row.items():
            if not schema.names:
                continue
            try:
                right = expected(kind, value, schema.field(name).type)
            except LookupError:
                bad.setdefault(key, set()).add(name)
                right = None
            if key in log:
                found = log[key][name]
                assert (type(found), found) == (type(right), right), f"{name} of {key}: {kind} {value!r}"
    if policy == "error":
        assert aside == {}
        assert set(log).isdisjoint(bad)
        assert (error is None) == (set(log) == set(stored)), error
        if bad:
            assert error is not None
            assert any(f'column "{name}"' in error and f"id={key}" in error for key in bad for name in bad[key])
        return bad
    assert error is None
    assert set(aside) == (set(bad) if policy == "quarantine" else set())
    assert set(log) == set(stored) - set(aside)
    for key, line in aside.items():
        assert set(line["bad"]) == bad[key]
        for name, (kind, value) in stored[key].items():
            assert read_back(line["row"][name]) == whole(kind, value)
    return bad


@settings(max_examples=150, deadline=None)
@given(value=st.one_of(stamps, zoned, days, epochs, st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T0-9:.,Z+-]{0,20}")))
def test_a_column_at_a_time_and_a_value_at_a_time_are_one_reading(value: Any) -> None:
    for type_ in (times.DATE, times.READING, times.INSTANT):
        fast, slow = times.whole([value, None], type_), times.one(value, type_)
        if fast is not None:
            assert fast.cast(pa.int32() if type_ == times.DATE else pa.int64()).to_pylist() == [slow, None]


@pytest.mark.spark
def test_spark_collects_what_sqlite_says(spark: SparkSession) -> None:
    declared = ["", "ANY", "ANYTHING", "NUMERIC", "DECIMAL", "BOOLEAN", "DATE", "DATETIME", "TIMESTAMP", "BLOB", "JSON",
                "TIMESTAMP"]  # fmt: skip
    rows: list[list[Any]] = [
        [2**63 - 1, 1, "x\0y", 5, "1.500000000000000000000001x", 1, "0001-01-01", "2024-05-01", "2024-05-01T10:00Z",
         b"\0\xff", 5, 1714557600123],
        [-(2**63), 2.5, 0.1, 2.5, 2**53 + 1, 0, "9999-12-31", "1582-10-10T10:00:00.000001",
         "1800-01-01 10:00:00+02:00", b"", "[]", 1714557600456],
        [None] * 12,
    ]  # fmt: skip
    source = Source(declared, "error")
    try:
        source.write(rows, 0)
        assert source.poll() is None
        schema, _ = source.log()
        with sidecar.open(source.settings, read_only=True) as sc:
            frame = sc.dataframe(spark, "t")
        found = {row["id"]: row.asDict() for row in frame.collect()}
        for key, row in source.stored().items():
            for name, (kind, value) in row.items():
                right = expected(kind, value, schema.field(name).type)
                got: Any = found[key][name]
                got = bytes(got) if isinstance(got, bytearray) else got
                if isinstance(right, dt.datetime) and right.tzinfo:
                    got = got.astimezone(dt.UTC)
                assert (type(got), got) == (type(right), right), f"{name} of {key}"
        named = [f.dataType.simpleString() for f in frame.schema.fields if f.name.startswith("c")]
        assert named == ["bigint", "double", "string", "double", "string", "boolean", "date", "timestamp_ntz",
                         "timestamp", "binary", "string", "timestamp"]  # fmt: skip
    finally:
        source.close()
