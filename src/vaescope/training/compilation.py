"""When and how the functions of a training run are compiled."""

from __future__ import annotations

import ctypes
import inspect
import shutil
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_leaves

from vaescope.core import randomness
from vaescope.core.errors import VaescopeWarning
from vaescope.distributions.quadrature import CONSTANT
from vaescope.models import VAE, FixedMaps
from vaescope.objectives.elbo import Objective
from vaescope.training.batches import Batches, step_layout
from vaescope.training.progress import Progress
from vaescope.training.schedules import kl_weights_at
from vaescope.training.state import StackState, Weights
from vaescope.training.step import Problem, Step, Validation, adam_scales, make_step, make_validation

P = ParamSpec("P")
T = TypeVar("T")
VALIDATION_ROWS = 256  # rows of the validation set per call: few enough to stay in the cache


@dataclass(frozen=True)
class Functions:
    """The functions of a training run, compiled or not."""

    step: Step
    validation: Validation
    eager_validation: Validation


def build_functions(problem: Problem, batches: Batches, state: StackState, progress: Progress) -> Functions:
    """Step and validation, compiled if it saves time and a compiler is available.

    Runs in one process share what is compiled: convolutional members that train one after another, and stacks of the
    same number of members. Stacks of other numbers do not, because the order of a sum can depend on the number of
    members that a function was first compiled for.
    """
    settings, model, objective = problem.settings, problem.model, problem.trained_objective
    compiled = should_compile(problem, batches.steps)
    if compiled and not has_compiler():
        progress.message("No C++ compiler found: training runs uncompiled, up to three times slower.")
        compiled = False
    autocast = problem.device.type if _use_bfloat16(problem) else None
    recipe = Recipe(
        model,
        objective,
        accumulate=settings.accumulate,
        autocast=autocast,
        compiled=compiled,
        sharing=(repr(model), len(problem.members), torch.get_num_threads()),
    )
    if compiled:
        _forget_after_reset()
    functions = (shared_functions if recipe.can_share() else shared_functions.__wrapped__)(recipe)
    if compiled and len(state.log.active) < len(problem.members):
        _compile_for_all_members(functions, problem, batches, state.tensors.params)
    return functions


@dataclass(frozen=True)
class Recipe:
    """What decides the functions of a training run."""

    model: VAE = field(compare=False)  # its description in `sharing` is compared
    objective: Objective
    accumulate: int
    autocast: str | None
    compiled: bool
    sharing: tuple[str, int, int]
    """The model's description, members and threads: only runs that agree share what is compiled."""

    def can_share(self) -> bool:
        """Whether equal recipes compute the same: functions of the user may read values that change between runs."""
        try:
            hash(self)
        except TypeError:
            return False
        inner = getattr(self.objective, "objective", self.objective)  # of `Weighted`
        own = getattr(inner, "__module__", "").startswith("vaescope.") and self.model.fixed == FixedMaps()
        return not self.model.networks.stackable or (own and "tensor(" not in self.sharing[0])


@lru_cache(maxsize=8)
def shared_functions(recipe: Recipe) -> Functions:
    """The functions of a recipe."""
    step = make_step(
        recipe.model,
        recipe.objective,
        accumulate=recipe.accumulate,
        autocast=recipe.autocast,
        compilable=recipe.compiled,
    )
    validation = make_validation(recipe.model, recipe.objective)
    if not recipe.compiled:
        return Functions(step, validation, validation)
    return Functions(compile_stacked(step), compile_stacked(validation), validation)


def _use_bfloat16(problem: Problem) -> bool:
    """Whether the networks compute in bfloat16. Weights, moments, KL and losses are always float32.

    Stacks of small matrices gain nothing from it: only convolutional networks use it.
    """
    if problem.model.networks.stackable or problem.settings.mixed_precision == "never":
        return False
    return problem.settings.mixed_precision == "always" or has_bfloat16(problem.device)


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for bfloat16; without them it is emulated and slow."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # versions of PyTorch that lack these functions cannot tell
    known = (getattr(torch.cpu, f"_is_{name}_supported", bool) for name in ("avx512_bf16", "amx_tile"))
    return device.type == "cpu" and any(supported() for supported in known)


