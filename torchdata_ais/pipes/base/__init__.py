"""The contract of a stage, and what stages are made of: errors by policy, seeds, measuring, places held."""
