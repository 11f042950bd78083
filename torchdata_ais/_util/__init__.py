"""Formatting, files, processes, argument checks, versions and devices."""
