"""Priors as text and as mappings: exact round trips, and one-line errors for everything else."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vaescope as vs
from vaescope.distributions import Prior, prior_from, prior_to_text
from vaescope.distributions.priors import PRIORS, prior_from_text

FINITE = st.floats(-1e6, 1e6, width=32)
POSITIVE = st.floats(2.0**-20, 1e6, width=32)
BOUNDS = st.tuples(FINITE, FINITE).filter(lambda pair: pair[0] < pair[1])


def number_or_tensor(numbers):
    lists = st.lists(numbers, min_size=1, max_size=4)
    return numbers | lists.map(torch.tensor) | lists.map(lambda row: torch.tensor([row, row]))


ANY_PRIOR = st.one_of(
    st.builds(vs.Normal, number_or_tensor(FINITE), number_or_tensor(POSITIVE)),
    st.builds(vs.Laplace, number_or_tensor(FINITE), number_or_tensor(POSITIVE)),
    BOUNDS.map(lambda pair: vs.Uniform(*pair)),
    st.builds(lambda a, b, pair: vs.Beta(a, b, *pair), POSITIVE, POSITIVE, BOUNDS),
)


@given(ANY_PRIOR)
def test_round_trip(prior):
    text = prior_to_text(prior)
    assert "\n" not in text
    again = prior_from_text(text)
    assert type(again) is type(prior)
    for name, value in vars(prior).items():
        assert torch.equal(torch.as_tensor(vars(again)[name]), torch.as_tensor(value))
    assert prior_to_text(again) == text


@pytest.mark.parametrize("name", PRIORS)
def test_a_name_is_the_default_prior(name):
    prior = prior_from(name)
    assert type(prior) is PRIORS[name]
    assert prior_to_text(prior) == prior_to_text(PRIORS[name]())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("uniform(low=-1, high=1)", "uniform(low=-1.0, high=1.0)"),
        (" Beta( a=3,\n b=2 ) ", "beta(a=3.0, b=2.0, low=0.0, high=1.0)"),
        ("normal(mean=[0, 1], variance=2)", "normal(mean=[0.0, 1.0], variance=2.0)"),
        ("normal()", "normal(mean=0.0, variance=1.0)"),
        ({"kind": "uniform", "low": -1, "high": 1}, "uniform(low=-1.0, high=1.0)"),
        ({"kind": "laplace", "scale": [1, 2]}, "laplace(mean=0.0, scale=[1.0, 2.0])"),
        (vs.Normal(2.0), "normal(mean=2.0, variance=1.0)"),
    ],
)
def test_accepted_forms(value, text):
    assert prior_to_text(prior_from(value)) == text


GENERAL = r"prior must be one of normal, uniform, beta, laplace, e.g. 'uniform\(low=-1, high=1\)', got "
BAD = {
    "cauchy": GENERAL + "'cauchy'",
    "": GENERAL,
    "normal(0, 1)": GENERAL,
    "normal(mean=0": GENERAL,
    "normal(mean=__import__('os').system('true'))": GENERAL,
    "normal(mean=open)": GENERAL,
    "vs.Normal()": GENERAL,
    "normal() if True else uniform()": GENERAL,
    "[" * 5000: GENERAL,
    "normal(mean=" + "-" * 5000 + "1)": GENERAL,
    "normal\0": GENERAL,
    "normal(**{'mean': 1})": "a normal prior has the parameters mean, variance, got 'None'",
    "normal(scale=1)": "a normal prior has the parameters mean, variance, got 'scale'",
    "normal(mean='0')": "mean of a normal prior must be a number, got '0'",
    "normal(mean=True)": "must be a number, got True",
    "normal(mean=1e999)": "mean of a normal prior must be finite, got inf",
    "normal(mean=[1, [2]])": "mean of a normal prior must be an array of numbers",
    "normal(mean=[])": "mean of a normal prior must be finite numbers",
    "normal(variance=0)": "variance of a normal prior must be > 0",
    "uniform(low=[0, 0], high=1)": "low of a uniform prior must be a number",
    "uniform(low=2, high=1)": "low < high",
}


@pytest.mark.parametrize(("text", "message"), BAD.items(), ids=[text[:20] for text in BAD])
def test_bad_text_is_rejected_in_one_line(text, message):
    with pytest.raises(vs.InputError, match=message) as error:
        prior_from(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("value", [3, None, {}, {"kind": 3}, {"low": 0.0}, {"kind": "normal", "mean": None}])
def test_bad_values_are_rejected(value, unchecked_shapes):
    with pytest.raises(vs.InputError, match=r"prior must be"):
        prior_from(value)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_rejected(text):
    with contextlib.suppress(vs.InputError):
        assert isinstance(prior_from(text), Prior)


def test_other_priors_have_no_text():
    class Other(vs.Normal):
        pass

    with pytest.raises(vs.InputError, match="only normal, uniform, beta, laplace priors have a text form, got Other"):
        prior_to_text(Other())
