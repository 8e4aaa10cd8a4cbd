"""A worker that listens beyond its machine with no secret says so at its start."""

import logging

import pytest

from shared.settings.groups import NetworkSettings
from shared.worker.run import warn_if_open


@pytest.mark.parametrize(
    ("host", "secret", "warned"),
    [
        ("0.0.0.0", "", True),  # noqa: S104
        ("10.0.0.7", "", True),
        ("worker.example", "", True),
        ("10.0.0.7", "s", False),
        ("127.0.0.1", "", False),
        ("::1", "", False),
        ("localhost", "", False),
    ],
)
def test_a_worker_that_others_reach_without_a_secret_says_so(
    caplog: pytest.LogCaptureFixture, host: str, secret: str, warned: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_open(NetworkSettings(host=host, cell_secret=secret))
    assert ("BATON_CELL_SECRET" in caplog.text) == warned
