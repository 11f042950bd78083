"""What both pytest plugins do: write down each test's outcome as soon as it is known."""

from __future__ import annotations

import harness
import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    harness.record([item.nodeid for item in session.items])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        harness.record([report.nodeid, report.outcome])
