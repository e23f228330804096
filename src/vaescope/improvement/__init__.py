"""Advice carried out: interventions on a trained model, each measured on held-out samples."""
