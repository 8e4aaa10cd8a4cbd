"""The exporter costs memory and start-up time, so it is imported only for an endpoint.

The API alone may be there: the Redis client imports it by itself where it is installed.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import services.{module}
from shared.telemetry.span_sink import build_span_sink
build_span_sink({endpoint!r}, "baton", {{}})
print(sorted({{"opentelemetry.exporter", "opentelemetry.sdk.trace.export",
               "shared.telemetry.otlp", "google.protobuf", "requests"}} & set(sys.modules)))
"""


def loaded(module: str, endpoint: str) -> str:
    program = PROGRAM.format(module=module, endpoint=endpoint)
    result = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout.strip()


@pytest.mark.parametrize("module", ["gateway.main", "decode.main"])
def test_no_process_imports_the_exporter_without_an_endpoint(module: str) -> None:
    assert loaded(module, "") == "[]"


def test_the_check_can_fail() -> None:
    assert "shared.telemetry.otlp" in loaded("prefill.main", "http://127.0.0.1:9")
