"""What a VAE will do on data, from the data alone: `vs.preflight`."""
