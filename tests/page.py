"""Runs the examples of a page of the documents, top to bottom, in the working folder, as a reader would.

    python -m tests.page docs/spark.md

The first ```toml block is the settings file; there is a small shop database, and one `sidecar run --once` comes before
the page's own examples. Each fenced block is then run by its language:

- ```python: in one namespace, in which `spark` is a session. `expression  # → 12` is compared: with what the statement
  prints, else with the value's repr.
- ```bash: with `-e`; every command must succeed.
- ```sql: by DuckDB, on one connection; by SQLite on the shop's database if its first line is `-- shop.db`.
- ```toml: sections of sidecar.toml, which are added to it, or take the place of those of the same name.
- ```text: what the block before it must have printed, blanks at the ends of lines aside.
- any other language, or a first line that is nothing but a comment with a file's name (`# pipeline/orders.py`): a file,
  which is written. (`# sidecar.toml` is what ```toml means anyway.)

In what is compared, `…` stands for anything. What cannot be run in a test comes after a line
`<!-- not run: reason -->`; it must parse all the same.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<text>.*?)^```[ ]*$", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"<!-- not run: (?P<reason>.*?) -->\s*\Z", re.DOTALL)
FILE = re.compile(r"(?:#|--|//) (?P<name>[\w./-]+\.\w+)")
RUN = {"python", "bash", "sql", "toml", "text"}
SETTINGS, SHOP = "sidecar.toml", "shop.db"

SHOP_SQL = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT,
    created_at TIMESTAMP NOT NULL, updated_at TIMESTAMP NOT NULL, deleted_at TIMESTAMP);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, status TEXT NOT NULL, total DECIMAL(12, 2),
    created_at TIMESTAMP NOT NULL, updated_at TIMESTAMP NOT NULL, deleted_at TIMESTAMP);
CREATE INDEX customers_by_update ON customers (updated_at, id);
CREATE INDEX orders_by_update ON orders (updated_at, id);
"""
ANY_PORT = {"SPARK_TESTING": "1"}
"""Else Spark Connect takes port 15002, or fails: another test may have it."""

NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Grace")
ORDERS = 20


class Wrong(Exception):
    """A block that does not do what the page says."""