def should_compile(problem: Problem, steps_per_epoch: int) -> bool:
    """Whether compiling saves more time than it takes; measured on two cores with a warm compiler cache.

    Args:
        problem: what is trained.
        steps_per_epoch: of its training data.
    """
    if problem.settings.compile != "auto":
        return problem.settings.compile == "always"
    steps = problem.settings.epochs * steps_per_epoch
    if not problem.model.networks.stackable:
        return steps > 2000  # compiling takes about 27 s (10 s if done before) and saves 7 to 20 ms of a step
    # seconds saved, by calls that a compiled step avoids, against the seconds that compiling takes
    return steps * (2e-3 + 3e-5 * len(problem.members)) > 20


def has_compiler() -> bool:
    """Whether a C++ compiler is installed; `torch.compile` needs one on a CPU."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++", "cl"))


RESET_MARKER = compile("None", "vaescope", "eval")  # among the code that PyTorch's compiler knows, until it is reset


def _forget_after_reset() -> None:
    """Share nothing from before a call of `torch._dynamo.reset`, which loses what was compiled."""
    from torch._dynamo import convert_frame

    known = getattr(convert_frame, "input_codes", None)
    if known is None or RESET_MARKER not in known:
        shared_functions.cache_clear()
        if known is not None:
            known.add(RESET_MARKER)


class CompiledFunction(Generic[P, T]):
    """A function that is compiled once for any number of members: the first axis of every tensor is dynamic.

    PyTorch checks all properties of all weights at every call, a sixth of the time of a step. Here only the layout of
    the batch can change, and whether there is a single member, so a compiled function is kept for each of these and
    called without further checks.
    """

    def __init__(self, function: Callable[P, T]) -> None:
        self.function = function
        self.compiled: dict[Hashable, Callable[P, T]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        key = tuple((len(arg) == 1, *arg.shape[1:], *arg.stride()[1:]) for arg in args if isinstance(arg, Tensor))
        if key in self.compiled:
            return self.compiled[key](*args, **kwargs)
        for leaf in tree_leaves(args):
            if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) > 1:
                torch._dynamo.maybe_mark_dynamic(leaf, 0)
        from torch._dynamo.exc import InternalTorchDynamoError, Unsupported  # slow to import, and only needed here

        with warnings.catch_warnings():  # the compiler's warnings are meant for its developers
            warnings.simplefilter("ignore")
            try:
                self.compiled[key] = _compile(self.function, unchecked=True)
                return self.compiled[key](*args, **kwargs)
            except Unsupported:  # not one graph: its parts need their checks
                self.compiled[key] = _compile(self.function, unchecked=False)
                return self.compiled[key](*args, **kwargs)
            except InternalTorchDynamoError:  # of versions of PyTorch before those that this was developed with
                self.compiled[key] = self.function
        warnings.warn(
            f"PyTorch {torch.__version__} cannot compile this model: training runs uncompiled, up to 3 times slower.",
            VaescopeWarning,
            stacklevel=2,
        )
        return self.function(*args, **kwargs)


def compile_stacked(function: Callable[P, T]) -> CompiledFunction[P, T]:
    """Compile a function once for any number of members, at its first call."""
    return CompiledFunction(function)


def _compile(function: Callable[P, T], *, unchecked: bool) -> Callable[P, T]:
    """The function with a compiler cache of its own.

    Args:
        function: what to compile.
        unchecked: compile as a single graph, and do not check whether later arguments fit it.
    """
    for constant in CONSTANT:
        torch.compiler.assume_constant_result(constant)
    # a value read from more arrays than this is stored if it is used again, instead of computed again
    options: dict[str, object] = {"realize_reads_threshold": 2}
    # what older versions of PyTorch lack only costs time there
    if unchecked and hasattr(torch.compiler, "skip_all_guards_unsafe"):
        options["guard_filter_fn"] = torch.compiler.skip_all_guards_unsafe
    isolates = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    isolated = {"isolate_recompiles": True} if isolates else {}
    return torch.compile(function, fullgraph=unchecked, options=options, **isolated)  # type: ignore[call-overload]


def _compile_for_all_members(functions: Functions, problem: Problem, batches: Batches, params: Weights) -> None:
    """Compile a resumed run with its original number of members.

    Code compiled for fewer members could sum in another order and differ in the last bits.
    """
    members, device = len(problem.members), problem.device
    row_dim, latent_dim = problem.model.row_dim, problem.model.latent_dim

    def weights() -> Weights:
        return {name: torch.zeros(members, *p.shape[1:], device=device) for name, p in params.items()}

    def batch(rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        zeros = (torch.zeros(members, rows, columns, device=device) for columns in (row_dim, latent_dim))
        x, noise = (step_layout(value) for value in zeros)
        # two tensors: what is compiled for one tensor given twice does not serve two
        precision, beta = torch.ones(members, device=device), torch.ones(members, device=device)
        schedules = [spec.schedule for spec in problem.members]
        return x, noise, precision, kl_weights_at(None, schedules, beta, constrained=problem.constrains_kl)

    scales = adam_scales(1, problem.settings.learning_rate, device)
    functions.step(weights(), (weights(), weights()), scales, *batch(batches.batch_size))
    if problem.validation_data.shape[1] >= VALIDATION_ROWS:
        with torch.no_grad():
            functions.validation(weights(), *batch(VALIDATION_ROWS))


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory in this process inside the context, and return it to the system at the end.

    glibc returns large blocks at once, and the system clears their pages before the next step gets them: a tenth of
    a step. Does nothing with other C libraries.
    """
    try:
        libc = ctypes.CDLL("libc.so.6") if sys.platform.startswith("linux") else None
        mallopt, trim = (libc.mallopt, libc.malloc_trim) if libc is not None else (None, None)
    except (OSError, AttributeError):
        mallopt = trim = None
    if mallopt is None or trim is None:
        yield
        return
    mmap_threshold, trim_threshold = -3, -1  # parameters of mallopt
    if not mallopt(mmap_threshold, 2**31 - 1):
        mallopt(mmap_threshold, 2**25)  # some versions refuse more than 32 MB
    mallopt(trim_threshold, 2**31 - 1)
    try:
        yield
    finally:  # where glibc's own thresholds end up in a process that frees large blocks
        mallopt(mmap_threshold, 2**25)
        mallopt(trim_threshold, 2**26)
        trim(0)


