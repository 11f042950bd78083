"""Diagnosis of slow and stalled jobs."""
