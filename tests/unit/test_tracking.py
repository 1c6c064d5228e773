"""Settings against the source: names, defaults, and everything that is said before a row is read."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sidecar.config import Defaults, TableSettings
from sidecar.errors import SettingsError
from sidecar.log import segments
from sidecar.model import Column, Table, Tracked, Watermark, Wishes
from sidecar.polls.deliveries import NOTHING
from sidecar.settings.names import matches
from sidecar.tracking import no_twins, track

INSTANT = pa.timestamp("us", "UTC")


def table(*columns: Column, name: str = "orders", key: tuple[str, ...] = ("id",), **more: Any) -> Table:
    found = columns or (column("created_at", INSTANT), column("updated_at", INSTANT))
    return Table(name, (name,), (column("id", pa.int64()), *found), key, **more)


def column(name: str, type_: pa.DataType) -> Column:
    return Column(name, str(type_), type_)


def tracked(described: Table, own: dict[str, Any] | None = None, defaults: dict[str, Any] | None = None) -> Tracked:
    return track(described, TableSettings.model_validate(own or {}), Defaults.model_validate(defaults or {}))


def refused(described: Table, own: dict[str, Any] | None = None, defaults: dict[str, Any] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        tracked(described, own, defaults)
    return str(caught.value)


def test_a_table_with_the_usual_columns_needs_no_settings() -> None:
    found = tracked(table(column("created_at", INSTANT), column("updated_at", INSTANT), column("deleted_at", INSTANT)))
    assert (found.key, found.key_is_unique) == (("id",), True)
    assert (found.updated_at, found.created_at, found.deleted_at) == ("updated_at", "created_at", "deleted_at")
    assert [c.name for c in found.columns] == ["id", "created_at", "updated_at", "deleted_at"]
    assert (found.lookback, found.tolerance, found.page_size, found.metadata_prefix) == (60_000_000, 0, 50_000, "_")


def test_columns_that_are_only_usual_may_be_missing() -> None:
    found = tracked(table(column("updated_at", INSTANT)))
    assert found.created_at is None
    assert found.deleted_at is None


def test_columns_that_the_table_itself_names_must_exist() -> None:
    said = refused(table(), {"deleted_at": "deletd_at", "created_at": "creatd_at", "updated_at": "updatd_at"})
    assert len(said.splitlines()) == 3
    for name, nearest in (("deletd_at", "updated_at"), ("creatd_at", "created_at"), ("updatd_at", "updated_at")):
        assert f'there is no column "{name}"; did you mean "{nearest}"?' in said
    assert 'table "orders"' in said
    assert "id, created_at, updated_at" in said


def test_a_usual_column_can_be_turned_off() -> None:
    described = table(column("created_at", INSTANT), column("updated_at", INSTANT), column("deleted_at", INSTANT))
    assert tracked(described, {"deleted_at": False}).deleted_at is None
    assert tracked(described, {"created_at": False}).created_at is None
    assert tracked(described, defaults={"deleted_at": False}).deleted_at is None
    assert tracked(described, {"deleted_at": "deleted_at"}, {"deleted_at": False}).deleted_at == "deleted_at"


def test_a_name_in_another_case_is_found_where_it_is_clear() -> None:
    assert tracked(table(), {"updated_at": "UPDATED_AT"}).updated_at == "updated_at"


def test_a_name_in_another_case_is_refused_where_it_is_not_clear() -> None:
    described = table(column("Stamp", INSTANT), column("STAMP", INSTANT))
    assert '"stamp" may be any of Stamp, STAMP' in refused(described, {"updated_at": "stamp"})
    assert tracked(described, {"updated_at": "STAMP"}).updated_at == "STAMP"


def test_without_an_updated_at_the_likely_ones_are_listed_first() -> None:
    said = refused(table(column("born", INSTANT), column("modified", pa.int64()), column("note", pa.string())))
    assert 'no column "updated_at" to poll by; candidates are modified, born' in said
    assert "[tables.orders] updated_at" in said


def test_a_column_that_holds_no_time_is_no_cursor() -> None:
    assert "cannot be a cursor" in refused(table(column("updated_at", pa.bool_())))


def test_a_flag_called_deleted_at_is_not_passed_over() -> None:
    described = table(column("updated_at", INSTANT), column("deleted_at", pa.bool_()))
    assert 'deleted_when = "deleted_at"' in refused(described)
    assert tracked(described, {"deleted_when": "deleted_at"}).deleted_when == "deleted_at"
    assert tracked(described, {"deleted_at": False}).deleted_at is None


def test_a_table_without_a_key_says_how_to_give_it_one() -> None:
    assert "no primary key" in refused(table(key=()))
    assert "[tables.orders] primary_key" in refused(table(key=()))
    assert "a view has no primary key" in refused(table(key=(), kind="view"))


def test_a_key_of_ones_own_is_not_taken_to_be_unique() -> None:
    described = table(column("code", pa.string()), column("updated_at", INSTANT))
    assert not tracked(described, {"primary_key": "code"}).key_is_unique
    assert tracked(described, {"primary_key": ["code", "ID"]}).key == ("code", "id")
    assert tracked(described, {"primary_key": ["code", "ID"]}).key_is_unique
    assert not tracked(table(key=()), {"primary_key": "id"}).key_is_unique


def test_the_key_is_delivered_even_where_columns_leave_it_out() -> None:
    found = tracked(table(column("a", pa.string()), column("updated_at", INSTANT)), {"columns": ["A"]})
    assert [c.name for c in found.columns] == ["id", "a"]


def test_a_number_counts_time_only_if_told_so() -> None:
    described = table(column("updated_at", pa.int64()))
    assert tracked(described).unit is None
    assert tracked(described, {"updated_at_unit": "ms"}).unit == "ms"


def test_a_unit_for_a_timestamp_is_an_error_at_the_table_and_nothing_among_the_defaults() -> None:
    assert "updated_at_unit" in refused(table(), {"updated_at_unit": "s"})
    assert tracked(table(), defaults={"updated_at_unit": "s"}).unit is None


def test_a_column_with_a_name_of_ours_names_both_and_the_setting_that_helps() -> None:
    described = table(column("_Origin", pa.string()), column("updated_at", INSTANT))
    said = refused(described)
    assert '"_Origin"' in said
    assert '"_origin"' in said
    assert "metadata_prefix" in said
    assert tracked(described, defaults={"metadata_prefix": "cdc_"}).metadata_prefix == "cdc_"
    assert tracked(described, {"columns": ["id", "updated_at"]}).columns


def test_the_tables_own_settings_win_over_the_defaults() -> None:
    found = tracked(
        table(),
        {"lookback": "5s", "not_deleted": ["x"]},
        {"lookback": "9s", "page_size": 7, "created_at_tolerance": "1s", "timezone": "Europe/Berlin"},
    )
    assert (found.lookback, found.page_size, found.tolerance) == (5_000_000, 7, 1_000_000)
    assert (found.not_deleted, found.timezone) == (("x",), "Europe/Berlin")


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "ord*", True),
        ("orders", "public.*", True),
        ("orders", "pu*", False),
        ("sales.orders", "sales.*", True),
        ("sales.orders", "orders", False),
        ("sales.orders", "public.*", False),
        ("sales.orders", "*", True),
        ("a[b]c", "a[b]c", True),
        ('"a.b"', "public.*", True),
        ('"a.b"', "a.*", False),
        ('"a.b"', '"a.b"', True),
        ('"a.b_tmp"', "*_tmp", True),
        ('"x.y".orders', "public.*", False),
    ],
)
def test_patterns_are_for_names_as_sidecar_writes_them(name: str, pattern: str, expected: bool) -> None:
    assert matches(name, pattern) is expected


def test_what_is_asked_of_a_column_s_values_reaches_the_connector_by_the_column_s_own_name() -> None:
    asked: list[Wishes] = []

    def typed(given: Table, wishes: Wishes) -> Table:
        asked.append(wishes)
        return dataclasses.replace(
            given, columns=tuple(dataclasses.replace(c, arrow=pa.string()) for c in given.columns)
        )

    described = table(column("Total", pa.string()), column("updated_at", INSTANT))
    own = TableSettings.model_validate({"numeric": {"total": "double"}, "columns": ["Total"], "json": "variant"})
    found = track(described, own, Defaults.model_validate({"numeric": "string", "json": "string"}), typed)
    expected = Wishes(
        {"numeric": "string", "json": "variant"}, {"numeric": {"Total": "double"}}, ("updated_at",), ("id",)
    )
    assert asked == [expected]
    assert found.wishes == expected
    assert [(c.name, c.arrow) for c in found.columns] == [("id", pa.string()), ("Total", pa.string())]
    assert found.cursor_type == pa.string()
    told = [found.wishes.of("numeric", name) for name in ("Total", "other", "updated_at")]
    assert told == ["double", "string", None]


def test_a_form_for_a_column_that_is_not_there_names_the_nearest() -> None:
    assert 'numeric: there is no column "totl"' in refused(table(), {"numeric": {"totl": "double"}})


@pytest.mark.parametrize(
    ("type_", "says"),
    [
        (pa.timestamp("ns", "UTC"), r"timestamp\[ns, tz=UTC\]\. Let .* another type, timestamp\[us, tz=UTC\]"),
        (pa.list_(pa.struct([("at", pa.timestamp("s"))])), r"is list<.*holds no timestamp\[s\]\. Let"),
        (pa.date64(), "another type, date32"),
        (pa.time32("s"), r"another type, time64\[us\]"),
        (
            pa.month_day_nano_interval(),
            "holds no month_day_nano_interval. Let its connector give it in another type; or",
        ),
        (pa.map_(pa.string(), pa.decimal128(10, -2)), r"holds no decimal128\(10, -2\)"),
        (pa.struct([]), "holds no struct<>"),
        (pa.dense_union([pa.field("a", pa.int64())]), "holds no dense_union"),
        (pa.run_end_encoded(pa.int32(), pa.string()), "holds no run_end_encoded"),
    ],
)
def test_a_column_of_a_type_that_the_log_cannot_hold_is_named(type_: pa.DataType, says: str, tmp_path: Path) -> None:
    odd = table(column("odd", type_), column("updated_at", INSTANT))
    said = refused(odd)
    assert said.startswith('table "orders": column "odd" is ')
    assert re.search(says, said)
    assert [c.name for c in tracked(odd, {"columns": ["id", "updated_at"]}).columns] == ["id", "updated_at"]
    path, of_none = tmp_path / "1.parquet", segments.Metadata(1, 0, 0, "poll", 1, 1, Watermark(""))
    with contextlib.suppress(pa.ArrowException, OSError):
        segments.write(path, pa.schema([("odd", type_)]).empty_table(), of_none, NOTHING)
        assert segments.columns(path).field("odd").type != type_


def test_a_nested_key_and_nested_names_that_spark_takes_for_one_are_refused() -> None:
    nested = column("ids", pa.list_(pa.int64()))
    assert 'key column "ids" is' in refused(table(nested, column("updated_at", INSTANT)), {"primary_key": ["ids"]})
    pair = pa.list_(pa.struct([("a", pa.int64()), ("A", pa.int64())]))
    followed = dataclasses.replace(tracked(table(column("p", pair), column("updated_at", INSTANT))), sinks=("lake",))
    with pytest.raises(SettingsError, match='columns "a" and "A" differ only in case'):
        no_twins(followed)
