"""Sources of conversions: folders, tables, Hugging Face's folders, shards."""
