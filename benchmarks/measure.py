"""Runs, medians, ratios: contenders take turns, so that a noisy machine is noisy for all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Sample:
    """One run's figure, and the parts that it is made of, where they are known."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """Somebody who takes turns. `against` names the contender that its ratio is taken against; `aim` bounds the ratio.

    `limit` bounds the figure itself, in the question's unit.
    """

    name: str
    run: Callable[[], Sample]
    against: str | None = None
    aim: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Result:
    """What one contender did. `ratio` is the median of the ratios round by round: both ran in the same weather."""

    name: str
    samples: Sequence[float]
    median: float
    parts: Mapping[str, float]
    against: str | None = None
    ratio: float | None = None
    aim: float | None = None
    limit: float | None = None

    @property
    def reached(self) -> bool | None:
        """Return whether the aim was reached; None where there is none."""
        bounds = [(self.ratio, self.aim), (self.median, self.limit)]
        known = [figure <= bound for figure, bound in bounds if figure is not None and bound is not None]
        return all(known) if known else None


@dataclass(frozen=True)
class Answer:
    """The answer to one question: a table of results, and what must be known to read it."""

    question: str
    title: str
    unit: str
    results: Sequence[Result]
    notes: Sequence[str] = ()

    def as_json(self) -> dict[str, object]:
        """Return everything, the single runs too."""
        return asdict(self) | {"results": [asdict(r) | {"reached": r.reached} for r in self.results]}


def timed(work: Callable[[], object]) -> Sample:
    """Return how long *work* took, in seconds."""
    began = time.perf_counter()
    work()
    return Sample(time.perf_counter() - began)


def take_turns(
    contenders: Sequence[Contender], runs: int, *, warm: int = 1, say: Callable[[str], None] = lambda _: None
) -> list[Result]:
    """Run A B C A B C …, *runs* rounds after *warm* rounds that do not count, and return what came out."""
    samples: dict[str, list[Sample]] = {c.name: [] for c in contenders}
    for turn in range(-warm, runs):
        for contender in contenders:
            say(f"{contender.name}, {'warming up' if turn < 0 else f'run {turn + 1} of {runs}'}")
            sample = contender.run()
            if turn >= 0:
                samples[contender.name].append(sample)
    return [_result(c, samples) for c in contenders]


def _result(contender: Contender, samples: Mapping[str, Sequence[Sample]]) -> Result:
    own = samples[contender.name]
    ratio = None
    if contender.against is not None:
        pairs = zip(own, samples[contender.against], strict=True)
        ratio = statistics.median(a.value / b.value for a, b in pairs)
    parts = {name: statistics.median(s.parts[name] for s in own) for name in own[0].parts}
    values = [s.value for s in own]
    return Result(
        contender.name,
        values,
        statistics.median(values),
        parts,
        contender.against,
        ratio,
        contender.aim,
        contender.limit,
    )


def show(console: Console, answer: Answer) -> None:
    """Print *answer* as a table, with its notes below."""
    table = Table(title=answer.title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
    shown = ["", f"median {answer.unit}", "least – most", "ratio", "against", "aim", "of which"]
    rows = [_row(r, answer.unit) for r in answer.results]
    used = [i for i in range(len(shown)) if any(row[i] for row in rows)]
    for index in used:
        table.add_column(shown[index], justify="right" if index in (1, 2, 3) else "left", no_wrap=index < 4)
    for row in rows:
        table.add_row(*(row[i] for i in used))
    console.print()
    console.print(table)
    for note in answer.notes:
        console.print(f"  {note}", style="dim", highlight=False, markup=False)


def _row(result: Result, unit: str) -> tuple[str, ...]:
    return (
        result.name,
        number(result.median),
        f"{number(min(result.samples))} – {number(max(result.samples))}",
        "" if result.ratio is None else f"{result.ratio:.2f}×",
        result.against or "",
        _aim(result, unit),
        ", ".join(f"{name} {number(value)}" for name, value in result.parts.items()),
    )


def number(value: float) -> str:
    """Return *value* with three figures, as people write it."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _aim(result: Result, unit: str) -> str:
    wanted = [f"≤ {result.aim:g}×"] if result.aim is not None else []
    wanted += [f"≤ {result.limit:g} {unit}"] if result.limit is not None else []
    if not wanted:
        return ""
    return f"{' and '.join(wanted)} {'reached' if result.reached else 'missed'}"
