"""What to do about a collapse, in the words of the model: pixels, tokens, counts, conditional, autoregressive."""

import math

import pytest
import torch

import vaescope as vs
from vaescope.analysis.encoding import encode_sample
from vaescope.analysis.likelihood import find_other_sources

WORDS, LENGTH, LATENTS = 7, 12, 3


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


def collapsed(**known):
    return vs.adapters.from_callables(
        encode=lambda x: (torch.zeros(len(x), LATENTS), torch.ones(len(x), LATENTS)), latent_dim=LATENTS, **known
    )


def sentences(count=400):
    """Every token follows the one before it by a step of 1, mostly."""
    x = torch.randint(WORDS, (count, LENGTH), generator=noise())
    for k in range(1, LENGTH):
        follows = torch.rand(count, generator=noise(k)) < 0.8
        x[:, k] = torch.where(follows, (x[:, k - 1] + 1) % WORDS, x[:, k])
    return x


def reads_the_previous_token(x, z):
    """The exact log-probability of such sentences: a decoder that reads x and ignores z."""
    x = x.long()
    follows = (x[:, 1:] == (x[:, :-1] + 1) % WORDS).double()
    return -math.log(WORDS) + torch.log(0.8 * follows + 0.2 / WORDS).sum(1)


def each_token_on_its_own(x, z):
    table = torch.linspace(-1, 1, LENGTH * WORDS).reshape(LENGTH, WORDS).log_softmax(1)
    return table[torch.arange(LENGTH), x.long()].sum(1)


def advice(model, x, **given):
    found = vs.diagnose(model, x, progress=None, budget=5.0, **given).find("collapsed")
    assert found is not None
    return found.evidence, found.advice, found.line


def test_a_decoder_that_reads_x_has_to_be_weakened():
    evidence, what, line = advice(collapsed(log_likelihood=reads_the_previous_token), sentences())
    assert "does not need them" in evidence
    assert "word dropout" in what
    assert "free bits" in what
    assert "unknown" in line
    assert "pixel" not in evidence + what + line


def test_what_is_lost_by_exchanging_columns_is_the_information_between_them():
    """The closed form: both samples lose the information of every transition, which is between other columns then."""
    x = sentences(4000)
    sample = encode_sample(collapsed(log_likelihood=reads_the_previous_token), x, None, 4000)
    found = find_other_sources(sample, samples=4000)
    steps = torch.log(torch.tensor([0.8 + 0.2 / WORDS, 0.2 / WORDS]))
    own = (0.8 + 0.2 / WORDS) * steps[0] + (0.2 - 0.2 / WORDS) * steps[1]
    mixed = 1 / WORDS * steps[0] + (1 - 1 / WORDS) * steps[1]
    assert found.lost == pytest.approx(float(LENGTH - 1) * float(own - mixed), abs=4 * found.stderr)


def test_a_product_over_columns_loses_nothing():
    sample = encode_sample(collapsed(log_likelihood=each_token_on_its_own), sentences(), None, 400)
    found = find_other_sources(sample)
    assert abs(found.lost) < 1e-4
    assert not found.links_columns
    _, what, line = advice(collapsed(log_likelihood=each_token_on_its_own), sentences())
    assert "sum over them: a mean over n tokens" in what
    assert "precision" not in what
    assert "word dropout" not in what
    assert "pixel" not in what + line


def test_counts_whose_likelihood_depends_on_their_total_are_no_sentences():
    depth = torch.linspace(0.2, 4, 400)[:, None]
    x = torch.poisson(depth * torch.linspace(0.1, 1.5, 20), generator=noise())

    def multinomial(x, z):
        return torch.lgamma(x.sum(1) + 1) - torch.lgamma(x + 1).sum(1) - x.sum(1) * math.log(20)

    model = collapsed(log_likelihood=multinomial)
    assert find_other_sources(encode_sample(model, x, None, 400)).lost > 1
    _, what, line = advice(model, x)
    assert "mean over n columns" in what
    assert "word dropout" not in what
    assert "pixel" not in what + line


@pytest.mark.parametrize(("share", "contains"), [(0.95, True), (0.1, False)])
def test_a_condition_that_contains_x(share, contains):
    signal = torch.randn(500, 4, generator=noise())
    x = share**0.5 * signal + (1 - share) ** 0.5 * torch.randn(500, 4, generator=noise(1))
    model = vs.adapters.from_callables(
        encode=lambda x, y: (torch.zeros(len(x), LATENTS), torch.ones(len(x), LATENTS)),
        decode=lambda z, y: share**0.5 * y,
        latent_dim=LATENTS,
        precision=1 / max(1 - share, 0.01),
    )
    evidence, what, _ = advice(model, x, auxiliary=signal)
    assert ("The auxiliary input alone determines 9" in evidence) is contains
    assert ("take that out of it" in what) is contains
    assert "auxiliary input" in what


@pytest.mark.parametrize(
    ("known", "has", "has_not"),
    [
        ({"precision": 1.0}, "raise the precision", "word dropout"),
        ({"likelihood": "bernoulli"}, "no precision to raise", "raise the precision"),
        ({"likelihood": "bernoulli", "image_shape": (1, 4, 4)}, "pixels", "columns"),
    ],
)
def test_named_likelihoods(known, has, has_not):
    x = (torch.rand(300, 16, generator=noise()) < 0.5).float()
    _, what, line = advice(collapsed(decode=lambda z: torch.full((len(z), 16), 0.5).to(z), **known), x)
    assert has in what
    assert has_not not in what + line
