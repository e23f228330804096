"""A user's loss as a function of named tensors: which argument is which, what a training step passes around."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vaescope.core.calls import networks_behind
from vaescope.core.checks import shown
from vaescope.core.errors import InputError, first_line

Tensors = Mapping[str, Tensor]
"""By role: x, y (the decoder's output), mu and s (the encoder's outputs), z (a sample), and others by name."""
Form = Callable[[Tensors], object]


class Words:
    """How people call the things that a loss is made of, as patterns."""

    before = r"(?:(?:z|q|qz|recog|enc|encoder|latent|post|posterior|log|ln|raw)_?)*"
    after = r"(?:_?(?:q|z|qz|arg|vec|vector|s|p?2|sq|squared))*"
    arguments: ClassVar[Mapping[str, str]] = {
        "y_scale": r"(?:x|y|recon\w*|dec\w*|out\w*|px?|likelihood)_?(?:hat_)?(?:log|ln)?_?"
        r"(?:var|variance|std|sigma|scale)",
        "dispersion": r"px_r|theta|dispersion|inverse_dispersion|total_count",
        "label_logits": r"(?:class|label|clf|cls|y|digit|classifier)_?(?:logits?|scores?|pred\w*|hat|prob\w*)",
        "discriminator": r"d_?z\w*|disc\w*|tc_logits|critic\w*",
        "z": r"zs?|z_?sampled?|sampled?_?z|latents?|latent_(?:sample|code)s?|z_tilde|codes?|samples?",
        "mu": before + r"(?:mu|mus|mean|means|loc|m|average|embedding)" + after,
        "s": before
        + r"(?:logv|logvar\w*|var|variance|lvar|sigma|std|stddev|sd|stdev|deviation|scale|covariance|logcov\w*|v|s"
        r"|precision|logstd|logsigma|logsd|logscale|logprec\w*)" + after,
        "y": r"\w*(?:recon|x_?hat|x_?rec|tilde|prime|pred|decoded|decod|output|generated|fake|logit|rate|logp)\w*"
        r"|\w*y_?hat\w*|\w+_rec|rec_\w+|y|out|outs|rec|px|x_?out|x_p|x_logits?|x_mean|x_mu|x_loc|xr",
        "x": r"x|xs|inputs?|inp|targets?|tgt|data|y_?true|true|features|images?|imgs?|orig\w*|real\w*|batch|observ\w*"
        r"|counts|labels|gt|ground_truth|source|x_?(?:true|in|input|orig\w*|target|real|batch|0)|obs|tokens|sample|adj\w*|y",
        "labels": r"labels?|classes|class_?(?:labels?|idx)?|y_?(?:true|label)?|digits?|targets?",
    }
    """How arguments are usually called, most specific first."""
    number = (
        r"\w*(?:beta|gamma|alpha|lambda|lam|weight|coeff?|capacity|free_?bits|step|epoch|iter\w*|anneal\w*|kld?_?w)\w*"
    )
    """How arguments that are numbers are usually called."""
    methods = ("training_step", "train_step", "loss_function", "compute_loss", "loss", "elbo", "forward")
    """Methods of modules that may compute the loss, in the order of preference."""
    head = r"(?:fc|to|linear|lin|conv|enc|encode|encoder|z|hidden2|h2|h_to|hidden_to)*_?"
    heads: ClassVar[Mapping[str, str]] = {
        "mu": head + r"(?:mu|mean|loc)s?(?:_?(?:layer|head|fc|z))*|fc_?21|fc_?2_?1|fc31|fc41|embedding",
        "s": head
        + r"(?:log_?|ln_?)?(?:var\w*|logvar|sigma\w*|std|logv|scale|sd)(?:_?(?:layer|head|fc|z))*|fc_?22|fc_?2_?2|fc32"
        r"|fc42|log_?var\w*|log_?covariance",
    }
    """How the layers that return mu and s are usually called."""
    coefficient = (
        r"(?:.*_)?(?:beta|gamma|alpha|lambda\w*|lam|lmbda|weight|w|wt|coeff?\w*|factor|scale|kld?|kl_?w\w*|mult\w*|capacity|c"
        r"|free_?bits)\w*"
    )
    """Names of attributes that are coefficients; keyword arguments may have any name but those of counters."""
    counter = (
        r"(?:.*_)?(?:idx|index|step|steps|iter\w*|epochs?|n|num\w*|size|dim\w*|seed|reduction|eps\w*|batch\w*|norm)"
    )


class Captured(BaseException):
    """Ends a training step at `loss.backward()`; not an `Exception`, which user code might catch."""

    def __init__(self, loss: Tensor) -> None:
        self.loss = loss


@dataclass(frozen=True, eq=False)
class Objective:
    """A loss that can be evaluated at any x, y, mu and s.

    Args:
        run: the user's code, from tensors and keyword arguments to what it returns, and the z that it decoded.
        roles: which tensors it reads.
        names: what the user calls them.
        keywords: keyword arguments with their values; `attributes` are numbers of the module, changed in the same way.
        total: which part of what it returns is minimised.
        networks: copies of the user's modules.
        title: what the user calls it.
        parts: of the model, if it is a step.
        function: the user's own.
    """

    run: Callable[[Tensors, Mapping[str, object]], tuple[object, Tensor | None]]
    roles: tuple[str, ...]
    names: Mapping[str, str]
    keywords: Mapping[str, object] = field(default_factory=dict)
    attributes: Mapping[str, float] = field(default_factory=dict)
    total: int | str | None = None
    networks: tuple[nn.Module, ...] = ()
    title: str = "loss"
    parts: Parts | None = None
    function: Callable[..., object] | None = None

    @property
    def is_step(self) -> bool:
        """Whether the loss draws z itself."""
        return self.parts is not None

    def __call__(self, tensors: Tensors, changed: Mapping[str, object] | None = None) -> Tensor:
        return self.with_sample(tensors, changed)[0]

    def at(self, tensors: Tensors, changed: Mapping[str, object] | None = None) -> float:
        """The minimised number, without its gradient."""
        return float(self(tensors, changed).detach())

    def with_sample(
        self, tensors: Tensors, changed: Mapping[str, object] | None = None, *, seed: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """The minimised number and, of a step, what it decoded; the same random numbers for the same seed."""
        with double_precision(), same_random_numbers(seed):
            found, z = self.run(tensors, {**self.keywords, **(changed or {})})
        return minimised(found, self.total, self.title), z


def minimised(found: object, total: int | str | None, title: str) -> Tensor:
    """The one number in what a loss returned."""
    value = _part(found, total, title)
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise InputError(
                f"{title} must return one number, got a tensor {tuple(value.shape)}; "
                f"write lambda *tensors: {title}(*tensors).mean(), with the reduction that you train with."
            )
        return value.reshape(())
    if isinstance(value, Real) or (isinstance(value, np.ndarray) and value.size == 1):
        return torch.tensor(float(np.asarray(value).item()), dtype=torch.float64)
    raise InputError(
        f"{title} must return the loss as a tensor (or a tuple or dictionary with it), got {shown(value)}; "
        "write return loss, or pass total= with the index or key of the number that is minimised."
    )


def _part(found: object, total: int | str | None, title: str) -> object:
    if total == "sum" and isinstance(found, tuple | list):
        return sum(part for part in found if isinstance(part, Tensor))
    if total is not None:
        try:
            if isinstance(found, Mapping):
                return found[total]
            if isinstance(found, tuple | list) and isinstance(total, int):
                return found[total]
            return getattr(found, str(total))
        except (KeyError, IndexError, AttributeError, TypeError):
            shown_keys = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
            raise InputError(f"total={total!r} is not in what {title} returns ({shown_keys}).") from None
    if isinstance(found, Mapping):
        keys = [
            key for key in found if re.fullmatch(r"(total_?)?(loss|objective)|total|neg_?elbo|nelbo", str(key), re.I)
        ]
        if not keys:
            raise InputError(f"{title} returns a dictionary with {', '.join(map(str, found))}; pass total='KEY'.")
        return found[keys[0]]
    if isinstance(found, tuple | list):
        if not found:
            raise InputError(f"{title} returns an empty {type(found).__name__}; return the loss.")
        return getattr(found, "loss", found[0])
    return found if isinstance(found, Tensor | Real | np.ndarray) else getattr(found, "loss", found)


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """New tensors are float64 inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def same_random_numbers(seed: int) -> Iterator[None]:
    """Random numbers of torch, NumPy and Python start at a seed inside the block, and go on afterwards as before."""
    python, numpy, own = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
    try:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  # what user code may draw from
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.default_generator.set_state(own)


