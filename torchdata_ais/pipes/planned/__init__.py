"""Pipes that read by a plan."""
