"""What the ranks of a job agree on: who they are, what they read, who reads which shard, and that all still live."""
