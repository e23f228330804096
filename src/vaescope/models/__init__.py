"""Networks and variational autoencoders, for stacks of members."""

from vaescope.models.conv_vae import ConvVAE
from vaescope.models.member import Member
from vaescope.models.mlp import MLP
from vaescope.models.vae import VAE, Terms

__all__ = ["MLP", "VAE", "ConvVAE", "Member", "Terms"]
