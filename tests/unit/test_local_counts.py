"""The embedded cluster counts connections and requests under way, and can be too busy for more."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from torchdata_ais.local import Busy, Delay, LocalCluster

pytestmark = pytest.mark.timeout(60)


def test_connections_and_requests_at_the_same_time_are_counted() -> None:
    with LocalCluster(targets=1) as cluster:
        cluster.client().bucket("b").create().object("o").get_writer().put_content(b"1")
        url = f"{cluster.target_urls[0]}/v1/objects/b/o?provider=ais"
        cluster.reset_stats()
        with requests.Session() as session:
            for _ in range(3):
                assert session.get(url, timeout=10).content == b"1"
        stats = cluster.stats()
        assert (stats.connections, stats.peak_requests) == (1, 1)
        cluster.faults.add(Delay(0.3))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: requests.get(url, timeout=10), range(4)))
        stats = cluster.stats()
        assert (stats.connections, stats.peak_requests) == (5, 4)
        cluster.faults.add(Busy(2, retry_after=1.5))
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: requests.get(url, timeout=10), range(6)))
        statuses = Counter(answer.status_code for answer in answers)
        assert statuses[200] >= 2
        assert statuses[429] == 6 - statuses[200] > 0
        assert {answer.headers.get("Retry-After") for answer in answers} == {None, "1.5"}
        cluster.faults.clear()
        assert requests.get(url, timeout=10).status_code == 200
        cluster.reset_stats()
        assert cluster.stats().connections == 0
