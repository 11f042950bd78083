from torchdata_ais.dataloader2.own.random import PhiloxEngine
