"""`vs.certify`: posteriors checked on simulated data."""