@dataclass(frozen=True)
class Block:
    """A fenced block: what it says, in which language, and the page's line where it begins."""

    language: str
    text: str
    line: int
    not_run: str | None = None

    @property
    def file(self) -> str | None:
        """The file that its first line names."""
        found = FILE.fullmatch(self.text.partition("\n")[0].strip())
        return found["name"] if found else None


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of *page*, in its order."""
    found = []
    for match in FENCE.finditer(page):
        mark = MARK.search(page, 0, match.start())
        line = page.count("\n", 0, match.start("text")) + 1
        found.append(Block(match["language"].strip(), match["text"], line, mark["reason"] if mark else None))
    if page.count("```") != 2 * len(found):
        raise Wrong("the page's fences do not come in pairs, or do not begin their lines")
    return found


def make_shop(path: Path) -> None:
    """Make the shop: five customers, twenty orders of last month, the eighth and the sixteenth deleted."""
    connection = sqlite3.connect(path)
    with contextlib.closing(connection), connection:
        connection.executescript(SHOP_SQL)
        for id_, name in enumerate(NAMES, 1):
            at = f"2026-01-{id_:02d}T09:00:00Z"
            row = (id_, name, f"{name.lower()}@example.com", at, at)
            connection.execute("INSERT INTO customers VALUES (?, ?, ?, ?, ?, NULL)", row)
        for id_ in range(1, ORDERS + 1):
            created = f"2026-02-{id_:02d}T10:00:00Z"
            deleted = f"2026-02-{id_:02d}T17:00:00Z" if id_ % 8 == 0 else None
            status = "cancelled" if deleted else ("new", "paid", "sent")[id_ % 3]
            values = (id_, id_ % 5 + 1, status, 10 * id_ + 0.5, created, deleted or created, deleted)
            connection.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?)", values)


class Reader:
    """Does what a page says, in the working folder."""

    def __init__(self, page: str) -> None:
        """Be about to read *page*, which is only named in messages."""
        self.page = page
        self.printed = ""
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self._duckdb: Any = None

    def begin(self, settings: str) -> None:
        """Set the scene: *settings*, a shop, and one run."""
        Path(SETTINGS).write_text(settings)
        make_shop(Path(SHOP))
        self.bash(Block("bash", "sidecar run --once\n", 0))

    def run(self, block: Block) -> None:
        """Do what *block* says; Wrong if that fails, or has another outcome than the page says."""
        try:
            self._run(block)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise Wrong(f"{self.page}, line {block.line}, {block.language}: {reason}") from error

    def _run(self, block: Block) -> None:
        if block.not_run is not None:
            self.check(block)
        elif block.file not in (None, SHOP, SETTINGS):
            assert block.file is not None
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.text)
        elif block.language in RUN:
            getattr(self, block.language)(block)
        else:
            raise Wrong(f'nobody knows how to run "{block.language}", and its first line names no file')

    def check(self, block: Block) -> None:
        """Look whether *block* is at least well formed."""
        if not block.not_run:
            raise Wrong("is marked as not run, without a reason")
        if block.language == "python":
            self._compiled(block)
        elif block.language == "bash":
            subprocess.run(["bash", "-n", "-c", block.text], check=True)
        elif block.language == "toml":
            from sidecar import config

            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, SETTINGS)
                path.write_text(merged(Path(SETTINGS).read_text(), block.text))
                config.load(path)

    def python(self, block: Block) -> None:
        """Run it statement by statement."""
        if "spark" in block.text and "spark" not in self.namespace:
            from sidecar.lake.spark import session

            self.namespace["spark"] = session("docs")
        promised, printed = comments(block), []
        for statement in self._compiled(block).body:
            out, value = io.StringIO(), None
            with contextlib.redirect_stdout(out):
                if isinstance(statement, ast.Expr):
                    code = compile(ast.Expression(statement.value), self.page, "eval")
                    value = eval(code, self.namespace)
                else:
                    exec(compile(ast.Module([statement], []), self.page, "exec"), self.namespace)
            printed.append(out.getvalue())
            expected = promised.pop(statement.end_lineno, None)
            if expected is not None:
                compare(out.getvalue().strip() or repr(value), expected, f"line {statement.end_lineno}")
        if promised:
            raise Wrong(f"line {min(k for k in promised if k)}: an arrow stands at no end of a statement")
        self.printed = "".join(printed)

    def _compiled(self, block: Block) -> ast.Module:
        tree = ast.parse(block.text, self.page)
        ast.increment_lineno(tree, block.line - 1)
        return tree

    def bash(self, block: Block) -> None:
        """Run it with the environment's programs first on the PATH."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            env=os.environ | (ANY_PORT if block.text.startswith("spark-pipelines") else {}),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Wrong(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
        self.printed = done.stdout

    def sql(self, block: Block) -> None:
        """Run it by DuckDB, or by SQLite on the shop's own database."""
        if block.file == SHOP:
            with contextlib.closing(sqlite3.connect(SHOP)) as connection, connection:
                connection.executescript(block.text)
            return
        if self._duckdb is None:
            import duckdb

            self._duckdb = duckdb.connect()
            self._duckdb.execute("SET TimeZone = 'UTC'")
        relation = self._duckdb.sql(block.text)
        self.printed = "" if relation is None else f"{relation}"

    def toml(self, block: Block) -> None:
        """Add it to the settings."""
        Path(SETTINGS).write_text(merged(Path(SETTINGS).read_text(), block.text))

    def text(self, block: Block) -> None:
        """Compare it with what was printed last."""
        plain = "\n".join(line.rstrip() for line in self.printed.strip().splitlines())
        compare(plain, "\n".join(line.rstrip() for line in block.text.strip().splitlines()), f"line {block.line}")


def comments(block: Block) -> dict[int | None, str]:
    """Return the outcomes that *block* promises, by the page's line."""
    found: dict[int | None, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(block.text).readline):
        if token.type == tokenize.COMMENT and token.string.startswith("# →"):
            found[token.start[0] + block.line - 1] = token.string.removeprefix("# →").strip()
    return found


def compare(actual: str, expected: str, where: str) -> None:
    """Raise Wrong unless *actual* is *expected*, where `…` is anything."""
    pattern = ".*".join(map(re.escape, expected.split("…")))
    if not re.fullmatch(pattern, actual, re.DOTALL):
        raise Wrong(f"{where}: the page says\n{expected}\nand it is\n{actual}")


def merged(settings: str, more: str) -> str:
    """Return *settings* with the sections of *more* in place of those of the same name, or after them."""
    sections = dict(_sections(settings))
    sections.update(_sections(more))
    found = "\n".join(text.strip("\n") for text in sections.values()) + "\n"
    tomllib.loads(found)
    return found


def _sections(settings: str) -> Iterator[tuple[str, str]]:
    for text in re.split(r"^(?=\[)", settings, flags=re.MULTILINE):
        header = text.partition("\n")[0].partition("#")[0].strip()
        if header.startswith("["):
            yield header, text


def read(path: Path) -> None:
    """Do what the page at *path* says, in the working folder; Wrong says where that went otherwise."""
    found, reader = blocks(path.read_text()), Reader(path.name)
    settings = next(b for b in found if b.language == "toml")
    reader.begin(settings.text)
    for block in found:
        if block is settings:
            continue
        print(json.dumps({"line": block.line, "language": block.language}), flush=True)
        reader.run(block)


def environment(root: Path) -> dict[str, str]:
    """Return the environment of somebody who has installed the package that stands at *root*, and a Java."""
    from sidecar.lake import spark

    return os.environ | {
        "JAVA_HOME": str(spark._home(spark.find_java())),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "sidecar" / "discovery")]),
        "TZ": "UTC",
        "COLUMNS": "120",
    }


if __name__ == "__main__":
    read(Path(sys.argv[1]))
