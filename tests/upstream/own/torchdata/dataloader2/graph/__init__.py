from torchdata_ais.dataloader2.graph import (
    DataPipe,
    DataPipeGraph,
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    set_datapipes_seed,
    set_graph_random_seed,
    traverse_dps,
)
