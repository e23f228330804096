"""What several products measure of a model and data: posteriors, derivatives, geometry, ELBO, gap."""
