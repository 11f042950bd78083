"""torchdata's DataLoader2 and the reading service for it: the only room that imports torchdata."""
