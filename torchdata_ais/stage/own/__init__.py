"""DataPipes of our own, for a torch that has none: their base class, torch's stages that chains use, the graph.

They do what torch's do, in the same order from the same seeds. `stage.datapipes` takes torch's where there are some.
"""
