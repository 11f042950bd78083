"""Objects: listing, reading, writing, cache and the AIStore SDK."""
