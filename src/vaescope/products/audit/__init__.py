"""Which objective a loss function or a training step optimises."""
