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


def test_nine_faults_in_ten_are_found_on_the_scored_half():
    scores = FOUND["scores"]["scored"]
    assert scores["found"] >= 0.9 * scores["faulty"]


def test_at_most_one_healthy_model_in_twenty_has_a_warning():
    scores = FOUND["scores"]["scored"]
    assert scores["healthy_with_a_warning"] <= 0.05 * scores["healthy"]


def test_another_cause_is_named_for_at_most_one_fault_in_twenty():
    scores = FOUND["scores"]["scored"]
    assert scores["wrong_first_cause"] <= 0.05 * scores["faulty"]


def test_nine_in_ten_of_each_fault_are_found():
    found = FOUND["scores"]["scored"]["by_finding"].values()
    assert all(row["recall"] >= 0.9 for row in found if row["planted"])


def test_rules_hold_on_the_data_they_were_developed_on():
    scores = FOUND["scores"]["development"]
    assert scores["healthy_with_a_warning"] <= 0.05 * scores["healthy"]
    assert scores["found"] >= 0.95 * scores["faulty"]
