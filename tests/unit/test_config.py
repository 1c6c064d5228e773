"""sidecar.toml: what it says, what is wrong with it, and what it may not show."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar import config
from sidecar.clock import FakeClock
from sidecar.errors import SettingsError

MINIMAL = '[source]\nurl = "sqlite:///shop.db"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "sidecar.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        config.load(write(folder, text))
    return str(caught.value).splitlines()


def problem(folder: Path, text: str) -> str:
    found = problems(folder, text)
    assert len(found) == 1, found
    return found[0]


def test_the_documented_example_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "geheim")
    settings = config.load(
        write(
            tmp_path,
            """
            [source]
            url = "postgresql://reader:${SHOP_PASSWORD}@db.internal/shop?sslmode=require"
            [state]
            path = ".sidecar"
            retention = "30d"
            [defaults]
            lookback = "60s"
            [tables.orders]
            primary_key = ["tenant_id", "id"]
            updated_at = "updated_at"
            created_at = false
            deleted_at = "deleted_at"
            not_deleted = ["0000-00-00 00:00:00", 0]
            columns = ["id", "total"]
            timezone = "Europe/Berlin"
            page_size = 10000
            created_at_tolerance = "250ms"
            updated_at_unit = "ms"
            sinks = "lake"
            [sinks.lake]
            format = "parquet"
            mode = "append"
            path = "lake"
            transform = "mypackage.shapes:orders"
            options = { compression = "zstd", maxRecordsPerFile = 5, x = true }
            [spark]
            master = "local[4]"
            "spark.executor.memory" = "2g"
            spark.ui.enabled = false
            """,
        )
    )
    orders, lake = settings.tables["orders"], settings.sinks["lake"]
    assert settings.state.path == tmp_path / ".sidecar"
    assert settings.state.retention == 30 * 86_400_000_000
    assert settings.defaults.lookback == 60_000_000
    assert orders.primary_key == ("tenant_id", "id")
    assert orders.created_at is False
    assert orders.not_deleted == ("0000-00-00 00:00:00", 0)
    assert orders.created_at_tolerance == 250_000
    assert orders.sinks == ("lake",)
    assert lake.path == str(tmp_path / "lake")
    assert lake.options == {"compression": "zstd", "maxRecordsPerFile": "5", "x": "true"}
    assert settings.spark.master == "local[4]"
    assert settings.spark.conf == {"spark.executor.memory": "2g", "spark.ui.enabled": "false"}
    assert "geheim" not in repr(settings)


def test_segments_are_kept_for_ever_and_the_state_is_beside_the_file_by_default(tmp_path: Path) -> None:
    settings = config.load(write(tmp_path, MINIMAL))
    assert settings.state.retention is None
    assert settings.state.path == tmp_path / ".sidecar"
    assert settings.defaults.metadata_prefix == "_"


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("60s", 60_000_000),
        ("250ms", 250_000),
        ("5m", 300_000_000),
        ("1h", 3_600_000_000),
        ("7d", 7 * 86_400_000_000),
        ("2h30m", 9_000_000_000),
        ("0s", 0),
        ("1.5s", 1_500_000),
        ("10us", 10),
    ],
)
def test_a_duration_is_a_number_with_a_unit(tmp_path: Path, text: str, micros: int) -> None:
    settings = config.load(write(tmp_path, MINIMAL + f'[defaults]\nlookback = "{text}"\n'))
    assert settings.defaults.lookback == micros


@pytest.mark.parametrize("value", ["60", '"60"', "1.5"])
def test_a_duration_without_a_unit_is_an_error_that_shows_one_with(tmp_path: Path, value: str) -> None:
    said = problem(tmp_path, MINIMAL + f"[defaults]\nlookback = {value}\n")
    assert "[defaults] lookback" in said
    assert "has no unit" in said
    assert value.strip('"') + 's"' in said


@pytest.mark.parametrize("value", ["soon", "5 parsecs", "", "-5s", "5s ago"])
def test_what_is_no_duration_is_said_to_be_none(tmp_path: Path, value: str) -> None:
    assert "[defaults] lookback" in problem(tmp_path, MINIMAL + f'[defaults]\nlookback = "{value}"\n')


def test_an_unknown_key_names_file_section_key_and_the_nearest_known_one(tmp_path: Path) -> None:
    said = problem(tmp_path, MINIMAL + '[tables.orders]\nprimry_key = "id"\n')
    assert said == f'{tmp_path}/sidecar.toml: [tables.orders] unknown key "primry_key"; did you mean "primary_key"?'


def test_an_unknown_section_names_the_nearest_known_one(tmp_path: Path) -> None:
    assert 'unknown section [table]; did you mean "tables"?' in problem(tmp_path, MINIMAL + "[table.orders]\n")


@pytest.mark.parametrize("key", ['sweep_every = "1h"', 'on_delete = "mark"'])
def test_a_setting_of_a_later_release_is_unknown_rather_than_ignored(tmp_path: Path, key: str) -> None:
    assert "unknown key" in problem(tmp_path, MINIMAL + f"[tables.orders]\n{key}\n")


def test_an_unquoted_schema_is_explained(tmp_path: Path) -> None:
    said = problem(tmp_path, MINIMAL + '[tables.public.orders]\nupdated_at = "x"\n')
    assert 'write [tables."public.orders"]' in said


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    said = problems(
        tmp_path,
        """
        [source]
        timeout = "5s"
        url = "postgresql://${NO_SUCH_VARIABLE}@h/d"
        [tables.orders]
        page_size = 0
        timezone = "Europe/Berln"
        updated_at_unit = "min"
        created_at = true
        columns = []
        [sinks.lake]
        [sinks.other]
        mode = "upsert"
        history = "yes"
        path = "x"
        foreach = "no function"
        """,
    )
    text = "\n".join(said)
    for expected in (
        '[source] unknown key "timeout"',
        "NO_SUCH_VARIABLE is not set",
        "[tables.orders] page_size: must be a whole number above 0",
        "[sinks.other] history: must be true or false, without quotes",
        'did you mean "Europe/Berlin"?',
        '[tables.orders] updated_at_unit: is none of "s", "ms", "us" or "ns"',
        "[tables.orders] created_at: must be a column's name, or false",
        "[tables.orders] columns: is an empty list",
        '[sinks.lake] no "path"',
        "[sinks.other] mode",
        "[sinks.other] foreach",
    ):
        assert expected in text
    assert all(line.startswith(str(tmp_path)) for line in said)
    assert "pydantic" not in text
    assert "Input" not in text


def test_of_what_the_environment_lacks_nothing_else_is_said(tmp_path: Path) -> None:
    text = f"""{MINIMAL}
        [state]
        log = "${{LOG}}"
        [defaults]
        sinks = ["${{SINK}}"]
        [sinks.lake]
        format = "${{FORMAT}}"
        mode = "mirror"
        path = "lake"
        [sinks.other]
        format = "csv"
        """
    said = "\n".join(problems(tmp_path, text))
    assert [name for name in ("LOG", "SINK", "FORMAT") if f"the environment variable {name} is not set" in said] == [
        "LOG", "SINK", "FORMAT",
    ]  # fmt: skip
    assert said.count("\n") == 3
    assert '[sinks.other] no "path"' in said


def test_a_source_that_the_environment_lacks_is_missed_by_who_opens_it(tmp_path: Path) -> None:
    text = (
        '[source]\nhost = "h"\nport = "${PORT}"\ndatabase = "d"\ninclude = ["${NAME}"]\n[sinks.lake]\npath = "lake"\n'
    )
    settings = config.load(write(tmp_path, text))
    with pytest.raises(SettingsError) as caught:
        config.source(settings, FakeClock())
    assert [line.partition(": ")[2].partition(" (")[0] for line in str(caught.value).splitlines()] == [
        "[source] port: the environment variable PORT is not set",
        "[source] include.0: the environment variable NAME is not set",
    ]


def test_a_word_that_is_nearly_right_is_told_which_is_meant(tmp_path: Path) -> None:
    text = f"""{MINIMAL}
        [tables.orders]
        json = {{ payload = "varient" }}
        [sinks.lake]
        mode = "miror"
        path = "lake"
        [backfill]
        engine = "Spark"
        """
    orders, lake, backfill = problems(tmp_path, text)
    assert orders.endswith('"payload" must be one of "string", "variant"; did you mean "variant"?')
    assert lake.endswith('mode: is none of "append" or "mirror"; did you mean "mirror"?')
    assert backfill.endswith('engine: is none of "local" or "spark"; did you mean "spark"?')


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="sidecar init URL"):
        config.load(tmp_path / "sidecar.toml")


def test_what_is_no_toml_says_in_which_line(tmp_path: Path) -> None:
    assert "line 2" in problem(tmp_path, "[source]\nurl = sqlite\n")


@pytest.mark.parametrize(
    "source", ["", '[source]\nuser = "x"', '[source]\nurl = "x"', '[source]\nurl = "a://b"\nhost = "c"']
)
def test_a_source_without_one_clear_place_is_an_error(tmp_path: Path, source: str) -> None:
    assert "[source]" in problem(tmp_path, source + "\n")


def test_a_table_that_names_an_unknown_sink_is_an_error(tmp_path: Path) -> None:
    said = problem(tmp_path, MINIMAL + '[tables.orders]\nsinks = ["lak"]\n[sinks.lake]\npath = "lake"\n')
    assert 'there is no [sinks.lak]; did you mean "lake"?' in said


def test_a_function_is_given_instead_of_a_path(tmp_path: Path) -> None:
    said = problem(tmp_path, MINIMAL + '[sinks.x]\nforeach = "m:f"\npath = "p"\n')
    assert '"foreach" is given instead of path' in said
    assert config.load(write(tmp_path, MINIMAL + '[sinks.x]\nforeach = "m:f"\n')).sinks["x"].foreach == "m:f"


def test_a_bucket_is_left_as_it_is(tmp_path: Path) -> None:
    settings = config.load(write(tmp_path, MINIMAL + '[sinks.x]\npath = "s3a://bucket/lake"\n'))
    assert settings.sinks["x"].path == "s3a://bucket/lake"


# -- where to connect --------------------------------------------------------------------------------------------------

PASSWORD = "p@ss:w/rd#1%2F?&=+ é'\"\\"


def url_of(folder: Path, source: str) -> str:
    return config.source(config.load(write(folder, f"[source]\n{source}\n")), FakeClock()).url


def test_a_password_from_the_environment_may_hold_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    monkeypatch.setenv("SHOP_USER", "rc65 user@x")
    url = url_of(tmp_path, 'url = "postgresql://${SHOP_USER}:${SHOP_PASSWORD}@h:5433/d?application_name=${SHOP_USER}"')
    assert url == (
        "postgresql://rc65%20user%40x:p%40ss%3Aw%2Frd%231%252F%3F%26%3D%2B%20%C3%A9%27%22%5C@h:5433/d"
        "?application_name=rc65 user@x"
    )


def test_a_url_that_is_one_reference_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:p%40ss@h/d")
    assert url_of(tmp_path, 'url = "${DATABASE_URL}"') == "postgresql://u:p%40ss@h/d"


def test_user_and_password_stand_beside_the_url_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", PASSWORD)
    text = '[source]\nhost = "::1"\nport = "5433"\ndatabase = "a b/c"\nuser = "rc65 user@x"\npassword = "${PW}"\n'
    source = config.source(config.load(write(tmp_path, text)), FakeClock())
    assert source.url == "postgresql://[::1]:5433/a%20b%2Fc"
    assert (source.user, source.password) == ("rc65 user@x", PASSWORD)
    assert PASSWORD not in repr(source)


def test_timeouts_reach_the_connector_in_seconds(tmp_path: Path) -> None:
    source = config.source(config.load(write(tmp_path, MINIMAL + 'lock_timeout = "250ms"\n')), FakeClock())
    assert (source.connect_timeout, source.lock_timeout, source.statement_timeout) == (10.0, 0.25, 300.0)


def test_a_sqlite_path_starts_from_the_settings_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a b%"
    folder.mkdir()
    assert url_of(folder, 'url = "sqlite:///data/shop.db"') == f"sqlite:///{tmp_path}/a%20b%25/data/shop.db"
    assert url_of(folder, 'url = "sqlite:////srv/shop.db"') == "sqlite:////srv/shop.db"


def test_a_literal_reference_can_be_written(tmp_path: Path) -> None:
    settings = config.load(write(tmp_path, MINIMAL + "[tables.t]\ndeleted_when = \"x = '$${Y}'\"\n"))
    assert settings.tables["t"].deleted_when == "x = '${Y}'"


def test_a_missing_variable_names_itself_and_its_key(tmp_path: Path) -> None:
    said = problem(tmp_path, MINIMAL + '[sinks.lake]\npath = "lake"\noptions = { key = "${NOT_SET_ANYWHERE}" }\n')
    assert "[sinks.lake] options.key" in said
    assert "NOT_SET_ANYWHERE is not set" in said


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_a_secret_at_the_wrong_key_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "hunter2x")
    said = problem(tmp_path, MINIMAL + '[defaults]\nlookback = "${PW}"\n')
    assert "hunter2x" not in said
    assert "***" in said


def test_the_settings_know_all_their_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_KEY", "from-environment")
    settings = config.load(
        write(
            tmp_path,
            """
            [source]
            url = "postgresql://u:in-the-url@h/d"
            password = "beside-it"
            [sinks.lake]
            path = "lake"
            options = { a = "${S3_KEY}", "fs.s3a.secret.key" = "in-the-options", plain = "visible" }
            [spark]
            "spark.hadoop.fs.s3a.access.key" = "in-spark"
            """,
        )
    )
    text = settings.secrets.scrub("in-the-url beside-it from-environment in-the-options in-spark visible")
    assert text == "*** *** *** *** *** visible"


SOURCE = '[source]\nurl = "sqlite:///a.db"\n'


def test_how_values_arrive_is_said_in_general_or_column_by_column(tmp_path: Path) -> None:
    text = '[defaults]\nnumeric = "double"\njson = "variant"\n[tables.t]\narrays = "string"\n'
    settings = config.load(write(tmp_path, SOURCE + text + 'numeric = { a = "decimal(38, 10)", "b c" = "string" }'))
    assert (settings.defaults.numeric, settings.defaults.json_) == ("double", "variant")
    assert settings.tables["t"].numeric == {"a": "decimal(38,10)", "b c": "string"}
    assert (settings.tables["t"].arrays, settings.tables["t"].infinity) == ("string", None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('numeric = "decimal(39,2)"', 'numeric: must be "string", "double" or "decimal(P,S)" with P up to 38'),
        ('numeric = "decimal(5,6)"', "numeric: must be"),
        ('numeric = { a = "float" }', 'numeric: "a" must be "string", "double" or "decimal(P,S)"'),
        ("numeric = 5", "numeric: must be"),
        ('infinity = "ignore"', 'infinity: must be one of "error", "null", "keep as string"'),
        ('arrays = { a = "text" }', 'arrays: "a" must be one of "list", "string"'),
        ('json = "struct"', 'json: must be one of "string", "variant"'),
        ('jsn = "variant"', 'unknown key "jsn"; did you mean "json"?'),
    ],
)
def test_a_form_that_there_is_not_names_those_there_are(tmp_path: Path, line: str, said: str) -> None:
    assert f"[tables.t] {said}" in problem(tmp_path, f"{SOURCE}[tables.t]\n{line}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sinks = [[]]", "sinks: must be a list of names in quotes; a list is among them"),
        ('columns = [""]', "columns: must be a list of names in quotes; an empty text is among them"),
        ("primary_key = [0]", "primary_key: must be a list of names in quotes; a number is among them"),
        ("not_deleted = [[]]", "not_deleted: must be a list of texts and numbers; a list is among them"),
        ("refresh_on = 1", "refresh_on: must be a list of sections, each with keys of its own"),
        ("refresh_on = [1]", "refresh_on.0: must be a section with keys of its own"),
        ('refresh_on = [{ table = "p" }]', "refresh_on.0.on: is not said"),
        (
            'refresh_on = [{ table = "p", on = { a = "b" }, when = "x" }]',
            'refresh_on.0: unknown key "when"',
        ),
    ],
)
def test_what_is_no_member_of_a_list_is_named_also_where_it_is_nothing(tmp_path: Path, line: str, said: str) -> None:
    assert problem(tmp_path, f"{SOURCE}[tables.orders]\n{line}").endswith(f"[tables.orders] {said}")


@pytest.mark.parametrize("name", ["numeric", "infinity", "arrays", "json"])
def test_defaults_say_nothing_of_columns_by_name(tmp_path: Path, name: str) -> None:
    assert f"[defaults] {name}: must be" in problem(tmp_path, f'{SOURCE}[defaults]\n{name} = {{ a = "string" }}')


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('mode = "append"\ntable = "lake.{table}"', '"table" is for mode = "mirror"'),
        ('mode = "mirror"\ntable = "lake.{table}"\npath = "lake"', "keep one of them"),
        ('mode = "mirror"\ntable = "lake.{table}"\nvacuum_after = "1h"', 'the upkeep of a "table" is its catalog\'s'),
        ('mode = "mirror"\ntable = "lake..{table}"', 'is no name; write it as "catalog.schema.{table}"'),
        ('mode = "mirror"\ntable = "lake.shop.orders"', "is one name for many tables"),
        ('foreach = "a:b"\ntable = "lake.{table}"', '"foreach" is given instead of table'),
    ],
)
def test_what_cannot_be_said_of_a_mirror_in_a_catalog(tmp_path: Path, lines: str, said: str) -> None:
    assert said in problem(tmp_path, f"{MINIMAL}[sinks.x]\n{lines}")


def test_two_mirrors_cannot_keep_one_table_of_a_catalog(tmp_path: Path) -> None:
    one, other = (f'[sinks.{name}]\nmode = "mirror"\ntable = "lake.{{table}}"\n' for name in ("one", "other"))
    assert "[sinks.other] table: [sinks.one] keeps its mirrors there" in problem(tmp_path, MINIMAL + one + other)
    config.load(write(tmp_path, MINIMAL + one + other.replace("lake", "pond")))


def test_two_mirrors_cannot_keep_one_table(tmp_path: Path) -> None:
    one, other = (f'[sinks.{name}]\nmode = "mirror"\nformat = "delta"\npath = "lake"\n' for name in ("one", "other"))
    said = problem(tmp_path, MINIMAL + one + other)
    assert "[sinks.other] path: [sinks.one] keeps its mirrors there; give this one another" in said
    config.load(write(tmp_path, MINIMAL + one + 'tables = ["a"]\n' + other + 'tables = ["b"]\n'))
    shared = problem(tmp_path, MINIMAL + one + 'tables = ["a", "b"]\n' + other + 'tables = ["b"]\n')
    assert "[sinks.one]" in shared
    config.load(write(tmp_path, MINIMAL + one + other.replace('"lake"', '"pond"')))
