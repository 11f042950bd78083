"""Stage contract, and errors by policy, seeds, measuring, sample origins."""
