"""Figures and pages."""
