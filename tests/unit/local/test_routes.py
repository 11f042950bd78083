"""What AIStore knows and the embedded cluster does not serve is 501 by name; 400 is for what AIStore refuses, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from torchdata_ais.local import LocalCluster

# From docs/http_api.md, docs/etl.md, docs/downloader.md, docs/s3compat.md, api/apc/urlpaths.go and api/apc/query.go.
DOCUMENTED = [
    "POST /v1/download", "GET /v1/download", "GET /v1/download?uuid=x", "DELETE /v1/download/abort",
    "DELETE /v1/download/remove",
    "GET /v1/cluster?what=config", "GET /v1/cluster?what=cluster_config", "GET /v1/cluster?what=remote",
    "GET /v1/cluster?what=stats", "GET /v1/cluster?what=sysinfo", "GET /v1/cluster?what=mountpaths",
    "GET /v1/cluster?what=target_ips", "GET /v1/cluster?what=backends", "GET /v1/cluster?what=node_stats",
    "PUT /v1/cluster/set-config?stats_time=33s", "PUT /v1/cluster/proxy/abc", "PUT /v1/cluster/attach",
    "PUT /v1/cluster/detach", "PUT /v1/cluster/load-x509", "PUT /v1/cluster/enable-bend/aws",
    "PUT /v1/cluster/disable-bend/aws", "POST /v1/cluster/join-by-admin",
    "GET /v1/daemon?what=config", "GET /v1/daemon?what=snode", "GET /v1/daemon?what=status",
    "GET /v1/daemon?what=stats", "GET /v1/daemon?what=log", "GET /v1/daemon?what=bmd",
    "GET /v1/daemon?what=mountpaths", "GET /v1/daemon?what=disk", "GET /v1/daemon?what=metrics",
    "GET /v1/daemon?what=tls_certificate", "GET /v1/daemon?what=software_version",
    "PUT /v1/daemon/set-config?stats_time=33s", "PUT /v1/daemon/mountpaths", "PUT /v1/daemon/load-x509",
    "GET /v1/reverse/daemon?what=log", "PUT /v1/reverse/daemon/mountpaths",
    "GET /v1/sort/list", "POST /v1/sort/init", "GET /v1/sort/metrics/x", "DELETE /v1/sort", "DELETE /v1/sort/remove",
    "GET /v1/etl/some-name/health", "GET /v1/etl/some-name/metrics", "GET /v1/etl/some-name/details",
    "DELETE /v1/tokens", "GET /v1/ic", "PUT /v1/metasync", "PUT /v1/vote/init", "POST /v1/notifs/x", "GET /v1/ec/x",
    "PUT /v1/objstream/x", "POST /v1/txn/x", "GET /v1/xactions", "GET /v1/users", "GET /v1/roles", "GET /v1/clusters",
    "GET /s3", "GET /s3/bucket", "PUT /s3/bucket/object", "GET /gs/bucket/object", "GET /az/bucket/object",
    "GET /ais/bucket/object", "GET /metrics", "OPTIONS /v1/buckets/b", "PATCH /v1/health",
]  # fmt: skip
ACTIONS = [
    ("PUT /v1/cluster", "reset-config"), ("PUT /v1/cluster", "shutdown"), ("PUT /v1/cluster", "decommission"),
    ("PUT /v1/cluster", "shutdown-node"), ("PUT /v1/cluster", "start"), ("PUT /v1/cluster", "reset-stats"),
    ("PUT /v1/cluster", "rotate-logs"), ("PUT /v1/cluster", "reload-creds"), ("PUT /v1/cluster", "clear-lcache"),
    ("PUT /v1/daemon", "reset-config"), ("PATCH /v1/buckets/b", "set-bprops"), ("PATCH /v1/buckets/b", "reset-bprops"),
    ("POST /v1/buckets/b", "make-n-copies"), ("POST /v1/buckets/b", "ec-encode"), ("POST /v1/buckets/b", "rechunk"),
    ("GET /v1/buckets/b", "summary-shard"),
    ("POST /v1/buckets/b", "create-inventory"), ("POST /v1/objects/b/o", "rename-obj"),
    ("POST /v1/objects/b/o", "blob-download"), ("POST /v1/objects/b/o", "check-lock"),
    ("POST /v1/objects/b", "promote"),
]  # fmt: skip
REFUSED = [
    "GET /", "GET /v1", "GET /v2/buckets", "GET /v1/nonsense", "GET /v1/bucket", "POST /sort", "GET /object",
    "GET /v1/object", "GET /v1/cluster?what=nonsense", "PUT /v1/cluster/nonsense", "GET /v1/ml/nonsense",
    "GET /v1/daemon/nonsense", "GET /v1/reverse/nonsense", "GET /v1/sort/nonsense", "POST /v1/objects/b/o",
    "GET /v1/objects/b", "GET /v1/download/nonsense",
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1, etl=True) as running:
        running.client().bucket("b").create().object("o").get_writer().put_content(b"x")
        yield running


def ask(url: str, line: str, action: str = "") -> requests.Response:
    method, _, path = line.partition(" ")
    message = {"action": action, "value": None} if action else None
    return requests.request(method, url + path, json=message, timeout=60)


@pytest.mark.parametrize("line", DOCUMENTED)
def test_documented_paths_are_501_by_name(cluster: LocalCluster, line: str) -> None:
    for url in (cluster.endpoint, *cluster.target_urls):
        answer = ask(url, line)
        assert answer.status_code == 501, answer.text
        said = answer.json()
        assert said["tcode"] == "ErrUnsupp"
        path, _, query = line.partition(" ")[2].partition("?")
        assert said["url_path"] == path
        wanted = query.removeprefix("what=") if query.startswith("what=") else path.strip("/").split("/")[-1]
        assert wanted in said["message"] or path.split("/")[2] in said["message"]


@pytest.mark.parametrize(("line", "action"), ACTIONS)
def test_documented_actions_are_501_by_name(cluster: LocalCluster, line: str, action: str) -> None:
    answer = ask(cluster.endpoint, line, action)
    assert answer.status_code == 501, answer.text
    assert action in answer.json()["message"]


@pytest.mark.parametrize("line", REFUSED)
def test_what_a_real_node_refuses_is_400(cluster: LocalCluster, line: str) -> None:
    assert ask(cluster.endpoint, line).status_code == 400
    assert ask(cluster.endpoint, line, "no-such-action").status_code == 400
