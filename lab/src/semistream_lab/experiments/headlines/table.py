"""The headlines: about a dozen main results of the five papers, and one beyond them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from semistream_lab.experiments.headlines.headline import Headline, Lines, Row, row_of
from semistream_lab.experiments.judge.verdicts import Judged
from semistream_lab.experiments.papers.beyond import ADAPTIVE, DATA
from semistream_lab.experiments.papers.reasons.cmesh_reasons import no_gain_on_data
from semistream_lab.experiments.papers.settings import published, tuned
from semistream_lab.experiments.papers.ssij.ssij_setups import AUTHORS, EQUAL_SSIJ, MESH, SSIJ, TUNED_MESH, TUNED_SSIJ

__all__ = ["HEADLINES", "headline_rows"]


def _pairs(experiments: Iterable[str], names: tuple[str, ...]) -> tuple[Lines, ...]:
    first, second = names
    return tuple(Lines(name, first, second) for name in experiments)


def _three(experiments: tuple[str, ...], first: str, second: str) -> dict[str, Any]:
    """Return a ratio as published, tuned, and on today's disk as published."""
    names, best = published(first, second), tuned(first, second)
    return {
        "as_published": _pairs(experiments, names), "tuned": _pairs(experiments, best),
        "today": _pairs(experiments, names),
    }  # fmt: skip


def _ssij(*experiments: str) -> dict[str, Any]:
    return {
        "as_published": _pairs(experiments, (SSIJ, AUTHORS)), "equal": _pairs(experiments, (EQUAL_SSIJ, MESH)),
        "tuned": _pairs(experiments, (TUNED_SSIJ, TUNED_MESH)), "today": _pairs(experiments, (EQUAL_SSIJ, MESH)),
    }  # fmt: skip


def _up_to_five(first: str, second: str) -> tuple[Lines, ...]:
    """Return ratios on other data with up to 5 % memory: 10 % would hold most of the stream of line items."""
    return (Lines("ssij-8", first, second, (1.0, 2.5, 5.0)),)


def _adaptive(other: str) -> tuple[Lines, ...]:
    return (Lines("beyond-2", ADAPTIVE, other, (1.0,)),)


def _adaptive_on(other: str, *data: str, at: tuple[float, ...] = ()) -> tuple[Lines, ...]:
    return tuple(Lines("beyond-3", ADAPTIVE, other, at, DATA[name]) for name in data)


_X_TUNED, _C_TUNED, _H_TUNED = tuned("X-HYBRIDJOIN", "CMESHJOIN", "HYBRIDJOIN")
_P_TUNED, _OP_TUNED, _CACHE_TUNED = tuned("P-CACHEJOIN", "OP-CACHEJOIN", "CACHEJOIN")
_CACHES_A, _CACHES_B = (tuple(f"{name}{letter}" for letter in "abc") for name in ("pcache-4", "opcache-6"))

