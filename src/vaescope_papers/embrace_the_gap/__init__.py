"""*Embrace the Gap: VAEs Perform Independent Mechanism Analysis* (Reizinger et al., NeurIPS 2022).

| figure or table | experiment | file |
|---|---|---|
| Fig. 2 (self-consistency), Tab. 1 | self-consistency | self_consistency.py |
| Fig. 3 left (Möbius mixings over the precision), Tab. 4 | moebius-precision | moebius_precision.py |
| Fig. 3 right (Möbius mixings and linear maps), Tab. 4 | moebius-linear-map | moebius_linear_map.py |
| Fig. 4, Fig. 5 of the appendix (ELBO and IMA likelihood), Tabs. 2 and 3 | elbo-gap | elbo_gap.py |
| Fig. 5 (sprites), Tab. 5 | sprites | sprites.py |
| appendix 6.3 (β and the precision) | beta-precision | beta_precision.py |
| appendix 10.1 (linear VAEs) | linear-vae | linear_vae.py |
| L_IMA (flows with an explicit regulariser beside VAEs) | ima-flow | ima_flow.py |
| §6 (conjectures about the posterior's covariance) | covariance-structure | covariance_structure.py |

`moebius.py` is shared by the Möbius experiments, `precision.py` by all that vary the decoder precision. Files that end
in `_results.py` turn results into claims, tables and figures.
"""

from vaescope_papers.catalogue import ExperimentInfo

PAPER = "Reizinger et al. 2022"

BETA_PRECISION = ExperimentInfo(
    name="beta-precision",
    module="embrace_the_gap.beta_precision",
    title="A β-VAE is a VAE with another decoder precision",
    source="Reizinger et al. 2022, appendix 6.3",
)
LINEAR_VAE = ExperimentInfo(
    name="linear-vae",
    module="embrace_the_gap.linear_vae",
    title="Linear VAEs: the gap in closed form, and the principal axes that it selects",
    source="Reizinger et al. 2022, appendix 10.1, Prop. 8 and Corollary 1",
)
SELF_CONSISTENCY = ExperimentInfo(
    name="self-consistency",
    module="embrace_the_gap.self_consistency",
    title="The encoder inverts the decoder as the decoder's noise vanishes",
    source="Reizinger et al. 2022, §4.1 and Fig. 2; settings of Tab. 1 in the appendix",
)
ELBO_GAP = ExperimentInfo(
    name="elbo-gap",
    module="embrace_the_gap.elbo_gap",
    title="ELBO* converges to the IMA-regularised likelihood, not to the likelihood",
    source="Reizinger et al. 2022, §4.2, Fig. 4 and Fig. 5 of the appendix; Tabs. 2 and 3",
)
MOEBIUS_PRECISION = ExperimentInfo(
    name="moebius-precision",
    module="embrace_the_gap.moebius_precision",
    title="The closer a VAE is to deterministic, the better it recovers the sources of a conformal mixing",
    source="Reizinger et al. 2022, §4.3 and Fig. 3 left; settings of Tab. 4 in the appendix",
)
MOEBIUS_LINEAR_MAP = ExperimentInfo(
    name="moebius-linear-map",
    module="embrace_the_gap.moebius_linear_map",
    title="The farther a mixing is from the IMA class, the less well a VAE recovers its sources",
    source="Reizinger et al. 2022, §4.3 and Fig. 3 right; settings of Tab. 4 in the appendix",
)
SPRITES = ExperimentInfo(
    name="sprites",
    module="embrace_the_gap.sprites",
    title="A VAE recovers position, size and colour of sprites while its IMA contrast falls",
    source="Reizinger et al. 2022, §4.3 and Fig. 5; settings of Tab. 5 in the appendix",
)
COVARIANCE_STRUCTURE = ExperimentInfo(
    name="covariance-structure",
    module="embrace_the_gap.covariance_structure",
    title="How the posterior's covariance family shapes the decoder",
    source="Conjectures in Reizinger et al. 2022, §6; no published values",
)
IMA_FLOW = ExperimentInfo(
    name="ima-flow",
    module="embrace_the_gap.ima_flow",
    title="Flows with an explicit IMA regulariser beside VAEs, which have it implicitly",
    source="Reizinger et al. 2022, Theorem 1 and L_IMA; no published values",
)
