"""Claims and report of polarised-regime on planted results."""

from dataclasses import replace

import pytest
import torch

from tests.papers.planted import REFUTED, UNDECIDED, failing, finished, judge, unconverged
from tests.papers.report_checks import check_incomplete_results, report_parts, stored_and_read
from vaescope import regime
from vaescope.adapters import from_callables
from vaescope.analysis.encoding import encode
from vaescope_papers.polarised_regime.polarised_regime import (
    CLAIMED,
    MIXED_STATEMENT,
    MODELS,
    PANELS,
    VARIANCE_RULE,
    Accuracy,
    Distance,
    Histogram,
    PerLatent,
    PolarisedRegimeExperiment,
    RegimeCurve,
    RegimeMeasurement,
    StatementRow,
    Truncation,
    _optimal_ratios,
)


class Experiment(PolarisedRegimeExperiment):
    """With two values of β, as in the paper profile."""

    quick = replace(PolarisedRegimeExperiment.quick, betas=(1.0, 4.0), epochs=18)


EXPERIMENT = Experiment()
ABOUT = [(name, model) for model in MODELS for name in CLAIMED]
ABOUT.remove(("Proposition 2 (ii)", "ivae-mean"))  # its prior mean is learned
EPOCHS = 18
SETTLED = RegimeCurve((2.0,) * EPOCHS, (0.0,) * EPOCHS, {name: (0.01,) * EPOCHS for name in CLAIMED})
NO_LATENT = StatementRow("no such latent", 0.1, None)


def histograms():
    return {name: Histogram((0.0, 1.0, 2.0), {quantity: (3.0, 1.0) for quantity in PANELS[name]}) for name in PANELS}


def per_latent(latents, **change):
    """Two active latents, the others passive."""
    passive = latents - 2
    good = {
        "kind": ("active",) * 2 + ("passive",) * passive,
        "kl": (2.0, 1.5) + (0.01,) * passive,
        "variance_ratio": (0.01, 0.02) + (0.99,) * passive,
        "optimal_variance_ratio": (0.01, 0.02) + (0.95,) * passive,
        "effect": (0.5,) * 2 + (1e-4,) * passive,
        "prior_variance": (0.05,) * latents,
        "baseline_rules": {VARIANCE_RULE: ("active",) * latents},
    }
    return PerLatent(**good | change)


def measurement(latents, **change):
    rows = {name: StatementRow("holds", 0.1, Distance(0.01, 0.0, 0.02)) for name in CLAIMED}
    good = {
        "per_latent": per_latent(latents),
        "boundary": 0,
        "collapse": "none",
        "truncation": Truncation(2, 2, (3.0, 2.0) + (1.0,) * (latents - 1), (-3.0, -2.0) + (-1.0,) * (latents - 1)),
        "statements": rows | {MIXED_STATEMENT: NO_LATENT},
        "active_histograms": histograms(),
        "passive_histograms": histograms(),
        "mean_accuracy": Accuracy(0.6, 0.6, 0.3),
        "sampled_accuracy": Accuracy(0.6, 0.6, 0.3),
        "curve": SETTLED,
    }
    return RegimeMeasurement(**good | change)


def planted():
    """Members that obey every statement."""
    return [finished(cell, measurement(cell.latents)) for cell in EXPERIMENT.cells(EXPERIMENT.quick)]


def changed(results, change, **where):
    """Results with other measurements in the cells that match; `change` is a function of the number of latents."""
    matching = [all(getattr(r.cell, name) == value for name, value in where.items()) for r in results]
    assert any(matching)
    return [
        replace(r, measured=lasting(replace(r.measured, **change(r.cell.latents)))) if match else r
        for r, match in zip(results, matching, strict=True)
    ]


def still_training(results):
    """The same members, with a regime that became what it is in the last epoch only."""
    mixed, active = (0.0,) * (EPOCHS - 1) + (1.0,), (2.0,) * (EPOCHS - 1) + (3.0,)
    curves = [replace(r.measured.curve, active=active, mixed=mixed, distances=SETTLED.distances) for r in results]
    pairs = zip(results, curves, strict=True)
    return unconverged([replace(r, measured=replace(r.measured, curve=curve)) for r, curve in pairs])


