"""Names as people write them in settings, held against what a table has; and all that is wrong, said at once."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from sidecar import cursor
from sidecar.errors import SettingsError
from sidecar.model import Table
from sidecar.settings.words import did_you_mean, listed

_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


class collecting:  # noqa: N801  reads as what it does
    """Run a block; what is wrong there joins *problems* instead of ending everything."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems

    def __enter__(self) -> None: ...

    def __exit__(self, type_: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, SettingsError):
            self.problems.append(str(error))
            return True
        return False


@contextlib.contextmanager
def setting_apart(broken: dict[str, SettingsError], name: str) -> Iterator[None]:
    """Run a block; what is wrong there is what is wrong with *name*."""
    try:
        yield
    except SettingsError as error:
        broken[name] = error


class Names:
    """A table's column names as people write them: exactly, or in another case where that is not ambiguous."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.all = [c.name for c in table.columns]

    def get(self, name: str) -> str | None:
        if name in self.all:
            return name
        folded = [n for n in self.all if n.casefold() == name.casefold()]
        return folded[0] if len(folded) == 1 else None

    def must(self, name: str, setting: str) -> str:
        found = self.get(name)
        if found is not None:
            return found
        folded = [n for n in self.all if n.casefold() == name.casefold()]
        if folded:
            raise SettingsError(f'{self.where} {setting}: "{name}" may be any of {listed(folded)}; write it exactly')
        hint = did_you_mean(name, self.all)
        has = f" The table has {listed(self.all)}." if hint.startswith("; did") else ""
        raise SettingsError(f'{self.where} {setting}: there is no column "{name}"{hint}{has}')

    @property
    def where(self) -> str:
        return f'table "{self.table.name}":'

    def kind(self, name: str, setting: str) -> str:
        column = self.table.column(name)
        assert column is not None
        return cursor.kind(column.arrow, f'{self.where} {setting} = "{name}"')


def matches(name: str, pattern: str) -> bool:
    """Return whether *pattern* is for the table *name*; one without a schema may be meant as `public.…`, too."""
    # As it is first: a name may itself have brackets in it.
    if name == pattern or fnmatchcase(name, pattern):
        return True
    # A dot within quotes is no schema's.
    if "." in _QUOTED.sub("", name):
        return False
    plain = _QUOTED.sub(lambda found: found[1].replace('""', '"'), name)
    if "." not in pattern:
        # Of no schema: "p*" is not for all that is in `public`.
        return fnmatchcase(plain, pattern)
    return f"public.{name}" == pattern or fnmatchcase(f"public.{plain}", pattern)
