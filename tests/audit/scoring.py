"""An audit of a collected loss as a user would call it, and what differs from the loss's truth."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from torch import Tensor, nn

import vaescope as vs
from tests.audit.losses import Case, Recorded


def audited(case: Case) -> vs.Audit:
    """With x, a decoder's output and the number of latents, and the arguments by their names in the case."""
    tensors, inputs, loss = case.draw(seed=7), case.inputs, case.loss
    if isinstance(loss, nn.Module):
        loss = loss.double()
    for name, roles in inputs.submodules.items():
        setattr(loss, name, Recorded(*(tensors[role] for role in roles.split())))
    function, keywords = getattr(loss, inputs.method) if inputs.method else loss, dict(inputs.kwargs)
    if any(role in inputs.packs for role in inputs.roles):
        function, keywords = unpacked(case, function, tensors, keywords)
    latents = tensors["mu"].shape[1:]
    others = {role: tensors[role] for role in inputs.roles if role in tensors and role not in ("x", "y", "mu", "s")}
    return vs.audit(
        function,
        x=tensors["x"],
        y=tensors["y"],
        latent_dim=latents[0] if len(latents) == 1 else None,
        others=others if len(latents) == 1 and not inputs.packs else {**others, "z": tensors["z"]},
        keywords=keywords,
        total=inputs.total,
    )


def unpacked(
    case: Case, function: Callable[..., object], tensors: Mapping[str, Tensor], keywords: dict[str, object]
) -> tuple[Callable[..., object], dict[str, object]]:
    """A function of tensors around one of objects that hold tensors, as the message of `vs.audit` says to write it."""
    packs, roles = case.inputs.packs, case.inputs.roles
    parameters = inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters
    keywords = {p.name: p.default for p in parameters.values() if p.default is not p.empty} | keywords

    def call(given: dict[str, Tensor], **changed: object) -> object:
        return function(*(packs[role](given) if role in packs else given[role] for role in roles), **changed)

    def without_sample(x: Tensor, y: Tensor, mu: Tensor, s: Tensor, **changed: object) -> object:
        return call({"x": x, "y": y, "mu": mu, "s": s}, **changed) if function else None

    def with_sample(x: Tensor, y: Tensor, mu: Tensor, s: Tensor, z: Tensor, **changed: object) -> object:
        return call({"x": x, "y": y, "mu": mu, "s": s, "z": z}, **changed) if function else None

    try:
        call({role: tensors[role] for role in ("x", "y", "mu", "s")}, **keywords)
    except KeyError:
        return with_sample, keywords
    return without_sample, keywords


def same(found: float | None, expected: float, tolerance: float = 1e-6) -> bool:
    return found is not None and abs(found - expected) <= tolerance * max(abs(found), abs(expected))


def differences(case: Case, found: vs.Audit) -> list[str]:
    """Everything in which an audit differs from the truth; empty if it is exact."""
    truth = case.truth
    w_r, w_k = truth.weights(case.inputs)
    checks = {
        "likelihood": found.likelihood == truth.likelihood,
        "output": truth.likelihood in ("mixed", "none") or found.output == truth.output,
        "scale": "kl_absent" in truth.faults or found.scale == truth.scale,
        "reconstruction": same(found.reconstruction.value, w_r),
        "kl": same(found.kl.value, w_k),
        "beta_over_precision": not truth.beta_over_precision
        or same(found.beta_over_precision, truth.beta_over_precision),
        "beta": not truth.beta or same(found.beta, truth.beta),
        "parameter": truth.likelihood not in ("huber", "log_cosh")
        or same(found.likelihood_parameter, truth.likelihood_parameter, 1e-5),
        "terms": set(found.terms) == set(truth.terms),
        "missed": not set(truth.faults) - set(found.faults),
        "false alarm": not false_alarms(case, found),
        "ineffective": found.ineffective == truth.ineffective,
        "recognised": found.recognised,
    }
    only_kl = {"output", "reconstruction", "recognised"} if truth.likelihood == "other" else set()
    wrong = [name for name, right in checks.items() if not right and name not in only_kl]
    for term, expected in truth.terms.items() if checks["terms"] else ():
        for key, value in expected.items():
            number = eval(value, {"N": case.inputs.samples}) if key == "weight" and isinstance(value, str) else value
            got = found.terms[term].get(key)
            right = got == number if isinstance(number, str) else isinstance(got, float) and same(got, number, 1e-5)
            wrong += [] if right else [f"{term} {key}"]
    return wrong


def false_alarms(case: Case, found: vs.Audit) -> set[str]:
    """Faults that the loss does not have, and warnings about an ELBO."""
    named = set(found.faults) - set(case.truth.faults) - set(case.truth.arguable)
    flagged = case.kind == "elbo" and found.worst in ("warning", "error")
    return named | ({f.code for f in found.findings if f.severity != "note"} if flagged else set())
