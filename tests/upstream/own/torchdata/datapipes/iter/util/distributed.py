from torchdata_ais.errors import StallError as PrefetchTimeoutError
