"""When and how the functions of a training run are compiled."""

from __future__ import annotations

import ctypes
import inspect
import shutil
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_leaves

from vaescope.core import randomness
from vaescope.distributions.quadrature import CONSTANT
from vaescope.kernels.convolution import is_available
from vaescope.kernels.instructions import cpu_supports
from vaescope.models import VAE
from vaescope.objectives.elbo import Objective
from vaescope.training.batches import Batches, step_layout
from vaescope.training.progress import Progress
from vaescope.training.schedules import kl_weights_at
from vaescope.training.state import StackState, Weights
from vaescope.training.step import Problem, Step, Validation, adam_scales, make_step, make_validation

P = ParamSpec("P")
T = TypeVar("T")
REUSED_READS = 2  # a value read from more arrays than this is stored if it is used again, instead of computed again
VALIDATION_ROWS = 256  # rows of the validation set per call: few enough to stay in the cache

COMPILE_SECONDS = 20.0
SAVED_PER_STEP = 2e-3  # seconds, by calls that a compiled step avoids
SAVED_PER_MEMBER_STEP = 3e-5
MIN_CONV_STEPS = 2000  # compiling takes about 27 s (10 s if done before) and saves 7 to 20 ms of a step


@dataclass(frozen=True)
class Functions:
    """The functions of a training run, compiled or not."""

    step: Step
    validation: Validation
    eager_validation: Validation


def build_functions(problem: Problem, batches: Batches, state: StackState, progress: Progress) -> Functions:
    """Step and validation, compiled if it saves time and a compiler is available."""
    compiled = _should_compile(problem, batches.steps)
    if compiled and not has_compiler():
        progress.message("No C++ compiler found: training runs uncompiled, up to three times slower.")
        compiled = False
    autocast = problem.device.type if _use_bfloat16(problem) else None
    if autocast == "cpu":
        is_available()  # compiles the kernels, outside of PyTorch's compiler, which hides warnings
    # members that train one after another share what is compiled; stacks do not, because the order of a sum can depend
    # on the number of members that a function was first compiled for
    shared = not problem.model.networks.stackable and _is_hashable((problem.model, problem.trained_objective))
    make = _shared_functions if shared else _make_functions
    functions = make(problem.model, problem.trained_objective, problem.settings.accumulate, autocast, compiled)
    if compiled and len(state.log.active) < len(problem.members):
        _compile_for_all_members(functions, problem, batches, state.tensors.params)
    return functions


def _make_functions(
    model: VAE, objective: Objective, accumulate: int, autocast: str | None, compiled: bool
) -> Functions:
    step = make_step(model, objective, accumulate=accumulate, autocast=autocast, compilable=compiled)
    validation = make_validation(model, objective)
    if not compiled:
        return Functions(step, validation, validation)
    return Functions(compile_stacked(step), compile_stacked(validation), validation)


_shared_functions = lru_cache(maxsize=4)(_make_functions)


def _is_hashable(value: object) -> bool:
    """Unlike `isinstance(value, Hashable)`, this also looks at the items of tuples and dataclasses."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


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
    return device.type == "cpu" and (cpu_supports("avx512_bf16") or cpu_supports("amx_tile"))


def _should_compile(problem: Problem, steps_per_epoch: int) -> bool:
    if problem.settings.compile != "auto":
        return problem.settings.compile == "always"
    steps = problem.settings.epochs * steps_per_epoch
    if not problem.model.networks.stackable:
        return steps > MIN_CONV_STEPS
    return steps * (SAVED_PER_STEP + SAVED_PER_MEMBER_STEP * len(problem.members)) > COMPILE_SECONDS


def has_compiler() -> bool:
    """Whether a C++ compiler is installed; `torch.compile` needs one on a CPU."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++", "cl"))


