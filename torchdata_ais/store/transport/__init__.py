"""Transport: one request, its retries, body and connection."""
