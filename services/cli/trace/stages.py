"""The stages of a receipt, checked: a gateway of another version may leave things out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NAMES = {"kv_transfer": "hand-over", "kv_held": "kv held"}
"""what a reader is told instead of the span's name"""
PATH_KEYS = {
    "read": "other",
    "queue": "queue",
    "prefill": "prefill",
    "kv_transfer": "handover",
    "decode": "decode",
}
"""stage -> its key in the critical path"""
WAY = ("read", "queue", "prefill", "kv_transfer", "kv_held", "decode")
"""the stages of an attempt in the order a reader follows them; some overlap"""


@dataclass(frozen=True)
class Stage:
    """One measured stage; ms since the first one began."""

    span: str
    pid: str
    process: str
    epoch: int
    start_ms: float
    end_ms: float
    attributes: Mapping[str, Any]
    adds_ms: float | None = None
    """its part of the critical path; of the last attempt's stages only"""

    @property
    def name(self) -> str:
        return NAMES.get(self.span, self.span)

    def fact(self, name: str) -> Any:
        """The attribute whose name ends so; None without one."""
        for key, value in self.attributes.items():
            if key.rpartition(".")[2] == name:
                return value
        return None


def read_stages(receipt: Mapping[str, Any]) -> list[Stage]:
    """Attempt by attempt, and within one in the order of the request's way."""
    spans = [span for span in receipt.get("stages") or () if isinstance(span, Mapping)]
    spans = [span for span in spans if _is_measured(span)]
    if not spans:
        return []
    spans.sort(key=lambda span: (_epoch(span), _place(span), span["start_ns"], span["end_ns"]))
    begin_ns = min(span["start_ns"] for span in spans)
    path = numbers(receipt.get("critical_path_ms"))
    last_epoch = max(_epoch(span) for span in spans)
    last = {span.get("name"): place for place, span in enumerate(spans)}
    stages = []
    for place, span in enumerate(spans):
        name = str(span.get("name", "?"))
        counts = _epoch(span) == last_epoch and last[span.get("name")] == place
        attributes = span.get("attributes")
        stages.append(
            Stage(
                span=name,
                pid=str(span.get("pid") or ""),
                process=str(span.get("worker") or ""),
                epoch=_epoch(span),
                start_ms=(span["start_ns"] - begin_ns) / 1e6,
                end_ms=(span["end_ns"] - begin_ns) / 1e6,
                attributes=attributes if isinstance(attributes, Mapping) else {},
                adds_ms=path.get(PATH_KEYS.get(name, "")) if counts or name == "read" else None,
            )
        )
    return stages


def number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def numbers(values: object) -> dict[str, float]:
    """The entries of a map that are numbers."""
    items: Iterable[tuple[Any, object]] = values.items() if isinstance(values, Mapping) else ()
    found = {str(key): number(value) for key, value in items}
    return {key: value for key, value in found.items() if value is not None}


def _is_measured(span: Mapping[str, Any]) -> bool:
    start_ns, end_ns = number(span.get("start_ns")), number(span.get("end_ns"))
    return start_ns is not None and end_ns is not None and end_ns >= start_ns


def _place(span: Mapping[str, Any]) -> int:
    """Where on the way a stage lies; one we do not know comes last."""
    name = span.get("name")
    return WAY.index(name) if name in WAY else len(WAY)


def _epoch(span: Mapping[str, Any]) -> int:
    epoch = span.get("epoch", 0)
    return epoch if isinstance(epoch, int) else 0
