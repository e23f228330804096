"""Planted results, for which the verdict of every claim is known."""

from vaescope.models import TrainingSummary
from vaescope_papers.results import Result

HOLDS, REFUTED, UNDECIDED = "holds", "refuted", "undecided"


def finished(cell, measured, *, elbo=-1.0, converged=True):
    """A member that finished training."""
    training = TrainingSummary("finished", epochs=10, best_epoch=10, elbo=elbo, converged=converged)
    return Result(cell, measured, training)


def judge(experiment, results, settings=None):
    """Every claim of an experiment, judged on these results."""
    settings = settings or experiment.quick
    return [spec.judged(results, settings) for spec in experiment.claims(settings)]


def verdicts(experiment, results, settings=None):
    return [str(claim.verdict) for claim in judge(experiment, results, settings)]


def unconverged(results):
    """The same results, of members that were still improving."""
    return [finished(r.cell, r.measured, elbo=r.elbo, converged=False) for r in results]


def failing(experiment, results, verdict=REFUTED):
    """The indices of claims that do not hold, all of which must have the given verdict."""
    found = verdicts(experiment, results)
    failed = {index for index, v in enumerate(found) if v != HOLDS}
    assert {found[index] for index in failed} <= {verdict}, found
    return failed
