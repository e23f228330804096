"""*Why do Variational Autoencoders Really Promote Disentanglement?* (Bhowal et al., ICML 2024).

| figure or table | experiment | file |
|---|---|---|
| Tabs. 1 and 2 (local decoders), Eqs. 7 and 8 | local-nonlinearity | local_nonlinearity.py |
| Tabs. 4 to 6, Fig. 4, Theorems 1 (c) and 2 | orthogonality | orthogonality.py |
| Tab. 7, Fig. 5 (principal axes) | principal-axes | principal_axes.py |
| §1 (the argument, in one picture) | rotation | rotation.py |

`disentangling.py` trains the members that local-nonlinearity and orthogonality share. Files that end in `_results.py`
hold the typed rows, the published values and the tables, `_claims.py` the claims, `_figures.py` the figures; without
such files, `_results.py` holds claims and figures too.
"""

from vaescope_papers.catalogue import ExperimentInfo

PRINCIPAL_AXES = ExperimentInfo(
    name="principal-axes",
    module="why_vaes_disentangle.principal_axes",
    title="Which principal axes hold an image depends on the order in which they are counted",
    source="Bhowal et al. 2024, Tab. 7 and Fig. 5",
)
ROTATION = ExperimentInfo(
    name="rotation",
    module="why_vaes_disentangle.rotation",
    title="Rotating the latents changes the ELBO but not the likelihood",
    source="The argument of Reizinger et al. 2022 and Bhowal et al. 2024 (§1), in one picture",
)
LOCAL_NONLINEARITY = ExperimentInfo(
    name="local-nonlinearity",
    module="why_vaes_disentangle.local_nonlinearity",
    title="Locally, a decoder with one non-linearity fits better than a linear one",
    source="Bhowal et al. 2024, Eq. 8, Tabs. 1 and 2",
)
ORTHOGONALITY = ExperimentInfo(
    name="orthogonality",
    module="why_vaes_disentangle.orthogonality",
    title="Do decoders with orthogonal columns have disentangled codes?",
    source="Bhowal et al. 2024, Tabs. 4 to 6, Fig. 4, Theorems 1 (c) and 2",
)
