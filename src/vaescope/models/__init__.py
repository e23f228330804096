"""Networks and variational autoencoders, for stacks of members."""

from vaescope.models.architectures import ARCHITECTURES, ConvNetworks
from vaescope.models.auxiliary import AuxiliarySettings
from vaescope.models.member import Member
from vaescope.models.mlp import MLPNetworks
from vaescope.models.summary import TrainingSummary
from vaescope.models.terms import Terms
from vaescope.models.vae import VAE, FixedMaps

__all__ = [
    "ARCHITECTURES",
    "VAE",
    "AuxiliarySettings",
    "ConvNetworks",
    "FixedMaps",
    "MLPNetworks",
    "Member",
    "Terms",
    "TrainingSummary",
]
