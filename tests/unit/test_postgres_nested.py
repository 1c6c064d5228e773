"""Arrays, composites and hstores as the server prints them; what is none of these is refused, never guessed."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors import postgres_nested as nested
from connectors import postgres_types as types
from connectors import postgres_values as values
from connectors.postgres_types import Choice, Kind

texts = st.text(st.characters(exclude_characters="\0"), max_size=6) | st.text('"\\{}(),; NUL\n', max_size=6)
items = st.none() | texts


def quoted(text: str | None) -> str:
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.lists(items, min_size=1, max_size=5))
def test_an_array_is_taken_apart_as_it_was_written(found: list[str | None]) -> None:
    assert nested.array("{" + ",".join(map(quoted, found)) + "}") == (found, (len(found),))


@given(st.lists(st.lists(items, min_size=2, max_size=2), min_size=1, max_size=3))
def test_an_array_of_two_dimensions_is_taken_apart_row_by_row(rows: list[list[str | None]]) -> None:
    text = "{" + ",".join("{" + ",".join(map(quoted, row)) + "}" for row in rows) + "}"
    assert nested.array(text) == ([item for row in rows for item in row], (len(rows), 2))


@pytest.mark.parametrize(
    ("text", "found", "shape"),
    [
        ("{}", [], ()),
        ("{1,NULL,-3}", ["1", None, "-3"], (3,)),
        ('{NULL,"NULL",null}', [None, "NULL", "null"], (3,)),
        ('{""}', [""], (1,)),
        ("{{1,2},{3,NULL}}", ["1", "2", "3", None], (2, 2)),
        ("{{{1}},{{2}}}", ["1", "2"], (2, 1, 1)),
        ('{"a\\"b","c\\\\d","{}",é}', ['a"b', "c\\d", "{}", "é"], (4,)),
        ("{a\xa0b}", ["a\xa0b"], (1,)),
    ],
)
def test_what_the_server_prints_of_arrays(text: str, found: list[str | None], shape: tuple[int, ...]) -> None:
    assert nested.array(text) == (found, shape)


def test_boxes_stand_apart_by_semicolons() -> None:
    assert nested.array("{(3,4),(1,2);(1,1),(0,0)}", ";") == (["(3,4),(1,2)", "(1,1),(0,0)"], (2,))
    assert nested.array("{{(3,4),(1,2)};{NULL}}", ";") == (["(3,4),(1,2)", None], (2, 1))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            "}",
            "1",
            "{1",
            "1}",
            "{1}}",
            "{{1}",
            "{1,}",
            "{,1}",
            "{1,,2}",
            "{1}{2}",
            "{1} ",
            " {1}",
            "{ 1}",
            "{a b}",
        ),
        *('{"a}', '{"a"b}', '{a"b"}', '{"a""b"}', '{"a\\"}', "{a\\b}", "{{1},2}", "{1,{2}}", "{{1},{2,3}}", "{{1},{}}"),
        *("{{}}", "{{},{}}", "{{{1}},{2}}", "{1};{2}", "{{1}2}", "{1{2}}", '{"a" ,"b"}'),
    ],
)
def test_what_is_no_array_raises(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        nested.array(text)


@pytest.mark.parametrize("text", ["[0:1]={1,2}", "[2:2][1:1]={{1}}", "[-1:0]={1,2}"])
def test_an_array_that_counts_from_elsewhere_is_told_apart(text: str) -> None:
    with pytest.raises(nested.OtherBounds):
        nested.array(text)


@given(st.lists(items, min_size=1, max_size=5))
def test_a_composite_is_taken_apart_as_it_was_written(found: list[str | None]) -> None:
    fields = ("" if f is None else '"' + f.replace("\\", "\\\\").replace('"', '""') + '"' for f in found)
    assert nested.record("(" + ",".join(fields) + ")", len(found)) == found


def test_a_null_and_an_empty_text_are_two_things_in_a_composite() -> None:
    assert nested.record('(,"",a)', 3) == [None, "", "a"]
    assert nested.record("()", 0) == []
    assert nested.record("()", 1) == [None]


@pytest.mark.parametrize(
    "text", ["", "(", ")", "1,2", "(1,2", "1,2)", "(1,2)x", "(1)", "(1,2,3)", '(1,"2)', '(1,"2"x)', '(a"b,2)', "(1 ,2)",
             '(1,"a\\b")', "(1,(2))"]
)  # fmt: skip
def test_what_is_no_composite_of_two_raises(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        nested.record(text, 2)


@given(st.dictionaries(texts, items, max_size=4))
def test_an_hstore_is_taken_apart_as_it_was_written(found: dict[str, str | None]) -> None:
    text = ", ".join(f"{quoted(k)}=>{quoted(v)}" for k, v in found.items())
    assert nested.pairs(text) == (list(found), list(found.values()))


@pytest.mark.parametrize(
    "text",
    ['"a"', '"a"=>', '"a"=>1', 'a=>"1"', '"a"=>"1",', '"a"=>"1", ', '"a"=>"1""b"=>"2"', '"a"=>null', '"a"=>"1" '],
)
def test_what_is_no_hstore_raises(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        nested.pairs(text)


def decode(kind: Kind, given: list[str | None], how: Choice | None = None) -> tuple[list[Any], list[int]]:
    how = how or Choice()
    wire = types.Wire("c", "c", types.arrow_type(kind, how), pa.string(), None, kind, how.infinity)
    found, rows = values.final(pa.chunked_array([given[:1], given[1:]], pa.string()), wire)
    assert found.type == wire.final
    return found.to_pylist(), rows


def array(element: Kind, depth: int = 1) -> Kind:
    return Kind("_" + element.name, shape="array", parts=(("element", element),), depth=depth)


MONEY = Kind("numeric", typmod=(10 << 16 | 2) + 4)


def test_elements_are_of_the_type_of_the_element() -> None:
    assert decode(array(Kind("int4")), ["{1,NULL}", None, "{}", "{-7}"])[0] == [[1, None], None, [], [-7]]
    assert decode(array(Kind("bool")), ["{t,f,NULL}"])[0] == [[True, False, None]]
    assert decode(array(Kind("bytea")), ['{"\\\\x00ff","\\\\x",NULL}'])[0] == [[b"\x00\xff", b"", None]]
    assert decode(array(MONEY), ["{1.50,-0.01}"])[0] == [[Decimal("1.50"), Decimal("-0.01")]]
    assert decode(array(Kind("date")), ["{0001-01-01,9999-12-31}"])[0] == [[date.min, date.max]]
    assert decode(array(Kind("timestamptz")), ['{"2024-05-01 10:00:00.000001+00"}'])[0] == [
        [datetime(2024, 5, 1, 10, 0, 0, 1, tzinfo=UTC)]
    ]
    assert decode(array(Kind("int8"), 2), ["{{1,2},{3,4}}", "{}", None])[0] == [[[1, 2], [3, 4]], [], None]


@pytest.mark.parametrize(
    ("kind", "text", "what"),
    [
        (array(Kind("int4")), "{{1}}", "array of 2 dimensions, and is declared with 1 dimension"),
        (array(Kind("int4"), 2), "{1}", "array of 1 dimension, and is declared with 2 dimensions"),
        (array(Kind("int4")), "[0:0]={1}", "counts from another number than 1"),
        (array(Kind("date")), "{infinity}", "a time that is infinite"),
        (array(Kind("date")), '{"0044-03-15 BC"}', "a time that is infinite or outside"),
        (array(Kind("timestamptz")), '{"10000-01-01 00:00:00+00"}', "outside the years 1 to 9999"),
        (array(MONEY), "{1.00,NaN}", "NaN or infinity"),
        (MONEY, "-Infinity", "NaN or infinity"),
    ],
)
def test_what_has_no_place_is_named_with_its_row(kind: Kind, text: str, what: str) -> None:
    with pytest.raises(values.Misfit, match=what) as caught:
        decode(kind, [None, None, text])
    assert caught.value.row == 2
    assert "{ c = " in caught.value.advice


def test_what_has_no_place_becomes_null_where_that_is_asked() -> None:
    how = Choice(infinity="null")
    assert decode(array(Kind("date")), ["{2024-05-01,infinity,-infinity}", "{2024-05-01}"], how) == (
        [[date(2024, 5, 1), None, None], [date(2024, 5, 1)]],
        [0],
    )
    assert decode(MONEY, ["1.00", "NaN", None], how) == ([Decimal("1.00"), None, None], [1])
    assert decode(Kind("numeric"), ["1", "NaN"], how) == (["1", None], [1])
    assert decode(array(Kind("float8")), ["{1,NaN,-Infinity}"], how) == ([[1.0, None, None]], [0])


DIGITS = "1234567890123456789012345678.1234567891"


def test_numbers_without_declared_digits_arrive_as_asked_or_not_at_all() -> None:
    kind = Kind("numeric")
    assert decode(kind, [DIGITS, "NaN"])[0] == [DIGITS, "NaN"]
    assert decode(kind, [DIGITS], Choice(numeric="decimal(38,10)"))[0] == [Decimal(DIGITS)]
    assert decode(kind, ["1.5" + "0" * 60], Choice(numeric="decimal(3,1)"))[0] == [Decimal("1.5")]
    assert str(decode(kind, ["0.1", "-Infinity"], Choice(numeric="double"))[0]) == "[0.1, -inf]"
    for text, how in (("0.12345", "decimal(38,4)"), ("1000", "decimal(3,0)"), ("1" + "0" * 400, "double")):
        with pytest.raises(values.Misfit, match="without loss") as caught:
            decode(kind, ["1", text], Choice(numeric=how))
        assert caught.value.row == 1
        assert text[:40] in caught.value.what


def test_a_type_that_has_grown_since_it_was_described_is_not_guessed() -> None:
    pair = Kind("pair", False, shape="record", parts=(("x", Kind("int4")), ("y", Kind("text"))))
    assert decode(pair, ['(1,"a b")', None, "(,)"])[0] == [{"x": 1, "y": "a b"}, None, {"x": None, "y": None}]
    with pytest.raises(values.Misfit, match="3 fields, its type 2") as caught:
        decode(pair, ["(1,a,b)"])
    assert caught.value.advice == "If its type has changed meanwhile, run again"


@pytest.mark.parametrize(("name", "text"), [("int4", "{1,2147483648}"), ("bool", "{t,x}"), ("float8", "{1,a}")])
def test_an_element_of_another_type_is_named_with_its_row(name: str, text: str) -> None:
    with pytest.raises(values.Misfit, match="holds a text that is no ") as caught:
        decode(array(Kind(name)), ["{}", None, text])
    assert caught.value.row == 2
