pytest_plugins = ["torchdata_ais.pytest_plugin"]