# functions --------------------------------------------------------------------------------------


def read_objective(
    loss: object,
    examples: Sequence[Tensors],
    *,
    arguments: str | Mapping[str, str] | None,
    keywords: Mapping[str, object],
    total: int | str | None,
    model: nn.Module | None,
    batch: Callable[[Tensor], object] | None,
    decoder: str | None,
    encoder: str | None,
) -> Objective:
    """The loss behind a function, a method, a module, or a step that takes a model and a batch.

    Args:
        loss: the user's.
        examples: tensors by role, in the ranges that they may have: the loss must be finite at one of them.
        arguments: roles of the positional arguments, in order or by name.
        keywords: keyword arguments.
        total: which part of what it returns is minimised.
        model: the model that a step is called with.
        batch: makes a batch from x.
        decoder, encoder: names of the parts of a model.
    """
    title, method = _title(loss), None
    owner = loss if isinstance(loss, nn.Module) else getattr(loss, "__self__", None)
    if isinstance(owner, nn.Module):
        owner = _copied(owner)
        method = _method_of(owner) if isinstance(loss, nn.Module) else str(getattr(loss, "__name__", "forward"))
        function: Callable[..., object] = getattr(owner, method)
        title = method if method != "forward" else type(owner).__name__
    elif not callable(loss):
        raise InputError(f"loss must be a function, a module or a step, got {shown(loss)}.")
    else:
        function = loss
    names, defaults, any_number = _parameters(function)
    numbers = {name: value for name, value in defaults.items() if not isinstance(value, Tensor)}
    base = Objective(
        lambda tensors, changed: (None, None),
        (),
        {},
        {**numbers, **keywords},
        _without(_attributes(owner), defaults),
        total,
        (owner,) if isinstance(owner, nn.Module) else networks_behind(function),
        title,
        function=function,
    )
    steps = method in ("training_step", "train_step") or (method == "forward" and len(names) == 1 and not any_number)
    if model is None and names and re.fullmatch(r"model|net|network|vae|module", names[0]):
        raise InputError(f"{title}({', '.join(names)}) is a step: pass its model, vs.audit({title}, model=model, x=x).")
    if model is not None:
        copied = _copied(model)
        base = replace(base, networks=(copied,), attributes=_without(_attributes(copied), defaults))
        return _step(base, partial(function, copied), copied, names[1:], examples[0], batch, decoder, encoder)
    if steps and isinstance(owner, nn.Module):
        return _step(base, function, owner, names, examples[0], batch, decoder, encoder)
    if len(names) <= 2 and networks_behind(function) and arguments is None and not any_number:
        raise InputError(
            f"{title}({', '.join(names)}) hides the encoder and the decoder; pass the model too: "
            f"vs.audit({title}, model=model, x=x) calls {title}(model, batch)."
        )
    return _function(base, function, names, any_number, examples, arguments)