def lasting(measured):
    """With curves that have had their last value all the time."""
    distances = {n: row.distance.value if row.distance else 0.0 for n, row in measured.statements.items()}
    curves = {n: (value,) * EPOCHS for n, value in distances.items() if n in CLAIMED}
    counts = ((float(measured.count(kind)),) * EPOCHS for kind in ("active", "mixed"))
    return replace(measured, curve=RegimeCurve(*counts, curves))


def with_statement(results, index, name, low, high):
    own = results[index]
    row = replace(own.measured.statements[name], distance=Distance(0.5, low, high))
    measured = lasting(replace(own.measured, statements=own.measured.statements | {name: row}))
    return [*results[:index], replace(own, measured=measured), *results[index + 1 :]]


# statements -----------------------------------------------------------------------------------


def test_claims_hold():
    assert failing(EXPERIMENT, planted()) == set()
    assert failing(EXPERIMENT, still_training(planted())) == set()


@pytest.mark.parametrize("index", range(len(ABOUT)))
@pytest.mark.parametrize(("low", "verdict"), [(0.4, REFUTED), (0.0, UNDECIDED)])
def test_one_member_decides_a_statement(index, low, verdict):
    name, model = ABOUT[index]
    results = planted()
    place = next(i for i, r in enumerate(results) if r.cell.model == model)
    results = with_statement(results, place, name, low, 0.6)
    assert failing(EXPERIMENT, results, verdict) == {index}
    claim = judge(EXPERIMENT, results)[index]
    assert claim.value == 0.5
    assert f"{results[place].cell.title}, seed 0: 0.5 ({low:g} to 0.6)" in claim.reason
    assert claim.sentence.startswith(MODELS[model])


def test_a_statement_is_refuted_by_contradictions_that_last():
    results = with_statement(planted(), 0, "Theorem 1", 0.4, 0.6)
    assert str(judge(EXPERIMENT, unconverged(results))[0].verdict) == REFUTED  # the ELBO alone does not matter
    claim = judge(EXPERIMENT, still_training(results))[0]
    assert str(claim.verdict) == UNDECIDED
    assert claim.reason == "1 member contradicts the statement at the end, but not after every late epoch."


@pytest.mark.parametrize(("late", "verdict"), [(0.11, REFUTED), (0.1, UNDECIDED)])
def test_a_contradiction_may_vary_as_long_as_it_lasts(late, verdict):
    (own, *others) = with_statement(planted(), 0, "Theorem 1", 0.4, 0.6)
    curve = replace(own.measured.curve, distances={"Theorem 1": (0.0,) * 12 + (0.5, 0.2, late, 0.9, 0.3, 0.5)})
    results = [replace(own, measured=replace(own.measured, curve=curve)), *others]
    assert str(judge(EXPERIMENT, results)[0].verdict) == verdict


def test_runs_of_few_epochs_refute_nothing():
    results = with_statement(planted(), 0, "Theorem 1", 0.4, 0.6)

    class Short(Experiment):
        quick = replace(EXPERIMENT.quick, epochs=14)  # of which 4 are the last third

    claim = judge(Short(), results)[0]
    assert str(claim.verdict) == UNDECIDED
    assert claim.reason == "The last third of training has fewer than 5 epochs."


def test_the_last_third_counts_finishing_epochs():
    assert replace(EXPERIMENT.quick, epochs=54, finishing_epochs=27).late_epochs == 27


def test_a_statement_about_latents_that_no_member_has_is_undecided():
    name = "Proposition 1 (ii)"
    results = [
        replace(r, measured=replace(r.measured, statements=r.measured.statements | {name: NO_LATENT}))
        for r in planted()
    ]
    claim = judge(EXPERIMENT, results)[ABOUT.index((name, "ivae"))]
    assert str(claim.verdict) == UNDECIDED
    assert claim.reason == "No member has latents of this kind."


