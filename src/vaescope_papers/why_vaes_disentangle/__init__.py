"""*Why do Variational Autoencoders Really Promote Disentanglement?* (Bhowal et al., ICML 2024).

| figure or table | experiment | file |
|---|---|---|
| Tabs. 1 and 2 (local decoders), Eqs. 7 and 8 | local-nonlinearity | local_nonlinearity.py |
| Tabs. 4 to 6, Fig. 4, Theorems 1 (c) and 2 | orthogonality | orthogonality.py |
| Tab. 7, Fig. 5 (principal axes) | principal-axes | principal_axes.py |
| §1 (the argument, in one picture) | rotation | rotation.py |

`disentangling.py` trains the members that local-nonlinearity and orthogonality share. `theorems.py` computes the lemmas
and theorems that need no training. `published.toml` contains the published numbers.
"""

from vaescope_papers.catalogue import ExperimentInfo

PAPER = "Bhowal et al. 2024"
EXPERIMENTS = {
    name: ExperimentInfo(name, f"why_vaes_disentangle.{name.replace('-', '_')}", title, source)
    for name, title, source in (
        (
            "principal-axes",
            "Which principal axes hold an image depends on the order in which they are counted",
            f"{PAPER}, Tab. 7 and Fig. 5",
        ),
        (
            "rotation",
            "Rotating the latents changes the ELBO but not the likelihood",
            "The argument of Reizinger et al. 2022 and Bhowal et al. 2024 (§1), in one picture",
        ),
        (
            "local-nonlinearity",
            "Locally, a decoder with one non-linearity fits better than a linear one",
            f"{PAPER}, Eq. 8, Tabs. 1 and 2",
        ),
        (
            "orthogonality",
            "Do decoders with orthogonal columns have disentangled codes?",
            f"{PAPER}, Tabs. 4 to 6, Fig. 4, Theorems 1 (c) and 2",
        ),
    )
}
