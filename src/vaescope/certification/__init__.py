"""Certify a trained VAE: is q(z|x) right, and does that hold for your data?"""

from vaescope.certification.certify import Certificate as Certificate
from vaescope.certification.certify import certify as certify