def test_tolerances_are_those_of_verify():
    q = regime.planted.posteriors(["active", "passive", "mixed"])
    found = regime.verify(q.mean, q.variance).statements
    assert set(found) == {*CLAIMED, MIXED_STATEMENT}
    claims = EXPERIMENT.claims(EXPERIMENT.quick)[: len(ABOUT)]
    assert [spec.criterion.tolerance for spec in claims] == [found[name].tolerance for name, _ in ABOUT]


# other claims ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "change", "where", "if_unconverged"),
    [
        (0, lambda n: {"per_latent": per_latent(n, kind=("mixed",) * n)}, {"model": "ivae-mean"}, UNDECIDED),
        (
            1,
            lambda n: {"per_latent": per_latent(n, kind=("active",) * 3 + ("passive",) * (n - 3))},
            {"model": "vae", "latents": 20},
            UNDECIDED,
        ),
        (
            2,
            lambda n: {"per_latent": per_latent(n, kind=("active",) * 3 + ("passive",) * (n - 3))},
            {"model": "ivae", "beta": 4.0},
            UNDECIDED,
        ),
        (3, lambda n: {"mean_accuracy": Accuracy(0.6, 0.5, 0.3)}, {"model": "vae", "latents": 20}, REFUTED),
        (4, lambda n: {"mean_accuracy": Accuracy(0.6, 0.5, 0.3)}, {"model": "ivae", "latents": 20}, REFUTED),
        (5, lambda n: {"sampled_accuracy": Accuracy(0.6, 0.5, 0.3)}, {"model": "vae", "latents": 20}, REFUTED),
        (
            6,
            lambda n: {"per_latent": per_latent(n, effect=(0.5, 0.5, -0.05) + (0.0,) * (n - 3))},
            {"model": "vae", "beta": 4.0},
            UNDECIDED,
        ),
        (
            7,
            lambda n: {"per_latent": per_latent(n, baseline_rules={VARIANCE_RULE: ("passive",) * n})},
            {"model": "ivae"},
            UNDECIDED,
        ),
        (8, lambda n: {"per_latent": per_latent(n, prior_variance=(0.9,) * n)}, {"model": "ivae"}, UNDECIDED),
    ],
)
def test_claims_are_refuted(broken, change, where, if_unconverged):
    results = changed(planted(), change, **where)
    assert failing(EXPERIMENT, results) == {len(ABOUT) + broken}
    assert failing(EXPERIMENT, still_training(results), if_unconverged) == {len(ABOUT) + broken}


def test_a_model_that_uses_all_its_latents_says_nothing_about_wider_ones():
    """Ten active latents of ten, and twelve of twenty: the narrow model may have needed more."""
    used = lambda count: lambda n: {"per_latent": per_latent(n, kind=("active",) * count + ("passive",) * (n - count))}  # noqa: E731
    results = changed(changed(planted(), used(10), latents=10), used(12), latents=20)
    claim = judge(EXPERIMENT, results)[len(ABOUT) + 1]
    assert str(claim.verdict) == UNDECIDED
    assert claim.note == ("Active latents: VAE 10 of 10, 12 of 20; iVAE, prior mean 0 10 of 10, 12 of 20.")


@pytest.mark.parametrize(
    ("cut", "full", "sentence"),
    [
        (-0.5, -0.5, "cut to its 10 most used latents, has an ELBO of -0.5 nats against -1 of VAE, 10 latents"),
        (
            -2.0,
            -2.0,
            "has an ELBO of -2 nats against -1 of VAE, 10 latents: its further active latents do not raise the ELBO",
        ),
        (-2.0, -0.5, "its further active latents raise the ELBO"),
    ],
)
def test_a_gain_of_active_latents_is_explained_by_elbos(cut, full, sentence):
    more = lambda n: {  # noqa: E731
        "per_latent": per_latent(n, kind=("active",) * 3 + ("passive",) * (n - 3)),
        "truncation": Truncation(3, 3, (1.0,) * (n + 1), (-9.0,) * 10 + (cut,) * (n - 10) + (full,)),
    }
    claim = judge(EXPERIMENT, changed(planted(), more, model="vae", latents=20))[len(ABOUT) + 1]
    assert str(claim.verdict) == REFUTED
    assert sentence in claim.note