def _title(loss: object) -> str:
    name = str(getattr(loss, "__name__", type(loss).__name__))
    return "loss" if name == "<lambda>" else name


def _copied(module: nn.Module) -> nn.Module:
    """A copy in float64: the user's own is never changed."""
    try:
        return copy.deepcopy(module).double()
    except Exception as error:
        raise InputError(
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {first_line(error)}); "
            "pass its loss as a function of x, y, mu and s."
        ) from None


def _method_of(module: nn.Module) -> str:
    known = [name for name in Words.methods if name in _own_methods(module)]
    if not known:
        raise InputError(
            f"{type(module).__name__} has no loss: expected one of {', '.join(Words.methods[:5])}; "
            "pass the function itself, vs.audit(loss), or a step with model=."
        )
    return known[0]


def _own_methods(module: nn.Module) -> set[str]:
    """Methods that the user's classes define, not those of a library's base class."""
    own = {"torch", "lightning", "pytorch_lightning", "keras"}
    classes = [c for c in type(module).__mro__ if c.__module__.split(".")[0] not in own and c is not object]
    return {name for c in classes for name in vars(c)}


def _attributes(module: object) -> dict[str, float]:
    """Numbers of a module that may be coefficients."""
    if not isinstance(module, nn.Module):
        return {}
    values = {name: value for c in reversed(type(module).__mro__[:-2]) for name, value in vars(c).items()} | vars(
        module
    )
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith("_")
    }


