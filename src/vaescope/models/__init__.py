"""Networks and variational autoencoders, for stacks of members."""

from vaescope.models.architectures import ARCHITECTURES as ARCHITECTURES
from vaescope.models.architectures import ConvNetworks
from vaescope.models.auxiliary import AuxiliarySettings as AuxiliarySettings
from vaescope.models.member import Member
from vaescope.models.member import TrainingSummary as TrainingSummary
from vaescope.models.mlp import MLPNetworks
from vaescope.models.networks import Terms as Terms
from vaescope.models.vae import VAE
from vaescope.models.vae import FixedMaps as FixedMaps

__all__ = ["VAE", "ConvNetworks", "MLPNetworks", "Member"]
