to_graph = None  # draws with graphviz; `torchdata_ais.draw` is ours