def _without(values: Mapping[str, float], names: Collection[str]) -> dict[str, float]:
    """Attributes that are no arguments too: an argument of the same name is another number."""
    return {name: value for name, value in values.items() if name not in names}


def _parameters(function: Callable[..., object]) -> tuple[list[str], dict[str, object], bool]:
    """Names of required positional arguments, defaults of the others, and whether there may be any number."""
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return [], {}, True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    empty = inspect.Parameter.empty
    required = [p.name for p in parameters if p.kind in positional and p.default is empty]
    return (
        required,
        {p.name: p.default for p in parameters if p.default is not empty},
        any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters),
    )


def roles_by_name(name: str) -> list[str]:
    """The roles that an argument of this name may have, the most likely first."""
    plain = name.lower().strip("_")
    return [role for role, pattern in Words.arguments.items() if re.fullmatch(pattern, plain)]


class Forms:
    """Arguments that hold mu and s together."""

    makers: ClassVar[Mapping[str, Form]] = {
        "pair": lambda t: (t["mu"], t["s"]),
        "moments": lambda t: torch.cat([t["mu"], t["s"]], 1),
        "last_moments": lambda t: torch.cat([t["mu"], t["s"]], -1),
        "normal": lambda t: torch.distributions.Normal(t["mu"], t["s"], validate_args=False),
    }

    @classmethod
    def members(cls, role: str) -> tuple[str, ...]:
        """The tensors that an argument of this role holds."""
        return ("mu", "s") if role in cls.makers else (role,)


def _values(roles: Sequence[str], tensors: Tensors) -> list[object]:
    """Copies that user code may change in place."""
    copies = {name: value.clone() for name, value in tensors.items()}
    return [Forms.makers[role](copies) if role in Forms.makers else copies[role] for role in roles]


def _function(
    base: Objective,
    function: Callable[..., object],
    names: list[str],
    any_number: bool,
    examples: Sequence[Tensors],
    arguments: str | Mapping[str, str] | None,
) -> Objective:
    by_name = any(name in base.keywords for name in names)
    names = [name for name in names if name not in base.keywords]
    if lacking := [n for n in names if not roles_by_name(n) and re.fullmatch(Words.number, n.lower())]:
        raise InputError(
            f"{base.title} needs {lacking[0]}, which is no tensor: pass keywords={{'{lacking[0]}': 1.0}} "
            f"(--keywords {lacking[0]}=1.0) with the value that you train with."
        )

    def with_roles(roles: tuple[str, ...]) -> Objective:
        def run(tensors: Tensors, keywords: Mapping[str, object]) -> tuple[object, None]:
            values = _values(roles, tensors)
            with _set_attributes(base, keywords):
                given = {
                    key: value for key, value in keywords.items() if key not in base.attributes or key in base.keywords
                }
                if by_name:
                    return function(**dict(zip(names, values, strict=True)), **given), None
                return function(*values, **given), None

        members = tuple(m for role in roles for m in Forms.members(role))
        called = {m: name for role, name in zip(roles, names, strict=False) for m in Forms.members(role)}
        return replace(base, run=run, roles=members, names={m: called.get(m, m) for m in members})

    given = _given_roles(arguments, names, base.title)
    counts = [len(names)] if names or not any_number else [4, 5, 3]
    last, first = "", None
    for count in counts:
        unnamed = ["?"] * count
        for roles in [given] if given else [*_orders(names or unnamed), *(_orders(unnamed) if count > 3 else [])]:
            objective = with_roles(roles)
            example, problem = working_example(objective, examples)
            if example is None:
                last = last or problem
                continue
            if given or any(roles_by_name(name) for name in names):
                return objective if given else _settled(objective, example, examples)
            first = first or _settled(objective, example, examples)
            if _is_odd(settled := _settled(objective, example, examples), "mu", example):
                return settled  # without names, the order in which mu is squared
        if first is not None:
            return first
    if absent := re.fullmatch(r"KeyError: '(\w+)'", last):
        raise InputError(
            f"{base.title} needs {absent[1]}: pass keywords={{'{absent[1]}': 1.0}} (--keywords {absent[1]}=1.0), "
            "with the value that you train with."
        )
    signature = "*args" if any_number and not names else ", ".join(names)
    raise InputError(
        f"{base.title}({signature}) cannot be called with x {_shape(examples[0]['x'])}, y, mu and s in any order"
        f"{last and ': ' + last}. "
        "Say which argument is what, arguments='x y mu s', or write a function of them: "
        f"vs.audit(lambda x, y, mu, s: {base.title}(...), x=x)."
    )


