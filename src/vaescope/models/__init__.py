"""Networks and variational autoencoders, for stacks of members."""

from vaescope.models.member import Member
from vaescope.models.mlp import MLP
from vaescope.models.vae import VAE, Terms

__all__ = ["MLP", "VAE", "Member", "Terms"]
