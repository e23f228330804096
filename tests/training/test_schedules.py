"""Learning-rate decay and the rise of the precision."""

import pytest
import torch

import vaescope as vs
from vaescope.models import VAE
from vaescope.training import MemberSpec, TrainSettings, train
from vaescope.training.schedules import learning_rate_at, precision_at
from vaescope.training.state import StackState


@pytest.mark.parametrize("total", [2, 3, 10, 11])
def test_a_restart_is_two_cosines(total):
    restart, cosine = (TrainSettings(learning_rate=0.3, decay=decay) for decay in ("restart", "cosine"))
    rates = [learning_rate_at(step, total, restart) for step in range(1, total + 1)]
    halves = [[learning_rate_at(step, n, cosine) for step in range(1, n + 1)] for n in (total // 2, total - total // 2)]
    assert rates == [*halves[0], *halves[1]]


def test_a_constant_rate_and_no_warmup_change_nothing():
    settings = TrainSettings(learning_rate=0.3)
    assert learning_rate_at(77, 100, settings) == 0.3
    own = torch.tensor([1.0, 5.0])
    assert precision_at(1, own, settings) is own


def test_the_precision_rises_geometrically_from_its_start_to_the_own_value_of_every_member():
    settings = TrainSettings(precision_start=100.0, precision_hold=10, precision_warmup=30)
    own = torch.tensor([10.0, 1e2, 1e5], dtype=torch.float64)
    path = torch.stack([precision_at(step, own, settings) for step in range(1, 60)])
    assert torch.allclose(path[:, :2], own[:2].expand(59, 2))  # never above the own value
    assert torch.allclose(path[:10, 2], torch.tensor(100.0, dtype=torch.float64))
    steps = path[10:40, 2].log().diff()
    assert torch.allclose(steps, steps[0].expand_as(steps))
    assert torch.allclose(path[39:, 2], own[2].expand(20))


def test_patience_counts_from_the_epoch_at_which_the_precision_is_reached():
    state = StackState.initial({"w": torch.zeros(1, 1)}, [MemberSpec(0)], torch.device("cpu"))
    losses = torch.zeros(2, 1)
    stopped_at = []
    for epoch, score in enumerate([5.0, *[1.0] * 9], start=1):
        state.record_epoch(losses, [score], [score], patience=3, settled=[5], last=False)
        if state.log.records[0].status == "finished":
            stopped_at.append(epoch)
    assert stopped_at[0] == 8


def test_a_decaying_rate_ends_closer_to_the_optimum():
    """A linear VAE has a known optimum; noise of constant steps keeps a member away from it."""
    x = torch.randn(1, 512, 3, generator=torch.Generator().manual_seed(0)) @ torch.diag(torch.tensor([2.0, 1.0, 0.3]))
    ends = {}
    for decay in ("constant", "cosine"):
        settings = TrainSettings(epochs=60, patience=60, learning_rate=3e-2, decay=decay, compile="never")
        (member,) = train(VAE.mlp(3, 2, hidden=(8,)), x, x, [MemberSpec(0, precision=10.0)], settings)
        ends[decay] = torch.tensor(member.history["elbo"][-5:]).std()
    assert ends["cosine"] < 0.2 * ends["constant"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decay": "linear"}, "decay must be one of constant, cosine, restart"),
        ({"precision_hold": -1}, "precision_hold must be at least 0"),
        ({"precision_start": 0.0}, "precision_start must be .*1 / decoder variance"),
    ],
)
def test_bad_schedules_are_refused(changes, message):
    with pytest.raises(vs.InputError, match=message):
        TrainSettings(**changes)
