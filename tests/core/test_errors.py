"""Errors: bad arguments are ValueErrors, everything is a SemistreamError, and texts carry the remedy."""

from __future__ import annotations

import pytest

import semistream
from semistream.core import errors
from semistream.core.errors import SemistreamError, UnknownAlgorithmError


@pytest.mark.parametrize("name", errors.__all__)
def test_all_are_of_one_family(name: str) -> None:
    assert issubclass(getattr(errors, name), SemistreamError)


@pytest.mark.parametrize(
    "name",
    ["KeyColumnError", "KeyTypeError", "UnsupportedJoinError", "UnknownAlgorithmError", "BudgetTooSmallError",
     "NotARelationError", "RelationBuildError"],
)  # fmt: skip
def test_bad_arguments_are_value_errors(name: str) -> None:
    assert issubclass(getattr(errors, name), ValueError)


def test_an_unknown_algorithm_lists_the_known_ones() -> None:
    with pytest.raises(UnknownAlgorithmError) as caught:
        semistream.create("hybridjion", None, on="id")  # type: ignore[arg-type]
    for name in semistream.algorithms():
        assert name in str(caught.value)
    assert "Did you mean 'hybridjoin'?" in str(caught.value)
    assert "mean" not in str(UnknownAlgorithmError("zzz", ["hybridjoin"]))


def test_a_missing_extra_says_what_to_install() -> None:
    error = errors.MissingExtraError("pyspark", "spark")
    assert "pip install 'semistream[spark]'" in str(error)
    assert isinstance(error, ImportError)
