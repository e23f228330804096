"""What a VAE will do on data, from the data alone: `vs.preflight`."""

from vaescope.forecast.analyse import preflight as preflight
from vaescope.forecast.result import Preflight as Preflight
