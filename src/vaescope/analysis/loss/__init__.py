"""Which objective a loss is: likelihood, weights, how the encoder's second output is read, faults."""
