pytest_plugins = ["torchdata_ais.pytest_plugin"]

# Programs that tests run in interpreters of their own: importing them for their doctests would run them here.
collect_ignore_glob = ["*/*_program.py"]
