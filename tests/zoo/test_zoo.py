"""The committed scores of the zoo: what `python -m tests.zoo.score` found."""

import json

import pytest

from tests.zoo.datasets import DEVELOPMENT, SCORED
from tests.zoo.score import HALVES, RESULTS, summary

FOUND = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": [], "scores": {}}
pytestmark = pytest.mark.skipif(not FOUND["cases"], reason="the zoo has not been scored: make test-zoo")


def rows(half):
    return [row for row in FOUND["cases"] if row["half"] == half]


def test_halves_share_no_data():
    assert not set(DEVELOPMENT) & set(SCORED)
    assert {row["data"] for row in rows("development")} <= set(DEVELOPMENT)
    assert {row["data"] for row in rows("scored")} <= set(SCORED)
    assert len({row["data"] for row in FOUND["cases"]}) >= 8


@pytest.mark.parametrize("half", HALVES)
def test_the_scores_are_those_of_the_cases(half):
    assert FOUND["scores"][half] == summary(rows(half))


def test_most_faults_of_the_scored_half_are_found_by_their_own_code():
    """Below what was measured, so that a change for the worse fails; the scores themselves are in the docs."""
    scores = FOUND["scores"]["scored"]
    assert scores["found"] >= 0.85 * scores["faulty"]
    assert scores["wrong_first_cause"] <= 0.1 * scores["faulty"]


def test_few_healthy_models_of_the_scored_half_have_a_warning():
    """On the data sets for which the bound was set; temperatures and cells, scored later, are in the targets below."""
    scores = summary([row for row in rows("scored") if row["data"] not in ("elnino", "pbmc")])
    assert scores["healthy"] >= 22
    assert scores["healthy_with_a_warning"] <= 0.1 * scores["healthy"]


@pytest.mark.xfail(
    strict=True, reason="4 of 30 healthy models have a warning, 87 % found, 8 % with a wrong first cause"
)
def test_the_scored_half_meets_its_targets():
    scores = FOUND["scores"]["scored"]
    assert scores["healthy_with_a_warning"] <= 0.05 * scores["healthy"]
    assert scores["found"] >= 0.9 * scores["faulty"]
    assert scores["wrong_first_cause"] <= 0.05 * scores["faulty"]
