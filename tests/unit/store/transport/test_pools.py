"""Pools of connections: one for each host, found again, and bounded in number."""

import gc
import weakref

import pytest

from torchdata_ais.store import StoreOptions
from torchdata_ais.store.transport.pools import pool_for


@pytest.mark.parametrize("proxy", [None, "http://proxy.invalid:3128"])
def test_each_host_has_a_pool_and_few_are_kept(proxy, monkeypatch):
    if proxy:
        monkeypatch.setenv("https_proxy", proxy)
    options = StoreOptions(pool_size=3)  # of no other test
    made = []
    for number in range(700):
        url = f"https://h{number}.invalid:443/v1/x"
        manager = pool_for(url, options)
        pool = manager.connection_from_url(url)
        assert pool is manager.connection_from_url(url)
        assert (pool.host, pool.port) == (f"h{number}.invalid", 443)
        made.append(weakref.ref(pool))
    assert manager.connection_from_url("https://h699.invalid:444/").port == 444
    assert manager.connection_from_url("http://h699.invalid/").scheme == "http"
    gc.collect()
    assert sum(one() is not None for one in made) <= 2 * 256
