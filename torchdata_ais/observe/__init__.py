"""Looking at a pipe: drawings, what a run will do, what every stage did. It asks the stages and knows none."""
