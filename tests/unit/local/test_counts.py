"""The embedded cluster counts connections and requests under way, and can be too busy for more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import requests
from helpers.waiting import until

from torchdata_ais.local import Busy, Delay, LocalCluster


def get(url: str) -> requests.Response:
    return requests.get(url, timeout=60)


def at_once(url: str, number: int) -> list[requests.Response]:
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(get, [url] * number))


def counted(cluster: LocalCluster, run: Callable[[], object]) -> tuple[int, int]:
    """Return connections, and requests under way at most, while `run` runs."""
    cluster.reset_stats()
    run()
    stats = cluster.stats()
    return stats.connections, stats.peak_requests


def test_connections_and_requests_at_the_same_time_are_counted() -> None:
    with LocalCluster(targets=1) as cluster:
        cluster.client().bucket("b").create().object("o").get_writer().put_content(b"1")
        url = f"{cluster.target_urls[0]}/v1/objects/b/o?provider=ais"

        def one_after_the_other() -> None:
            with requests.Session() as session:
                for _ in range(3):
                    assert session.get(url, timeout=60).content == b"1"

        # A busy machine may end the requests before late, or send these so late that they do not meet.
        until(lambda: counted(cluster, one_after_the_other) == (1, 1))
        cluster.faults.add(Delay(0.3))
        until(lambda: counted(cluster, lambda: at_once(url, 4)) == (4, 4))

        cluster.faults.add(Busy(2, retry_after=1.5))

        def some_are_refused() -> bool:
            answers = at_once(url, 6)
            statuses = Counter(answer.status_code for answer in answers)
            assert set(statuses) <= {200, 429}
            for answer in answers:
                assert answer.headers.get("Retry-After") == ("1.5" if answer.status_code == 429 else None)
            return statuses[200] >= 2 and statuses[429] > 0

        until(some_are_refused)
        cluster.faults.clear()
        until(lambda: get(url).status_code == 200)
        cluster.reset_stats()
        assert cluster.stats().connections == 0


def test_a_client_that_has_its_answer_is_not_counted_as_waiting_for_it() -> None:
    """Its next request may go over another connection at once."""
    with LocalCluster(targets=1) as cluster:
        cluster.client().bucket("b").create().object("o").get_writer().put_content(b"1")
        url = f"{cluster.target_urls[0]}/v1/objects/b/o?provider=ais"
        get(url)  # the last request of the client above has ended

        def one_after_the_other() -> None:
            for number in range(60):
                answer = requests.head(url, timeout=60) if number % 3 else get(url)
                assert answer.status_code == 200

        assert counted(cluster, one_after_the_other) == (60, 1)
