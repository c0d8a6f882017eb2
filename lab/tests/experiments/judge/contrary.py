"""For every claim of every experiment: results that contradict its sentence, and results that agree with it."""

from __future__ import annotations

import math
from typing import Any

from experiments.judge.cases import (
    CA,
    OP,
    C,
    Case,
    Found,
    H,
    M,
    P,
    R,
    X,
    case,
    down,
    hill,
    model,
    order,
    peak,
    times,
    up,
)
from experiments.judge.formula_cases import by_formula, by_its_formulas, by_tuned_formulas, cache_sizes
from semistream_lab.experiments.judge.papers_formulas import hybrid_formula, index_formula, mesh_formula

FLAT = case(
    "MESHJOIN hardly changes", {M: up}, {M: down}, {M: lambda x: 1 + 0.3 * x}, agreeing={M: lambda x: 1 - 0.05 * x}
)
LARGEST_AT_LEAST = case(
    "The gain is largest at small memory", {"SSIJ": up}, {"SSIJ": lambda x: 0.5 / (1 + x)}, {}, agreeing={"SSIJ": down}
)


def slow(rate: float, tuples: float) -> dict[str, dict[str, Any]]:
    """MESHJOIN's highest rate, and the tuples that it holds then."""
    parts = {"memory_parts": {"stream table": tuples * 58}, "waiting_bytes": 58}
    return {"MESHJOIN at its highest rate": {"rate": rate, "counting": rate, **parts}}