def _shape(value: Tensor) -> str:
    return str(tuple(value.shape))


def _given_roles(arguments: str | Mapping[str, str] | None, names: list[str], title: str) -> tuple[str, ...]:
    if arguments is None:
        return ()
    if isinstance(arguments, str):
        roles = tuple(arguments.replace(",", " ").split())
    else:
        missing = [name for name in names if name not in arguments]
        if missing:
            raise InputError(f"arguments= must say what {', '.join(missing)} of {title} are: x, y, mu, s or z.")
        roles = tuple(arguments[name] for name in names)
    known = {*Words.arguments, *Forms.makers}
    if unknown := [role for role in roles if role not in known]:
        raise InputError(f"arguments= must be roles among {', '.join(sorted(known))}, got {unknown[0]!r}.")
    return roles


def _orders(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Possible roles of the arguments, the most likely first."""
    possible = [roles_by_name(name) for name in names]
    usual = {3: ("x", "y", "pair"), 4: ("x", "y", "mu", "s"), 5: ("x", "y", "mu", "s", "z")}.get(
        len(names), ("x", "y", "mu", "s")
    )
    packs = list(Forms.makers)
    choices = []
    for found in possible:
        if len(names) == 3:
            choices.append(found[:2] + packs if not {"x", "y"} & set(found) else [r for r in found if r in "xy"])
        else:
            choices.append(found or [*usual])
    found_orders: list[tuple[float, tuple[str, ...]]] = []
    for roles in itertools.islice(itertools.product(*choices), 20_000):
        members = [m for role in roles for m in Forms.members(role)]
        if len(set(members)) < len(members) or not {"x", "y"} <= set(members):
            continue
        preference = sum(options.index(r) if r in options else 3.0 for r, options in zip(roles, possible, strict=True))
        order = sum(abs(usual.index(r) - k) for k, r in enumerate(roles) if r in usual) / 100
        lacking = 10.0 * len({"mu", "s"} - set(members))
        found_orders.append((preference + order + lacking, roles))
    if not found_orders and any(options and set(usual) - set(options) for options in possible) and len(names) > 3:
        known = [name if set(o) & {"mu", "s"} else "?" for name, o in zip(names, possible, strict=True)]
        return [] if known == list(names) else _orders(known)
    return [roles for _, roles in sorted(found_orders)][:200]


def working_example(objective: Objective, examples: Sequence[Tensors]) -> tuple[Tensors | None, str]:
    """The first tensors at which the loss is a finite number; None if there are none, and why not."""
    problem = ""
    for example in examples:
        if missing := [role for role in objective.roles if role not in example]:
            return None, f"it needs {missing[0]}"
        try:
            value = objective.at({role: example[role] for role in objective.roles})
        except InputError:
            raise
        except Exception as error:
            problem = problem or f"{type(error).__name__}: {first_line(error)}"
            continue
        if math.isfinite(value):
            return example, ""
        problem = problem or f"it returns {value}"
    return None, problem


def _settled(objective: Objective, example: Tensors, examples: Sequence[Tensors]) -> Objective:
    """Where names do not decide, what the loss does with its arguments: the KL is quadratic in mu, x is linear."""
    unknown = {role for role, name in objective.names.items() if role not in roles_by_name(name)}
    if {"mu", "s"} <= unknown and not _is_odd(objective, "mu", example) and _is_odd(objective, "s", example):
        objective = _exchanged(objective, "mu", "s")
    same_shape = example["x"].shape == example["y"].shape and example["x"].is_floating_point()
    alike = "x" in unknown or "x" in roles_by_name(objective.names.get("y", ""))  # as input and target are
    if "y" in unknown and alike and same_shape and _is_linear(objective, "y", example):
        exchanged = _exchanged(objective, "x", "y")
        other, _ = working_example(exchanged, examples)
        if other is not None and not _is_linear(exchanged, "y", other):
            objective = exchanged
    return objective


def _exchanged(objective: Objective, first: str, second: str) -> Objective:
    swap = {first: second, second: first}

    def run(tensors: Tensors, keywords: Mapping[str, object]) -> tuple[object, Tensor | None]:
        return objective.run({swap.get(role, role): value for role, value in tensors.items()}, keywords)

    names = {swap.get(role, role): name for role, name in objective.names.items()}
    return replace(objective, run=run, names=names)


def _along(objective: Objective, role: str, example: Tensors, factor: float) -> Tensor | None:
    """The gradient with respect to an argument at a multiple of it."""
    moved = (factor * example[role]).detach().requires_grad_()
    try:
        (found,) = torch.autograd.grad(objective({**example, role: moved}), moved, allow_unused=True)
    except RuntimeError:
        return None
    return found


def _is_odd(objective: Objective, role: str, example: Tensors) -> bool:
    """Whether the gradient is proportional to the argument, as that of ½ μ² is."""
    one, two, minus = (_along(objective, role, example, factor) for factor in (1.0, 2.0, -1.0))
    if one is None or two is None or minus is None or not bool(one.isfinite().all()):
        return False
    return bool(one.abs().max() > 0 and torch.allclose(two, 2 * one) and torch.allclose(minus, -one))


def _is_linear(objective: Objective, role: str, example: Tensors) -> bool:
    first, second = (_along(objective, role, example, factor) for factor in (0.9, 1.0))
    return first is not None and second is not None and torch.allclose(first, second)


@contextlib.contextmanager
def _set_attributes(base: Objective, keywords: Mapping[str, object]) -> Iterator[None]:
    """Numbers of a module as keyword arguments say, inside the block."""
    wanted = {key: value for key, value in keywords.items() if key in base.attributes}
    changed = [(n, key, value) for n in base.networks for key, value in wanted.items() if key in _attributes(n)]
    before = [(network, key, vars(network).get(key)) for network, key, _ in changed]
    try:
        for network, key, value in changed:
            vars(network)[key] = value
        yield
    finally:
        for network, key, old in before:
            if old is None:
                vars(network).pop(key, None)
            else:
                vars(network)[key] = old


# steps ------------------------------------------------------------------------------------------


def _step(
    base: Objective,
    function: Callable[..., object],
    model: nn.Module,
    names: Sequence[str],
    example: Tensors,
    batch: Callable[[Tensor], object] | None,
    decoder: str | None,
    encoder: str | None,
) -> Objective:
    """A step whose encoder and decoder are replaced by tensors that are chosen from outside."""
    for quiet in ("log", "log_dict"):
        if quiet in dir(type(model)):
            vars(model)[quiet] = lambda *args, **kwargs: None
    x, forms = example["x"], [batch] if batch is not None else _batches(example)
    rest: list[object] = [0] * max(0, len(names) - 1)
    calls: dict[str, list[object]] = {}
    problem = ""
    for form in forms:
        calls = {}
        try:
            with double_precision(), same_random_numbers(0), _recorded(model, calls), _captured_loss():
                function(form(x), *rest)
        except Captured:
            pass
        except Exception as error:
            problem = problem or f"{type(error).__name__}: {first_line(error)}"
            continue
        break
    else:
        raise InputError(
            f"{base.title} failed on a batch of x {_shape(x)}: {problem}; "
            "pass batch=lambda x: (x, labels) that makes a batch as your loader does."
        )
    parts = _find_parts(model, x, calls, decoder, encoder, base.title)

    def run(tensors: Tensors, keywords: Mapping[str, object]) -> tuple[object, Tensor | None]:
        received: list[Tensor] = []
        own = {key: value for key, value in keywords.items() if key in base.keywords and key not in base.attributes}
        with _set_attributes(base, keywords), _replaced(model, parts, tensors, received), _captured_loss():
            try:
                found = function(form(tensors["x"].clone()), *rest, **own)
            except Captured as ended:
                found = ended.loss
        return found, received[0] if received else None

    roles = ("x", "y", "mu", "s")
    names_of = {"x": "x", "y": f"{parts.decoder}(z)", "mu": parts.name_of("mu"), "s": parts.name_of("s")}
    return replace(base, run=run, roles=roles, names=names_of, parts=parts)


@dataclass(frozen=True)
class Parts:
    """The parts of a model that are replaced.

    Args:
        decoder: its name.
        encoders: part -> what it returns: mu, s, pair or moments; h for a part before the heads.
        y: what the decoder returned.
        latents: the shape of one sample of mu.
    """

    decoder: str
    encoders: Mapping[str, str]
    y: Tensor
    latents: tuple[int, ...]

    def name_of(self, role: str) -> str:
        return next(
            (part for part, form in self.encoders.items() if form in (role, "pair", "moments", "last_moments")), role
        )


def _batches(example: Tensors) -> list[Callable[[Tensor], object]]:
    labels = lambda x: torch.zeros(len(x), dtype=torch.long)  # noqa: E731
    return [lambda x: (x, labels(x)), lambda x: x, lambda x: {"x": x}, lambda x: {"data": x}, lambda x: (x,)]


def _candidates(model: nn.Module) -> list[str]:
    """Parts of a model by name, also of models inside it: submodules, and methods that encode and decode."""
    found = []
    for path, part in [("", model), *((f"{n}.", c) for n, c in model.named_children() if _own_methods(c))]:
        methods = [name for name in sorted(_own_methods(part)) if re.fullmatch(r"_?(encode|decode)r?\w*", name)]
        found += [path + name for name in [*methods, *(name for name, _ in part.named_children())]]
    return found


@contextlib.contextmanager
def _recorded(model: nn.Module, calls: dict[str, list[object]]) -> Iterator[None]:
    """What the parts of a model return, in the order of calls."""

    def recording(name: str, part: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            found = part(*args, **kwargs)
            calls.setdefault(name, []).append(found)
            return found

        return call

    with _exchanged_parts(model, {name: recording(name, _callable(model, name)) for name in _candidates(model)}):
        yield


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The object and the attribute that are called when the model calls a part."""
    *path, last = name.split(".")
    owner = model.get_submodule(".".join(path))
    part = getattr(owner, last)
    return (part, "forward") if isinstance(part, nn.Module) else (owner, last)


def _callable(model: nn.Module, name: str) -> Callable[..., object]:
    owner, attribute = _place(model, name)
    found: Callable[..., object] = getattr(owner, attribute)
    return found


@contextlib.contextmanager
def _exchanged_parts(model: nn.Module, new: Mapping[str, Callable[..., object]]) -> Iterator[None]:
    places = {name: _place(model, name) for name in new}
    try:
        for name, function in new.items():
            vars(places[name][0])[places[name][1]] = function
        yield
    finally:
        for place, key in places.values():
            vars(place).pop(key, None)


@contextlib.contextmanager
def _captured_loss() -> Iterator[None]:
    """A step that calls `loss.backward()` itself ends there, before it changes weights."""
    before = Tensor.backward

    def capture(loss: Tensor, *args: object, **kwargs: object) -> None:
        raise Captured(loss)

    type.__setattr__(Tensor, "backward", capture)
    try:
        yield
    finally:
        type.__setattr__(Tensor, "backward", before)


def _called(calls: Mapping[str, list[object]], pattern: str) -> list[str]:
    """Parts whose own name matches; methods first, which call the other parts."""
    found = [name for name in calls if re.fullmatch(pattern, name.split(".")[-1].lower())]
    usual = ("encode", "decode", "encoder", "decoder")
    return sorted(found, key=lambda n: usual.index(n.split(".")[-1]) if n.split(".")[-1] in usual else len(usual))


def _numbers(found: object) -> int:
    return found.numel() if isinstance(found, Tensor) else 0


def _find_parts(
    model: nn.Module, x: Tensor, calls: Mapping[str, list[object]], decoder: str | None, encoder: str | None, title: str
) -> Parts:
    """Which parts encode and decode, from their names and from what they returned."""
    for name in (decoder, encoder):
        if name is not None and name not in calls:
            raise InputError(
                f"{title} does not call {name} of the model; it calls {', '.join(calls) or 'no part by name'}."
            )
    decoders = [decoder] if decoder else _called(calls, r"_?(decode|dec|generat|p_x)\w*")
    decoders = [name for name in decoders if isinstance(calls[name][0], Tensor)]
    whole = [encoder] if encoder else _called(calls, r"_?(encode|enc|q_z|inference)\w*")
    heads = {role: _called(calls, pattern) for role, pattern in Words.heads.items()}
    chosen: dict[str, str] = {}
    sample: object = None
    for name in whole:
        form = _form_of(calls[name][0])
        if form is not None and (form == "pair" or not (heads["mu"] and heads["s"])):
            chosen, sample = {name: form}, calls[name][0]
            break
    if not chosen and heads["mu"] and heads["s"]:
        mu, s = heads["mu"][0], next(n for n in heads["s"] if n != heads["mu"][0])
        chosen = {mu: "mu", s: "s"} | {n: "h" for n in whole if _place(model, n)[1] == "forward" and n not in (mu, s)}
        sample = calls[mu][0]
    decoders = (
        decoders or [n for n in list(calls)[::-1] if _numbers(calls[n][0]) == len(x) * math.prod(x.shape[1:])][:1]
    )
    if not chosen and decoders:
        tensors = {n: v[0].shape for n, v in calls.items() if n not in decoders and isinstance(v[0], Tensor)}
        before = list(tensors)
        pairs = [n for n in calls if n not in decoders and _form_of(calls[n][0]) == "pair"]
        if pairs:
            chosen, sample = {pairs[-1]: "pair"}, calls[pairs[-1]][0]
        elif len(before) > 1 and tensors[before[-1]] == tensors[before[-2]]:
            chosen, sample = {before[-2]: "mu", before[-1]: "s"}, calls[before[-2]][0]
    if not chosen or not decoders:
        missing = "decoder" if chosen else "encoder"
        raise InputError(
            f"the {missing} was not found in {type(model).__name__}, of which {title} calls "
            f"{', '.join(calls) or 'nothing'}; "
            f"pass {missing}='NAME' (an attribute that {'returns y' if chosen else 'returns mu and s'}), "
            "or the loss as a function of x, y, mu and s."
        )
    y = calls[decoders[0]][0]
    mean: object = sample[0] if isinstance(sample, tuple | list) else sample
    assert isinstance(y, Tensor)
    assert isinstance(mean, Tensor)
    latents = tuple(mean.shape[1:])
    if "moments" in chosen.values():
        latents = (latents[0] // 2, *latents[1:])
    return Parts(decoders[0], chosen, y.detach(), latents)


def _form_of(found: object) -> str | None:
    """How an encoder returns mu and s: two tensors of one shape, or one with both halves along its first axis."""
    if isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(v, Tensor) for v in found):
        return "pair" if found[0].shape == found[1].shape else None
    return "moments" if isinstance(found, Tensor) and found.ndim > 1 and found.shape[1] % 2 == 0 else None


@contextlib.contextmanager
def _replaced(model: nn.Module, parts: Parts, tensors: Tensors, received: list[Tensor]) -> Iterator[None]:
    def decode(z: Tensor, *args: object, **kwargs: object) -> Tensor:
        received.append(z)
        return tensors["y"].clone()

    def returns(form: str) -> Callable[..., object]:
        if form == "h":
            return lambda x, *args, **kwargs: x.flatten(1) if isinstance(x, Tensor) else x
        value = _values([form], tensors)[0]
        return lambda *args, **kwargs: value

    with _exchanged_parts(model, {p: returns(form) for p, form in parts.encoders.items()} | {parts.decoder: decode}):
        yield
