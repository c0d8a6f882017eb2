"""Amounts of memory as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.core.units import format_bytes, format_count, parse_bytes


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (1, 1),
        (2.9, 2),
        ("1", 1),
        ("12B", 12),
        ("64MB", 64_000_000),
        ("64 mb", 64_000_000),
        ("64M", 64 * 2**20),
        ("64MiB", 64 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("2TB", 2 * 10**12),
        (" 8 KiB ", 8192),
        ("1_000_000", 1_000_000),
        ("5%", 100),
        ("0.05%", 1),
        ("250%", 5000),
    ],
)
def test_amounts(text: str | float, wanted: int) -> None:
    assert parse_bytes(text, of=2000) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "lots", "-5MB", "5 bananas", "MB", "1.2.3MB", "1,000", "0", "0%", "0.0001%", "%", 0, -1, 0.5, True, None, [1]],
)
def test_what_is_no_amount_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"memory|unit|amount"):
        parse_bytes(text, of=2000)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_none_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=str(value)):
        parse_bytes(value)


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="'5%' is a share"):
        parse_bytes("5%")


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(ValueError, match="'XB' in '5XB'"):
        parse_bytes("5XB")


@given(st.integers(1, 10**14))
def test_what_is_formatted_is_read_back_to_three_digits(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.006)


@pytest.mark.parametrize(
    ("count", "wanted"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 KB"), (8192, "8.19 KB"), (64e6, "64 MB"), (-2e9, "-2 GB")],
)
def test_bytes_for_people(count: float, wanted: str) -> None:
    assert format_bytes(count) == wanted


@pytest.mark.parametrize(
    ("count", "wanted"), [(0, "0"), (999, "999"), (12_345, "12.3 k"), (4.56e6, "4.56 M"), (7e9, "7 G")]
)
def test_counts_for_people(count: float, wanted: str) -> None:
    assert format_count(count) == wanted
