"""Observation of pipes: drawings, forecasts, statistics and diagnosis."""