def test_one_value_of_beta_makes_no_claim_about_it():
    one, two = (PolarisedRegimeExperiment().claims(replace(EXPERIMENT.quick, betas=b)) for b in ((1.0,), (1.0, 4.0)))
    assert len(one) == len(two) - 1


def test_seeds_of_compared_models():
    settings = replace(EXPERIMENT.laptop, seeds=3)
    cells = EXPERIMENT.cells(settings)
    assert len(cells) == 3 * 3 + 3 * 2
    assert len(EXPERIMENT.cells(replace(settings, compared_seeds=None))) == 3 * 3 + 3 * 2 * 3


def test_the_rule_on_variances_is_one_of_the_baselines():
    q = regime.planted.posteriors(["active", "passive"])
    assert VARIANCE_RULE in regime.classify(q.mean, q.variance).baseline_rules.verdicts()


def test_notes_count_boundaries_and_name_leaks():
    claims = judge(EXPERIMENT, changed(planted(), lambda n: {"boundary": 2}, latents=20))
    notes = [claim.note for claim in claims]
    assert any(note.startswith("4 of 90 latents are close to a boundary") for note in notes)
    assert any("On passive latents alone the accuracy is 0.3 on means of VAEs" in note for note in notes)


# report ---------------------------------------------------------------------------------------


def test_tables_and_figures():
    _, _, tables, figures, _ = report_parts(EXPERIMENT, planted())
    members, accuracies, statements, latents = (table.rows for table in tables)
    assert [row["active"] for row in members] == [2] * 7
    assert members[-1]["model"] == "iVAE, prior mean 0, 10 latents, β = 4"
    assert accuracies[0]["sampled codes: passive"] == 0.3
    assert statements[0]["T 1"] == "0.01 holds"
    assert statements[0]["T 2 (iii)"] == "no such latent"
    assert len(latents) == 30
    assert latents[0]["KL"] == 2.0
    assert len(figures) == 5


def test_reports_of_incomplete_results():
    results = planted()
    check_incomplete_results(EXPERIMENT, results)
    narrow = changed(results, lambda n: {"active_histograms": None, "passive_histograms": None}, model="vae")
    report_parts(EXPERIMENT, narrow)


def test_the_figures_show_the_first_seed_that_finished():
    results = [replace(r, cell=replace(r.cell, seed=3)) for r in planted()]
    assert len(report_parts(EXPERIMENT, results)[3]) == 5


def test_results_survive_a_file(tmp_path):
    results = changed(planted(), lambda n: {"active_histograms": None}, model="ivae")
    assert stored_and_read(EXPERIMENT, results, tmp_path) == results


def test_widths_of_passive_posteriors_are_compared_with_the_decoder():
    claims = [c for c in judge(EXPERIMENT, planted()) if c.source.endswith("Proposition 3 (i)")]
    for claim in claims:
        assert "are 0.99 of the prior's in the median. Optimal for the decoder would be 0.95" in claim.note
    assert len(claims) == len(MODELS)


def test_optimal_widths_are_those_of_a_linear_decoder_of_logits():
    """f(z) = sigmoid(a z): the information is w a² x̂ (1 - x̂), so the ratio is 1 / (1 + w a² / 4) at z = 0."""
    settings = replace(EXPERIMENT.quick, size=32)
    slope = torch.tensor([[1.0, 0.0]])
    member = from_callables(
        encode=lambda x: (torch.zeros(len(x), 2), torch.ones(len(x), 2)),
        decode=lambda z: torch.sigmoid(z @ slope.T.to(z)),
        latent_dim=2,
        likelihood="bernoulli",
    )
    encoded = encode(member, torch.zeros(8, 1))
    expected = torch.tensor([1 / (1 + 4 / 4), 1.0], dtype=torch.float64)
    torch.testing.assert_close(_optimal_ratios(member, encoded, settings), expected)