CASES: dict[str, list[Case]] = {
    "cmesh-2": [
        cache_sizes(),
        model("Our own model", 0.05),
        case("The best cache size", {C: up}, {C: down}, agreeing={C: peak(15)}),
    ],
    "cmesh-3a": [
        case(
            "At each memory",
            {f"{C}, memory 2.5%": up},
            {},
            agreeing={f"{C}, memory {part}%": peak(20) for part in ("1", "2.5", "5")},
        ),
    ],
    "cmesh-3b": [
        order("CMESHJOIN is above", C, M),
        times("Up to 7", C, M, 7.0),
        times("Up to 5", C, M, 5.0),
        times("With 10 % memory the gain", C, M, 3.82),
    ],
    "cmesh-3c": [
        case(
            "CMESHJOIN is 4.5",
            {C: 5.5},
            {C: lambda x: 6.5 if x < 50 else 4.5},
            {C: lambda x: 9 if x < 50 else 13},
            agreeing={C: lambda x: 4.5 if x < 50 else 6.5},
        ),
        case("CMESHJOIN's rate falls", {C: lambda x: 1 / x}, {C: lambda x: x**-1.2}, agreeing={C: lambda x: x**-0.5}),
        case("CMESHJOIN is far above", {C: 2.0}, agreeing={C: 4.0}),
    ],
    "cmesh-3d": [
        times("About 7", C, M, 7.0),
        case("Below MESHJOIN only", {C: lambda x: 0.9 if x == 0.5 else 3.0}, agreeing={C: lambda x: 3.0 if x else 0.9}),
        case("At skew 0", {C: 1.0}, {C: 0.1}, agreeing={C: 0.8}),
        FLAT,
    ],
    "cmesh-3e": [
        times("About 4", C, M, 4.0),
        case("The gain is largest", {C: up}, {}, agreeing={C: down}),
        order("CMESHJOIN is above", C, M),
    ],
    "cmesh-3f": [order("CMESHJOIN is above", C, M)],
    "pcache-3": [
        case("Above 2 MB", {P: peak(8.0)}, {P: up}, {}, agreeing={P: peak(2.0)}),
    ],
    "pcache-4a": [
        order("P-CACHEJOIN is above", P, CA),
        case("The improvement", {P: up}, {}, agreeing={P: down}),
    ],
    "pcache-4b": [order("P-CACHEJOIN is above", P, CA)],
    "pcache-4c": [order("P-CACHEJOIN is above", P, CA)],
    **{
        f"opcache-6{letter}": [
            order("OP-CACHEJOIN is above both others at", OP, P, CA),
        ]
        for letter in "abc"
    },
    **{
        f"ssij-{figure}": [
            case(
                "SSIJ rises", {"SSIJ": down}, {"SSIJ": lambda x: 1 + 0.02 * x}, agreeing={"SSIJ": lambda x: 1 + 2 * x}
            ),
            FLAT,
        ]
        for figure in (3, 4)
    },
    "ssij-5": [
        times("Up to 6", "SSIJ", M, 6.0),
        order("SSIJ is above", "SSIJ", M),
        case("With 1 %", {"SSIJ": 2000.0}, agreeing={"SSIJ": 2900.0}),
    ],
    "ssij-6": [times("Up to 6", "SSIJ", M, 6.0), order("SSIJ is above", "SSIJ", M)],
    "ssij-7": [
        times("Up to 3", "SSIJ", M, 3.0),
        times("Up to 9", "SSIJ", M, 9.0),
        case("The gain grows with K", {"SSIJ": down}, {}, agreeing={"SSIJ": up}),
        case(
            "The gain grows with memory",
            {},
            Found(facets={"memory 1%": {"SSIJ": 2.0}}),
            agreeing=Found(facets={"memory 5%": {"SSIJ": 2.0}, "memory 10%": {"SSIJ": 2.0}}),
        ),
        order("SSIJ is above", "SSIJ", M),
    ],
    "ssij-8": [
        order("SSIJ is above MESHJOIN on TPC-H", "SSIJ", M),
        order("SSIJ is above MESHJOIN on weather", "SSIJ", M),
        LARGEST_AT_LEAST,
    ],
    "ssij-9": [case("SSIJ is at least", {"SSIJ": 2.0}, {"SSIJ": 9.0, "SQLite": 8.0}, agreeing={"SSIJ": 5.0})],
    "ssij-10": [
        case(
            "More memory for pages",
            {"70 % for pages": 1.0, "50 % for pages": 2.0},
            {},
            agreeing={"70 % for pages": 4.0, "50 % for pages": 3.0, "20 % for pages": 2.0},
        ),
        case(
            "Dynamic memory is above",
            {"dynamic memory": 1.02},
            {"dynamic memory": 2.0, "20 % for pages": 3.0},
            {},
            agreeing={"dynamic memory": 2.0},
        ),
        case(
            "The gain of dynamic",
            {"dynamic memory": down},
            {"dynamic memory": 2.0},
            {"dynamic memory": lambda x: x / 20},
            agreeing={"dynamic memory": up},
        ),
    ],
    "ssij-11": [order("Pages by utility", "SSIJ, utility", "SSIJ, LRU")],
    "ssij-12": [case("Throughput rises", {"SSIJ": down}, {"SSIJ": lambda x: 1 + 1e-9 * x}, agreeing={"SSIJ": up})],
    "ssij-13": [hill("Throughput rises", "SSIJ", 19200)],
    "ssij-14": [
        case(
            "Throughput falls",
            {"SSIJ, memory 2%": up, "SSIJ, memory 10%": down},
            {},
            agreeing={"SSIJ, memory 2%": up, "SSIJ, memory 10%": up},
        ),
    ],
    "ssij-15": [
        case("Throughput is poor", {"SSIJ": down}, {}, agreeing={"SSIJ": up}),
        case("Very long reads", {"SSIJ": up}, {}, agreeing={"SSIJ": peak(20)}),
        case("With the paper's own seek", {"SSIJ": down}, {}, agreeing={"SSIJ": up}),
    ],
    "ssij-16": [
        case("The rate rises", {"SSIJ": down}, {"SSIJ": lambda x: 1 + x / 1000}, agreeing={"SSIJ": up}),
        case(
            "Deadlines are kept",
            Found(records={"SSIJ at 5500/s": {"late": 1}}),
            Found(records={"SSIJ at 22000/s": {"sustained": 0.0}}),
            agreeing=Found(),
        ),
        case(
            "At MESHJOIN's highest",
            Found({"SSIJ": 100.0}, records=slow(200.0, 4e4)),
            Found({"SSIJ": 300.0}, records=slow(200.0, 100.0)),
            agreeing=Found({"SSIJ": 300.0}, records=slow(200.0, 2e4)),
        ),
        case(
            "The partition-based join",
            Found(records={**slow(200.0, 2e4), "partition-based join at 5500/s": {"longest": 1.0}}),
            agreeing=Found(records={**slow(200.0, 2e3), "partition-based join at 5500/s": {"longest": 100.0}}),
        ),
    ],
    "ssij-t3": [
        case(
            "Bursts are sustained",
            {"dynamic memory": 0.001},
            {"dynamic memory": lambda x: 0.1 if x < 60 else 0.004},
            agreeing={"dynamic memory": lambda x: 0.03 - 0.0002 * x},  # a fortieth of what is published, or more
        ),
        case("The time shrinks", {"dynamic memory": up}, {}, agreeing={"dynamic memory": down}),
    ],
    "hybrid-3": [
        case(
            "The rate of use",
            {"uses of a segment": up},
            {"uses of a segment": 5.0},
            agreeing={"uses of a segment": down},
        )
    ],
    "hybrid-6": [
        hill("Some size", H, 208),
        case(
            "The constant",
            Found(records={H: lambda x: {"counts": {"appended": 0.058 * x, "reads": 1}}}),
            Found(records={H: lambda x: {"counts": {"appended": 0.036 * x, "reads": 1}}}),
            Found(records={H: {"counts": {"appended": 19.3, "reads": 1}}}),  # right at 416 pages only: not best here
            agreeing=Found(records={H: lambda x: {"counts": {"appended": 0.0464 * x, "reads": 1}}}),
        ),
    ],
    "hybrid-8": [case("80 %", {"measured": 0.6}, {"measured": 0.95}, agreeing={"measured": 0.8})],
    "hybrid-9": [
        case(
            "Arrivals are bursty",
            {},
            {"on/off sources": lambda x: 50.0 if x < 5 else 1.0},
            agreeing={"on/off sources": 50.0},
        )
    ],
    "hybrid-10a": [
        case(
            "HYBRIDJOIN's processing", {M: 1.04}, Found({M: 9.0}, facets={"2000 tuples/s": {M: 0.5}}), agreeing={M: 9.0}
        )
    ],
    "hybrid-10b": [
        order("HYBRIDJOIN's waiting time", M, H),
        case(
            "INLJ's waiting time",
            {"INLJ": down},
            {"INLJ": 3.0},
            {"INLJ": up},
            {"INLJ": lambda x: x},
            agreeing={"INLJ": lambda x: math.exp(x / 100)},
        ),
        case("Below 150", {"INLJ": 2.0}, {}, agreeing={"INLJ": lambda x: 0.1 if x < 150 else 99.0}),
    ],
    "hybrid-10c": [
        order("HYBRIDJOIN is above MESHJOIN", H, M),
        order("HYBRIDJOIN is above INLJ", H, "INLJ"),
        case("The improvement over", {H: up}, {H: 2.0}, agreeing={H: down}),
    ],
    "hybrid-10d": [order("HYBRIDJOIN is above MESHJOIN", H, M), order("HYBRIDJOIN is above INLJ", H, "INLJ")],
    "hybrid-11": [
        by_formula(H, f"{H}, as published", hybrid_formula),
        by_formula(M, f"{M}, as published", mesh_formula),
        by_formula("INLJ", "INLJ", index_formula),
        model("Our own models", 0.05),
    ],
    "xhybrid-3a": [
        order("X-HYBRIDJOIN is above all", X, H, R, M),
        case(
            "HYBRIDJOIN is slightly above MESHJOIN", {X: 3.0, H: 0.9}, {X: 1.6, H: 1.5}, {}, agreeing={X: 2.0, H: 1.1}
        ),
        case(
            "HYBRIDJOIN is slightly above R-MESHJOIN", {X: 3.0, H: 0.9}, {X: 1.6, H: 1.5}, {}, agreeing={X: 2.0, H: 1.1}
        ),
    ],
    "xhybrid-3b": [
        order("X-HYBRIDJOIN is above all", X, H, R, M),
        case(
            "HYBRIDJOIN has 70 %",
            {H: 0.3},
            {H: lambda x: 0.5 if x < 1 else 0.7},
            {H: lambda x: 0.9 if x < 1 else 0.8},
            agreeing={H: lambda x: 0.7 if x < 1 else 0.5},
        ),
    ],
    "xhybrid-3c": [
        order("X-HYBRIDJOIN is above all", X, H, R, M),
        case("The improvement over", {X: down}, {X: 2.0}, agreeing={X: up}),
        case("At skew 0", {X: 1.2}, {}, agreeing={X: 0.8}),
        case("HYBRIDJOIN rises", {H: down}, {}, agreeing={H: up}),
    ],
    "xhybrid-3d": [
        case("The pinned part serves", {X: down}, {X: lambda x: 1 + x / 1e4}, agreeing={X: up}),
        case(
            "It serves more than 5 times",
            {X: lambda x: 1 if x < 60 else 4},
            {X: lambda x: 1 if x < 60 else 9},
            agreeing={X: lambda x: 1 if x < 60 else 5.6},
        ),
    ],
    "xhybrid-4": [
        case(
            "There is one best pair",
            Found({"208": lambda x: up(x)}),
            Found({"52": peak(832)}),
            Found({"104": lambda x: 5.0 if x == 208 else 1.0, "416": lambda x: 9.0 if x == 1664 else 1.0}),
            agreeing=Found({"208": lambda x: 5.0 if x == 832 else 1.0}),
        ),
    ],
    "xhybrid-6a": [by_its_formulas("xhybrid-6a"), model("Our own model", 0.05)],
    "xhybrid-6b": [by_its_formulas("xhybrid-6b"), model("Our own model", 0.05), hill("Some size", X, 832)],
    "xhybrid-7a": [order("Tuned", f"{X}, its split tuned", f"{X}, untuned")],
    "xhybrid-7b": [order("Tuned", f"{X}, its split tuned", f"{X}, untuned")],
    "xhybrid-8": [by_tuned_formulas(), model("Our own model", 0.05)],
    "beyond-1": [order("CACHEJOIN is above", CA, H)],
    "beyond-2": [order("adaptivejoin is above", "adaptivejoin", H, M)],
    "beyond-3": [order("adaptivejoin is above", "adaptivejoin", C, "SSIJ")],
}
"""By experiment, in the order of its claims."""
