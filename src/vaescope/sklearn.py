"""A VAE as a scikit-learn estimator, and a grid search that trains its VAEs as stacks.

`vs.sklearn` is this module; scikit-learn itself is still `import sklearn`.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import norm, qmc
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.validation import check_array, check_is_fitted, check_random_state
from torch import Tensor

from vaescope.core.errors import InputError, RunError
from vaescope.data import Dataset, dataset_from
from vaescope.fitting import FitJob, fit_together, prepare_fit, settings_from
from vaescope.models import Member
from vaescope.settings import FitSettings, flat_defaults
from vaescope.training import NoProgress, Progress, ProgressBar

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn before 1.6

    def validate_data(estimator: BaseEstimator, X: object, **checks: object) -> np.ndarray:
        found: np.ndarray = estimator._validate_data(X, **checks)
        return found


__all__ = ["VAE", "VAESearchCV"]


@cache
def _defaults() -> dict[str, object]:
    """Settings of `vs.fit` that apply to rows of numbers in memory, with their defaults."""
    images = {"network", "architecture", "mixed_precision", "accumulate"}
    other = {"model", "prior_mean", "seeds", "out", "checkpoint_seconds"}  # an auxiliary input, several members, files
    settings = {name: default for name, default in flat_defaults().items() if name not in images | other}
    return {**settings, "random_state": 0, "verbose": 0}


def _signature() -> inspect.Signature:
    """The arguments of `VAE`, for scikit-learn, `help` and editors."""
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    return inspect.Signature([*own, *(inspect.Parameter(n, kind, default=d) for n, d in _defaults().items())])


class VAE(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A variational autoencoder of rows of numbers, as a scikit-learn transformer.

    Codes are posterior means. 20 % of the rows given to `fit` decide when training stops. Columns are not rescaled:
    put a `StandardScaler` before it if they have different units.

    Args:
        settings: settings of `vs.fit` by name, such as `latent_dim`, `precision`, `beta`, `hidden` or `epochs`, with
            one precision and one KL schedule; `random_state`, which is the seed if it is an integer; and `verbose`, 1
            for a progress bar.

    Fitted attributes: `member_`, the trained `LatentModel`, which `vs.diagnose` and all other analyses take;
    `precision_`, 1 / decoder variance (None under another noise model); `n_iter_`, epochs trained.

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> x = np.random.default_rng(0).normal(size=(200, 5))
    >>> codes = make_pipeline(StandardScaler(), VAE(latent_dim=2, epochs=2)).fit_transform(x)
    >>> codes.shape
    (200, 2)
    """

    def __init__(self, **settings: object) -> None:
        unknown = [name for name in settings if name not in _defaults()]
        if unknown:
            raise TypeError(f"VAE has no parameter {unknown[0]!r}; it has {', '.join(_defaults())}.")
        for name, default in _defaults().items():
            setattr(self, name, settings.get(name, default))

    # training ---------------------------------------------------------------------------------

    def fit(self, X: object, y: object = None) -> VAE:
        """Train on rows.

        Args:
            X: (N, n) numbers.
            y: ignored.
        """
        rows = self._rows(X, reset=True, ensure_min_samples=2)
        settings = self.get_params()
        seed, verbose = settings.pop("random_state"), settings.pop("verbose")
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        fitted = _fit_member(rows, settings | {"seeds": (int(seed),)}, bool(verbose))
        if fitted.status != "finished":
            raise RunError(
                f"training diverged at step {fitted.diverged_at_step}; lower learning_rate, or rescale X "
                "(sklearn.preprocessing.StandardScaler)."
            )
        self.member_ = fitted
        self.precision_ = fitted.precision
        self.n_iter_ = fitted.training.epochs
        return self

    # use --------------------------------------------------------------------------------------

    @torch.no_grad()
    def transform(self, X: object) -> np.ndarray:
        """The posterior mean of every row: (N, d).

        Args:
            X: (N, n) numbers.
        """
        found: np.ndarray = self._member().encode(torch.tensor(self._rows(X)))[0].numpy()
        return found

    @torch.no_grad()
    def inverse_transform(self, X: object) -> np.ndarray:
        """The decoder's mean of every code, in the units of the training data.

        Under a Bernoulli likelihood these are probabilities.

        Args:
            X: (N, d) codes.
        """
        member = self._member()
        codes = check_array(X, dtype=[np.float64, np.float32])
        if codes.shape[1] != member.latent_dim:
            raise InputError(f"codes must have {member.latent_dim} columns, one per latent, got {codes.shape[1]}.")
        found: np.ndarray = member.decode(torch.tensor(codes)).numpy()
        return found

    @torch.no_grad()
    def score_samples(self, X: object) -> np.ndarray:
        """The ELBO of every row, with β = 1, in nats: a lower bound of log p(x).

        The expectation over q(z|x) is a mean over at least 16 quasi-random points, the same for every row and call,
        which is exact where log p(x|z) is quadratic in z.

        Args:
            X: (N, n) numbers.
        """
        found: np.ndarray = _elbo(self._member(), torch.tensor(self._rows(X))).numpy()
        return found

    def score(self, X: object, y: object = None) -> float:
        """The mean ELBO per row, in nats; of rows that it was not fitted to, a held-out ELBO.

        It is comparable between VAEs of the same likelihood and of data in the same units: rescaling a column by a
        factor s changes it by log s.

        Args:
            X: (N, n) numbers.
            y: ignored.
        """
        return float(self.score_samples(X).mean())

    # scikit-learn -----------------------------------------------------------------------------

    @property
    def _n_features_out(self) -> int:
        return self._member().latent_dim

    def _member(self) -> Member:
        check_is_fitted(self)
        member: Member = self.member_
        return member

    def _rows(self, X: object, *, reset: bool = False, ensure_min_samples: int = 1) -> np.ndarray:
        if not reset:
            check_is_fitted(self)
        dtype = [np.float64, np.float32]
        found: np.ndarray = validate_data(self, X, reset=reset, dtype=dtype, ensure_min_samples=ensure_min_samples)
        return found

    def __sklearn_tags__(self) -> object:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _elbo(member: Member, rows: Float[Tensor, "N n"]) -> Float[Tensor, " N"]:
    """The ELBO of every row under the trained noise; a row's value does not depend on the other rows."""
    model = member.model if member.model.learns_covariance else replace(member.model, noise="fixed")
    params = {name: value.to(rows) for name, value in member.params.items()}
    precision = torch.tensor([member.precision or 1.0]).to(rows)
    noise = _normal_points(model.latent_dim).to(rows)
    found = []
    for part in rows.split(max(1, 2**18 // (len(noise) * (model.observed_dim + model.latent_dim)))):
        repeated = part.repeat_interleave(len(noise), 0).unsqueeze(0)
        terms = model.terms(params, repeated, noise.repeat(len(part), 1).unsqueeze(0), precision)
        found.append((terms.log_likelihood - terms.kl)[0].unflatten(0, (-1, len(noise))).mean(1))
    return torch.cat(found)


@cache
def _normal_points(dim: int) -> Float[Tensor, "K d"]:
    """Points with the mean and covariance of a standard normal distribution: their mean of a quadratic is exact.

    A scrambled Sobol sequence, rescaled to unit covariance, and its negative.
    """
    count = max(3, math.ceil(math.log2(2 * dim)))
    uniform = qmc.Sobol(dim, seed=0).random_base2(count)
    half = torch.from_numpy(norm.ppf(np.clip(uniform, 1e-12, 1 - 1e-12)))
    root = torch.linalg.cholesky(half.mT @ half / len(half))
    half = torch.linalg.solve_triangular(root, half.mT, upper=False).mT
    return torch.cat([half, -half])


# searching ------------------------------------------------------------------------------------


class _Recorded(Exception):
    """What a VAE is fitted to has been recorded; it is trained later."""


class _Stack:
    """What the VAEs of a search are fitted to, and then their trained members."""

    def __init__(self) -> None:
        self.recording = True
        self.jobs: dict[str, FitJob] = {}
        self._members: dict[str, Member] = {}
        self._data: dict[str, Dataset] = {}

    def member(self, rows: np.ndarray, settings: FitSettings) -> Member | None:
        """The trained member; None if it was not recorded."""
        digest = hashlib.sha256(repr((rows.shape, rows.dtype)).encode() + np.ascontiguousarray(rows).tobytes())
        data = digest.hexdigest()
        key = f"{data} {settings}"
        if self.recording:
            if key not in self.jobs:
                stored = self._data.setdefault(data, dataset_from(rows))
                self.jobs[key] = prepare_fit(stored, settings)
            raise _Recorded
        return self._members.get(key)

    def train(self, progress: Progress) -> None:
        """Train everything that was recorded."""
        self.recording = False
        trained = fit_together(list(self.jobs.values()), progress) if self.jobs else []
        self._members = {key: fit.members[0] for key, fit in zip(self.jobs, trained, strict=True)}


_search: ContextVar[_Stack | None] = ContextVar("search", default=None)


def _fit_member(rows: np.ndarray, options: dict[str, object], verbose: bool) -> Member:
    """Train one VAE, unless it belongs to a search."""
    settings = settings_from(options)
    members = settings.members
    if len(members.precisions) > 1 or len(members.kl_schedules) > 1:
        raise InputError("precision and kl_schedule must be one value each; use VAESearchCV to try several.")
    stack = _search.get()
    found = None if stack is None else stack.member(rows, settings)
    if found is None:
        job = prepare_fit(rows, settings)
        with _progress("VAE", verbose) as progress:
            found = job.run(progress).members[0]
    return found


@contextmanager
def _progress(title: str, shown: bool) -> Iterator[Progress]:
    with ProgressBar(title) if shown else nullcontext(NoProgress()) as progress:
        yield progress


class VAESearchCV(GridSearchCV):
    """scikit-learn's `GridSearchCV`, with all VAEs of the grid and of all folds trained as stacks.

    The estimator is a `VAE` or a pipeline that contains one. Members of one stack may differ in fold, `precision`,
    `beta`, `kl_schedule` and `random_state`; other settings, and `precision="optimal"` or `"learned"` of different
    folds, take a stack each. Scores are those of `GridSearchCV`, to rounding.

    Preprocessing is fitted twice: first to find out what the VAEs are fitted to. Everything runs in this process, so
    `n_jobs` has no effect. `mean_fit_time` does not include the training of the stacks, which `stack_time_` has, in
    seconds.

    Splits that change from call to call (`cv=ShuffleSplit()` without a `random_state`) are trained one by one.

    >>> x = np.random.default_rng(0).normal(size=(90, 3))
    >>> search = VAESearchCV(VAE(latent_dim=2, precision=1.0, epochs=2), {"beta": [0.5, 1.0]}, cv=3)
    >>> sorted(search.fit(x).best_params_)
    ['beta']
    """

    def fit(self, X: object, y: object = None, **params: object) -> VAESearchCV:
        """Search, and fit the best setting to all rows.

        Args:
            X: (N, n) numbers.
            y: as for the estimator.
            params: as for `GridSearchCV.fit`.
        """
        begin, stack, jobs = time.perf_counter(), _Stack(), self.get_params(deep=False)["n_jobs"]
        rehearsal = clone(self).set_params(refit=False, error_score=np.nan, verbose=0, n_jobs=1)
        token = _search.set(stack)
        try:
            with warnings.catch_warnings(), suppress(ValueError):  # every fit stops at its VAE
                warnings.simplefilter("ignore")
                GridSearchCV.fit(rehearsal, X, y, **params)
            with _progress("grid search", bool(self.verbose)) as progress:
                stack.train(progress)
            self.stack_time_ = time.perf_counter() - begin
            self.set_params(n_jobs=1)  # other processes do not have the stack
            super().fit(X, y, **params)
        finally:
            _search.reset(token)
            self.set_params(n_jobs=jobs)
        return self


setattr(VAE.__init__, "__signature__", _signature())  # noqa: B010
