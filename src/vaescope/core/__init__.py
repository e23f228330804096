"""Errors, checks of user input, containers, plain data, seeds: what everything else stands on."""
