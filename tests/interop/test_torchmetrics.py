"""`vs.interop.torchmetric`: the scores of the metrics on all batches together."""

import pickle

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError

torchmetrics = pytest.importorskip("torchmetrics")


def planted():
    factors = torch.randn(300, 2)
    return factors @ torch.tensor([[1.0, 0.3], [0.0, 1.0]]), factors


@pytest.mark.parametrize(("name", "score"), [("mcc", None), ("r2", None), ("mig", None), ("dci", "completeness")])
def test_batches_give_the_score_of_all_samples(name, score):
    codes, factors = planted()
    metric = vs.interop.torchmetric(name, score=score)
    for batch in zip(codes.split(64), factors.split(64), strict=True):
        metric.update(*batch)
    whole = vs.metrics.evaluate(codes, factors, intervals=False)[name].scores
    assert float(metric.compute()) == pytest.approx(next(iter(whole.values())) if score is None else whole[score])


def test_it_is_a_metric_of_torchmetrics():
    codes, factors = planted()
    collection = torchmetrics.MetricCollection(
        {"MCC": vs.interop.torchmetric("mcc"), "SAP": vs.interop.torchmetric("sap")}
    )
    collection.update(codes, factors)
    found = collection.compute()
    assert set(found) == {"MCC", "SAP"}
    collection.reset()
    labels = (factors > 0).long()[:, 0]  # one factor, as labels (N,)
    metric = vs.interop.torchmetric("mig", discrete=True)
    metric(codes, labels)
    same = pickle.loads(pickle.dumps(metric))
    assert (
        float(same.compute())
        == float(metric.compute())
        == pytest.approx(vs.metrics.mig(codes, labels[:, None], discrete=True).score)
    )
    assert metric.higher_is_better
    assert not vs.interop.torchmetric("amari").higher_is_better
    assert isinstance(metric.clone(), torchmetrics.Metric)


def test_processes_are_gathered_like_batches():
    """What torchmetrics does in distributed training: the states of all processes, concatenated."""
    codes, factors = planted()
    metrics = [vs.interop.torchmetric("mcc") for _ in range(2)]
    for metric, own in zip(metrics, (slice(0, 100), slice(100, None)), strict=True):
        metric.update(codes[own], factors[own])
    metrics[0].codes, metrics[0].factors = (
        torch.cat([state for m in metrics for state in getattr(m, name)]) for name in ("codes", "factors")
    )
    assert float(metrics[0].compute()) == pytest.approx(vs.metrics.mcc(codes, factors).score)


def test_mistakes_are_one_line():
    with pytest.raises(InputError, match=r"metric must be one of mcc, .*, got 'mmc'"):
        vs.interop.torchmetric("mmc")
    metric = vs.interop.torchmetric("dci", score="purity")
    with pytest.raises(InputError, match="arrays must have the same number of rows"):
        metric.update(torch.zeros(3, 2), torch.zeros(4, 2))
    metric.update(torch.from_numpy(np.random.default_rng(0).normal(size=(50, 2))), torch.randn(50, 2))
    with pytest.raises(InputError, match=r"score of dci must be one of .*completeness.*, got 'purity'"):
        metric.compute()