def compile_stacked(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a function once for any number of members: the first axis of every tensor is dynamic.

    PyTorch checks all properties of all weights at every call, a sixth of the time of a step. Here only the layout of
    the batch can change, and whether there is a single member, so a compiled function is kept for each of these and
    called without further checks.
    """
    from torch._dynamo.exc import InternalTorchDynamoError, Unsupported  # slow to import, and only needed here

    compiled: dict[Hashable, Callable[P, T]] = {}

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        key = tuple((len(arg) == 1, *arg.shape[1:], *arg.stride()[1:]) for arg in args if isinstance(arg, Tensor))
        if key in compiled:
            return compiled[key](*args, **kwargs)
        for leaf in tree_leaves(args):
            if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) > 1:
                torch._dynamo.maybe_mark_dynamic(leaf, 0)
        with warnings.catch_warnings():  # the compiler's warnings are meant for its developers
            warnings.simplefilter("ignore")
            try:
                compiled[key] = _compile(function, unchecked=True)
                return compiled[key](*args, **kwargs)
            except Unsupported:  # not one graph: its parts need their checks
                compiled[key] = _compile(function, unchecked=False)
                return compiled[key](*args, **kwargs)
            except InternalTorchDynamoError:  # of versions of PyTorch before those that this was developed with
                compiled[key] = function
        warnings.warn(
            f"PyTorch {torch.__version__} cannot compile this model: training runs uncompiled, up to 3 times slower.",
            stacklevel=2,
        )
        return function(*args, **kwargs)

    return call


def _compile(function: Callable[P, T], *, unchecked: bool) -> Callable[P, T]:
    """The function with a compiler cache of its own.

    Args:
        function: what to compile.
        unchecked: compile as a single graph, and do not check whether later arguments fit it.
    """
    for constant in (*CONSTANT, is_available):
        torch.compiler.assume_constant_result(constant)
    options: dict[str, object] = {"realize_reads_threshold": REUSED_READS}
    # what older versions of PyTorch lack only costs time there
    if unchecked and hasattr(torch.compiler, "skip_all_guards_unsafe"):
        options["guard_filter_fn"] = torch.compiler.skip_all_guards_unsafe
    isolated = {"isolate_recompiles": True} if _ISOLATES else {}
    return torch.compile(function, fullgraph=unchecked, options=options, **isolated)  # type: ignore[call-overload]


_ISOLATES = "isolate_recompiles" in inspect.signature(torch.compile).parameters


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
        weights = kl_weights_at(
            None, problem.members, torch.ones(members, device=device), constrained=problem.constrains_kl
        )
        return x, noise, torch.ones(members, device=device), weights

    scales = adam_scales(1, problem.settings.learning_rate, device)
    functions.step(weights(), (weights(), weights()), scales, *batch(batches.batch_size))
    if problem.validation_data.shape[1] >= VALIDATION_ROWS:
        with torch.no_grad():
            functions.validation(weights(), *batch(VALIDATION_ROWS))


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # parameters of glibc's mallopt
KEPT = 2**31 - 1  # bytes: the largest value that mallopt takes
USUAL_MMAP, USUAL_TRIM = 2**25, 2**26  # where glibc's own thresholds end up in a process that frees large blocks


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory in this process inside the context, and return it to the system at the end.

    Does nothing where the C library is not glibc.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    _set_thresholds(libc.mallopt, KEPT, KEPT)
    try:
        yield
    finally:
        _set_thresholds(libc.mallopt, USUAL_MMAP, USUAL_TRIM)
        libc.malloc_trim(0)


def _set_thresholds(mallopt: Callable[[int, int], int], mmap: int, trim: int) -> None:
    if not mallopt(MMAP_THRESHOLD, mmap):  # some versions refuse more than 32 MB
        mallopt(MMAP_THRESHOLD, USUAL_MMAP)
    mallopt(TRIM_THRESHOLD, trim)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt, libc.malloc_trim  # noqa: B018 (other C libraries lack them)
    except (OSError, AttributeError):
        return None
    return libc


class ValidationSet:
    """Validation data with noise that is drawn once, so that epochs are compared under the same noise."""

    def __init__(self, problem: Problem) -> None:
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
        specs = [record.spec for record in state.active_records]
        weights = kl_weights_at(None, specs, tensors.beta, constrained=self.constrains_kl)
        for first in range(0, samples, VALIDATION_ROWS):
            x = step_layout(self.data.to_float(self.data.data[data_of, first : first + VALIDATION_ROWS]))
            noise = step_layout(self.noise[:, first : first + VALIDATION_ROWS])
            # the last part may be smaller; it is not worth compiling for
            evaluate = functions.validation if x.shape[1] == VALIDATION_ROWS else functions.eager_validation
            total += x.shape[1] * evaluate(tensors.params, x, noise, tensors.precision, weights)
        return total / samples
