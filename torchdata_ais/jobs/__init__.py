"""Jobs of the cluster: transforms (ETL) and distributed sort (dSort)."""
