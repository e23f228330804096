"""Settings: declared once, the same in keyword arguments, sweep files and run folders; plain data and back."""

from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaescope.core.errors import InputError
from vaescope.core.serialization import convert, from_plain, plain_fields
from vaescope.settings import (
    FitSettings,
    MemberSettings,
    ModelSettings,
    StorageSettings,
    TrainSettings,
    flat_defaults,
    flat_settings,
    trained_settings,
)

GROUPS = (ModelSettings, MemberSettings, TrainSettings, StorageSettings)


def test_no_two_groups_have_a_setting_of_the_same_name():
    names = [f.name for group in GROUPS for f in fields(group)]
    assert len(names) == len(set(names))
    assert set(flat_settings()) == {*names, "objective"} == set(flat_defaults())


def test_every_setting_is_documented():
    source = Path(__file__).parents[1] / "src" / "vaescope" / "settings.py"
    text = source.read_text()
    undocumented = [
        f.name
        for group in GROUPS
        for f in fields(group)
        if '    """' not in text.split(f"    {f.name}: ", 1)[1].split("\n", 2)[1]
    ]
    assert undocumented == []


def test_plain_data_gives_the_same_settings_back():
    settings = FitSettings().updated({"hidden": [8, 4], "precision": [1, 10], "seeds": [3, 5], "out": "runs/a"})
    again = from_plain(FitSettings, plain_fields(settings))
    assert again == settings
    assert settings.members.precisions == (1.0, 10.0)
    assert settings.storage.out == Path("runs/a")


def test_where_a_model_is_trained_does_not_identify_it():
    here, there = FitSettings(), FitSettings().updated({"device": "cuda", "out": "x", "checkpoint_seconds": 1})
    assert trained_settings(here) == trained_settings(there)
    assert trained_settings(here) != trained_settings(FitSettings().updated({"epochs": 7}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latent_dim": 0}, "latent_dim must be at least 1, got 0"),
        ({"latent_dim": True}, "latent_dim must be an integer, got True"),
        ({"latent_dim": 2.0}, "latent_dim must be an integer, got 2.0"),
        ({"model": "gan"}, "model must be one of vae, ivae, got 'gan'"),
        ({"hidden": [0]}, "hidden must be at least 1"),
        ({"hidden": "wide"}, "hidden must be a list of integers, got 'wide'"),
        ({"precision": -1}, "precision must be > 0, got -1.0; it is 1 / decoder variance"),
        ({"precision": [1, 0]}, "precision must be > 0, got 0.0"),
        (
            {"precision": "loud"},
            "precision must be one of optimal, learned, learned-diagonal, learned-full, got 'loud'",
        ),
        ({"beta": -1}, "beta must be at least 0, got -1.0"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"seeds": []}, "seeds must be 1 to 100000 seeds, got"),
        ({"seeds": [-1]}, "seeds must be at least 0, got -1"),
        ({"learning_rate": float("nan")}, "learning_rate must be > 0, got nan"),
        ({"batch_size": 10, "accumulate": 3}, "accumulate must divide batch_size, got 3 parts of a batch of 10"),
        ({"compile": "maybe"}, "compile must be one of auto, always, never"),
        ({"checkpoint_seconds": -1}, "checkpoint_seconds must be at least 0"),
        ({"checkpoint_seconds": float("inf")}, "checkpoint_seconds must be at least 0, got inf"),
        ({"epoch": 3}, "fit has no setting 'epoch'; it has latent_dim"),
    ],
)
def test_bad_settings_are_refused_in_one_line(options, message):
    with pytest.raises(InputError) as caught:
        FitSettings().updated(options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Inner:
    weights: tuple[float, ...]
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner
    by_name: dict[str, Inner]
    pair: tuple[int, str] = (1, "a")
    image: bytes = b""


finite = st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(Inner, st.lists(finite).map(tuple), st.none() | st.text())


@given(st.builds(Outer, inners, st.dictionaries(st.text(), inners), st.tuples(st.integers(), st.text()), st.binary()))
def test_nested_dataclasses_survive_plain_data(value):
    assert from_plain(Outer, plain_fields(value)) == value


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("3", int, "x must be an integer, got '3'"),
        (True, int, "x must be an integer, got True"),
        (None, float, "x must be a number, got None"),
        ([1, "a"], tuple[int, ...], r"x[1] must be an integer, got 'a'"),
        ([1], tuple[int, str], "x must be"),
        ({"weights": [1], "colour": 2}, Inner, "x has no setting 'colour'; it has weights, name"),
        ({}, Inner, "x is incomplete"),
    ],
)
def test_values_of_another_type_are_refused(value, kind, message):
    with pytest.raises(InputError) as caught:
        convert(value, kind, "x")
    assert message in str(caught.value)
