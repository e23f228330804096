"""`vs.preflight`: what a VAE will do on data, from the data alone."""
