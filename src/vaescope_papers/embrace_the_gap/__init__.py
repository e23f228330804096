"""*Embrace the Gap: VAEs Perform Independent Mechanism Analysis* (Reizinger et al., NeurIPS 2022).

| figure or table | experiment | file |
|---|---|---|
| Fig. 2 (self-consistency), Tab. 1 | self-consistency | self_consistency.py |
| Fig. 2 right (what the trained rate depends on) | encoder-rate | encoder_rate.py |
| Fig. 3 left (Möbius mixings over the precision), Tab. 4 | moebius-precision | moebius_precision.py |
| Fig. 3 right (Möbius mixings and linear maps), Tab. 4 | moebius-linear-map | moebius_linear_map.py |
| Fig. 4, Fig. 5 of the appendix (ELBO and IMA likelihood), Tabs. 2 and 3 | elbo-gap | elbo_gap.py |
| Fig. 5 (sprites), Tab. 5 | sprites | sprites.py |
| appendix 6.3 (β and the precision) | beta-precision | beta_precision.py |
| appendix 10.1 (linear VAEs) | linear-vae | linear_vae.py |
| L_IMA (flows with an explicit regulariser beside VAEs) | ima-flow | ima_flow.py |
| §6 (conjectures about the posterior's covariance) | covariance-structure | covariance_structure.py |
| the title (recovery without diagonal posteriors) | diagonal-posterior | diagonal_posterior.py |

`shared.py` has what several experiments use, `theorems.py` the propositions that need no training, and
`published.toml` the published numbers.
"""

from vaescope_papers.catalogue import ExperimentInfo

PAPER = "Reizinger et al. 2022"
EXPERIMENTS = {
    name: ExperimentInfo(name, f"embrace_the_gap.{name.replace('-', '_')}", title, source)
    for name, title, source in (
        (
            "beta-precision",
            "A β-VAE is a VAE with another decoder precision",
            f"{PAPER}, appendix 6.3",
        ),
        (
            "linear-vae",
            "Linear VAEs: the gap in closed form, and the principal axes that it selects",
            f"{PAPER}, appendix 10.1, Prop. 8 and Corollary 1",
        ),
        (
            "self-consistency",
            "The encoder inverts the decoder as the decoder's noise vanishes",
            f"{PAPER}, §4.1 and Fig. 2; settings of Tab. 1 in the appendix",
        ),
        (
            "encoder-rate",
            "Trained mean encodings converge more slowly than the best ones: what the rate depends on",
            f"{PAPER}, §4.1 and Fig. 2 right",
        ),
        (
            "elbo-gap",
            "ELBO* converges to the IMA-regularised likelihood, not to the likelihood",
            f"{PAPER}, §4.2, Fig. 4 and Fig. 5 of the appendix; Tabs. 2 and 3",
        ),
        (
            "moebius-precision",
            "Recovery of the sources of a conformal mixing, and the decoder precision",
            f"{PAPER}, §4.3 and Fig. 3 left; settings of Tab. 4 in the appendix",
        ),
        (
            "moebius-linear-map",
            "The farther a mixing is from the IMA class, the less well a VAE recovers its sources",
            f"{PAPER}, §4.3 and Fig. 3 right; settings of Tab. 4 in the appendix",
        ),
        (
            "sprites",
            "Sprites: recovery of position, size and colour, and the IMA contrast, during training",
            f"{PAPER}, §4.3 and Fig. 5; settings of Tab. 5 in the appendix",
        ),
        (
            "covariance-structure",
            "How the posterior's covariance family shapes the decoder",
            f"Conjectures in {PAPER}, §6; no published values",
        ),
        (
            "diagonal-posterior",
            "Does recovery of the sources need the diagonal posterior?",
            f"{PAPER}, title and §4.3; no published values",
        ),
        (
            "ima-flow",
            "Flows with an explicit IMA regulariser beside VAEs, which have it implicitly",
            f"{PAPER}, Theorem 1 and L_IMA; no published values",
        ),
    )
}