def stated_precision(model: VAE, precision: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
    """What `VAE.terms` takes for γ² outside of training: γ² itself, or the lower bound of an optimal one, if any."""
    return precision if model.noise != "optimal" else torch.full_like(precision, model.kept_floor or 0.0)


class ValidationSet:
    """Validation data with noise that is drawn once, so that epochs are compared under the same noise."""

    def __init__(self, problem: Problem) -> None:
        self.model = problem.model
        self.data, self.constrains_kl = problem.validation_data, problem.constrains_kl
        shape = (self.data.shape[1], problem.model.latent_dim)
        generators = [randomness.generator(seed, "validation") for seed in problem.seeds]
        self.noise = torch.stack([torch.randn(shape, generator=g) for g in generators]).to(problem.device)

    def select(self, rows: list[int]) -> None:
        """Keep only these members."""
        self.noise = self.noise[rows]

    @torch.no_grad()
    def evaluate(self, functions: Functions, state: StackState) -> Float[Tensor, "2 E"]:
        """Mean ELBO and objective of every active member."""
        samples, tensors = self.data.shape[1], state.tensors
        total = torch.zeros(2, len(state.log.active), device=self.data.data.device)
        data_of = torch.tensor([record.spec.data for record in state.active_records])
        weights = kl_weights_at(None, state.schedules, tensors.beta, constrained=self.constrains_kl)
        precision = stated_precision(self.model, tensors.precision)
        for first in range(0, samples, VALIDATION_ROWS):
            x = step_layout(self.data.to_float(self.data.data[data_of, first : first + VALIDATION_ROWS]))
            noise = step_layout(self.noise[:, first : first + VALIDATION_ROWS])
            # the last part may be smaller; it is not worth compiling for
            evaluate = functions.validation if x.shape[1] == VALIDATION_ROWS else functions.eager_validation
            total += x.shape[1] * evaluate(tensors.params, x, noise, precision, weights)
        return total / samples
