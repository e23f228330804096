"""The experiment end to end at toy size, and its claims on planted rows."""

import json
from dataclasses import replace

import pytest

from vaescope.papers.embrace_the_gap.self_consistency import EXACT_PRECISIONS, EXPERIMENT, SelfConsistency
from vaescope.papers.run import reproduce, write_index
from vaescope.training import NoProgress

TOY = replace(EXPERIMENT.profiles["quick"], seeds=2, samples=400, epochs=3, exact_points=4, precisions=(1e1, 1e2, 1e3))


class Toy(SelfConsistency):
    profiles = {"quick": TOY, "paper": TOY}  # noqa: RUF012


class NoTraining(NoProgress):
    def begin(self, members, epochs):
        raise AssertionError("trained again")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    reproduce(Toy(), profile="quick", out=out, monitor=NoProgress())
    return out


def rows(out, seeds=2):
    from vaescope.runs.files import read_rows

    return read_rows(out / "self-consistency" / "results.parquet")


def test_the_run_folder_is_complete(folder):
    run = folder / "self-consistency"
    for name in ("config.json", "results.parquet", "history.parquet", "claims.json", "report.html"):
        assert (run / name).stat().st_size > 0, name
    assert len(list((run / "weights").glob("*.safetensors"))) == 6
    svg = (run / "figures" / "self_consistency.svg").read_text()
    assert svg.startswith("<?xml")
    page = (run / "report.html").read_text()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    claims = json.loads((run / "claims.json").read_text())
    assert {"sentence", "source", "demand", "value", "holds", "measured"} <= set(claims[0])


def test_rows_have_the_promised_columns(folder):
    table = rows(folder)
    assert len(table) == 6
    promised = {
        "precision",
        "seed",
        "status",
        "epochs",
        "elbo",
        "reconstruction_mse",
        "ima_contrast",
        "mcc_mean",
        "mcc_sampled",
    }
    promised |= {f"{name}_variance_{k}" for name in ("posterior", "predicted") for k in range(3)}
    for row in table:
        assert promised <= set(row)
        assert row["status"] == "finished"
        assert row["epochs"] == 3
        assert 0 < row["posterior_variance_0"] < 3
        assert 0 <= row["mcc_mean"] <= 1


def test_a_second_run_trains_nothing(folder):
    before = rows(folder)
    reproduce(Toy(), profile="quick", out=folder, monitor=NoTraining())
    assert rows(folder) == before


def test_more_seeds_train_only_the_new_members_and_leave_the_old(folder):
    before = rows(folder)
    counted = []

    class Count(NoProgress):
        def begin(self, members, epochs):
            counted.append(members)

    reproduce(Toy(), profile="quick", out=folder, monitor=Count(), seeds=3)
    assert counted == [3]
    after = rows(folder)
    assert after[:6] == before
    assert len(after) == 9


def test_lost_measurements_come_back_from_the_weights(folder):
    (folder / "self-consistency" / "results.parquet").rename(folder / "aside")
    reproduce(Toy(), profile="quick", out=folder, monitor=NoTraining())
    assert sorted(map(str, rows(folder))) == sorted(str(r) for r in rows_of(folder / "aside") if r["seed"] < 2)


def rows_of(path):
    from vaescope.runs.files import read_rows

    return read_rows(path)


def test_the_index_knows_what_ran(folder):
    text = write_index(folder, "quick").read_text()
    assert "self-consistency/report.html" in text
    assert "claims hold" in text


def planted(power=-1.0, ratio=1.0, error_power=-1.0, limit_power=-1.0, amortisation=1e-6):
    limit = [p**limit_power for p in EXACT_PRECISIONS]
    return [
        {"precision": p, "seed": s, "status": "finished", "reconstruction_mse": p**error_power}
        | {"family_gap": 0.01, "amortisation_gap": amortisation * p}
        | ({"limit_gap_error": limit, "limit_variance_error": limit, "limit_variance": limit} if p == 1e5 else {})
        | {f"posterior_variance_{k}": (2 + k) * ratio * p**power for k in range(3)}
        | {f"predicted_variance_{k}": (2 + k) * p**power for k in range(3)}
        for p in (1e1, 1e2, 1e3, 1e4, 1e5)
        for s in range(3)
    ]


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({}, set()),
        ({"power": -0.8}, {0}),
        ({"ratio": 1.15}, {1}),
        ({"error_power": 0.1}, {2}),
        ({"limit_power": -0.9}, {3, 4, 5}),
        ({"amortisation": -1.0}, {6}),
    ],
)
def test_claims_can_fail(changed, broken):
    claims = EXPERIMENT.claims(planted(**changed), EXPERIMENT.profiles["quick"])
    assert [claim.holds for claim in claims] == [i not in broken for i in range(7)]


def test_a_diverged_member_is_named_on_the_page_and_left_out(tmp_path):
    class Fragile(Toy):
        profiles = {"quick": replace(TOY, seeds=1, precisions=(1e2, 1e3, 1e38))}  # noqa: RUF012
        profiles["paper"] = profiles["quick"]

    reproduce(Fragile(), profile="quick", out=tmp_path, monitor=NoProgress())
    table = {row["precision"]: row for row in rows(tmp_path)}
    assert table[1e38]["status"] == "diverged"
    assert table[1e38]["diverged_at_step"] == 1
    assert table[1e38]["posterior_variance_0"] is None
    page = (tmp_path / "self-consistency" / "report.html").read_text()
    assert "precision 1e+38 and seed 0 diverged at step 1" in page