HEADLINES = (
    Headline(
        id="cmesh-skew", paper="CMESHJOIN", text="CMESHJOIN is faster than MESHJOIN at skew 1",
        published="5× with 1 % memory, 7× with 10 %", **_three(("cmesh-3b",), "CMESHJOIN", "MESHJOIN"),
        adaptive=_adaptive_on(_C_TUNED, "random"),
    ),
    Headline(
        id="cmesh-data", paper="CMESHJOIN", text="CMESHJOIN is faster on TPC-H and on weather reports",
        published="4× on TPC-H", **_three(("cmesh-3e", "cmesh-3f"), "CMESHJOIN", "MESHJOIN"), cause="paper",
        adaptive=_adaptive_on(_C_TUNED, "orders", "many reports"),
        why=lambda outcomes: no_gain_on_data(outcomes["cmesh-3e"], outcomes["cmesh-3f"]),
    ),
    Headline(
        id="pcache", paper="P- and OP-CACHEJOIN", text="P-CACHEJOIN is faster than CACHEJOIN",
        published="significantly better", **_three(_CACHES_A, "P-CACHEJOIN", "CACHEJOIN"),
        adaptive=_adaptive(_P_TUNED),
    ),
    Headline(
        id="opcache", paper="P- and OP-CACHEJOIN", text="OP-CACHEJOIN is faster than P-CACHEJOIN",
        published="by a huge margin", **_three(_CACHES_B, "OP-CACHEJOIN", "P-CACHEJOIN"),
        adaptive=_adaptive(_OP_TUNED),
    ),
    Headline(
        id="ssij-mesh", paper="SSIJ", text="SSIJ is faster than MESHJOIN at skew 1",
        published="up to 6×", **_ssij("ssij-5", "ssij-6"), adaptive=_adaptive_on(TUNED_SSIJ, "zipf"),
    ),
    Headline(
        id="ssij-many", paper="SSIJ", text="SSIJ is faster with 400 rows per key", published="9×",
        as_published=(Lines("ssij-7", SSIJ, AUTHORS, (400.0,)),),
        equal=(Lines("ssij-7", EQUAL_SSIJ, MESH, (400.0,)),),
        tuned=(Lines("ssij-7", TUNED_SSIJ, TUNED_MESH, (400.0,)),), adaptive=_adaptive_on(TUNED_SSIJ, "1:400"),
    ),
    Headline(
        id="ssij-data", paper="SSIJ", text="SSIJ is faster on TPC-H and on weather reports, memory up to 5 %",
        published="very significant benefits", as_published=_up_to_five(SSIJ, AUTHORS),
        equal=_up_to_five(EQUAL_SSIJ, MESH), tuned=_up_to_five(TUNED_SSIJ, TUNED_MESH),
        adaptive=_adaptive_on(TUNED_SSIJ, "items", "reports"),
    ),
    Headline(
        id="ssij-little", paper="SSIJ", text="SSIJ's rate with 1 % memory", published="3000/s or more", rate=3000.0,
        as_published=(Lines("ssij-5", SSIJ, at=(1.0,)),), equal=(Lines("ssij-5", EQUAL_SSIJ, at=(1.0,)),),
        tuned=(Lines("ssij-5", TUNED_SSIJ, at=(1.0,)),), today=(Lines("ssij-5", EQUAL_SSIJ, at=(1.0,)),),
        adaptive=_adaptive_on(TUNED_SSIJ, "zipf", at=(1.0,)),
    ),
    Headline(
        id="ssij-locality", paper="SSIJ", text="SSIJ's rate on a stream with locality, 10 % memory",
        published="480 000/s", rate=480_000.0, equal=(),
        as_published=(Lines("ssij-t3", "dynamic memory", at=(10.0,), record="nominal"),),
        adaptive=_adaptive_on(TUNED_SSIJ, "locality"),
    ),
    Headline(
        id="hybrid-mesh", paper="HYBRIDJOIN", text="HYBRIDJOIN is faster than MESHJOIN",
        published="better at all memories and sizes", **_three(("hybrid-10c", "hybrid-10d"), "HYBRIDJOIN", "MESHJOIN"),
        adaptive=_adaptive(_H_TUNED),
    ),
    Headline(
        id="hybrid-inlj", paper="HYBRIDJOIN", text="HYBRIDJOIN is faster than an index nested loop join",
        published="better at all memories and sizes",
        as_published=_pairs(("hybrid-10c", "hybrid-10d"), (*published("HYBRIDJOIN"), "INLJ")),
        tuned=_pairs(("hybrid-10c", "hybrid-10d"), (_H_TUNED, "INLJ")),
        today=_pairs(("hybrid-10c", "hybrid-10d"), (*published("HYBRIDJOIN"), "INLJ")),
        adaptive=_adaptive(_H_TUNED),
    ),
    Headline(
        id="xhybrid-hybrid", paper="X-HYBRIDJOIN", text="X-HYBRIDJOIN is faster than HYBRIDJOIN at skew 1",
        published="1.4× at 0.5 M rows, 2× at 8 M", **_three(("xhybrid-3b",), "X-HYBRIDJOIN", "HYBRIDJOIN"),
        adaptive=_adaptive(_X_TUNED),
    ),
    Headline(
        id="cachejoin-hybrid", paper="Beyond the papers", text="CACHEJOIN is faster than HYBRIDJOIN at skew 1",
        published="not in the five papers", **(_three(("beyond-1",), "CACHEJOIN", "HYBRIDJOIN") | {"today": ()}),
        adaptive=_adaptive(_CACHE_TUNED),
    ),
)  # fmt: skip
"""In the order of the table."""


def headline_rows(judged: Iterable[Judged], today: Iterable[Judged] = ()) -> list[Row]:
    """Return the rows of the table, from judged experiments of a simulated run and of one on today's disk."""
    here, there = (
        {one.experiment.id: one.outcome for one in group if one.outcome.measured()} for group in (judged, today)
    )
    return [row_of(headline, here, there) for headline in HEADLINES]
