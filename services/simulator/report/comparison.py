"""What was measured and what was predicted of it, as a table."""

from collections.abc import Iterator

from services.simulator.measured_run import MeasuredRun
from services.simulator.prediction import WITHIN, InTime, Prediction, Row


def compared(run: MeasuredRun, prediction: Prediction) -> str:
    """All load points, and a last line that says whether to trust the simulator."""
    return "".join(f"{line}\n" for line in _lines(_workers(run), prediction))


def _workers(run: MeasuredRun) -> str:
    if "prefill" in run.num_workers:
        return " and ".join(f"{number} {role}" for role, number in run.num_workers.items())
    return f"{run.num_workers['decode']} aggregated"


def _lines(workers: str, prediction: Prediction) -> Iterator[str]:
    yield f"workers: {workers}, simulated with the step times that they had learned"
    for share in prediction.shares:
        yield ""
        yield f"{share.load:32}  measured  predicted     off"
        yield from (_line(row) for row in prediction.rows if row.load == share.load)
        yield _share_line(share)
        if share.num_refused:
            yield f"  {share.num_refused} were refused or failed, and are compared with nothing"
    yield ""
    yield verdict(prediction)


def _line(row: Row) -> str:
    name = f"{row.name}, p{100 * row.quantile:g}"
    return f"  {name:30}{row.measured:8.3f} s{row.predicted:9.3f} s{100 * row.off:+6.0f} %"


def _share_line(share: InTime) -> str:
    measured, predicted = 100 * share.measured, 100 * share.predicted
    name = f"in time, of {share.num_requests}"
    return f"  {name:30}{measured:8.1f} %{predicted:9.1f} %{predicted - measured:+6.1f} points"


def verdict(prediction: Prediction) -> str:
    """Whether the simulator is near enough."""
    worst = prediction.worst
    if worst is None:
        return "too few requests to say how near the simulator is"
    where = f"{worst.name} p{100 * worst.quantile:g} at {worst.load}"
    points = max(100 * abs(share.predicted - share.measured) for share in prediction.shares)
    off = f"off by {100 * abs(worst.off):.0f} % at most ({where}), "
    off += f"those in time by {points:.1f} points"
    if abs(worst.off) <= WITHIN:
        return f"the simulator is {off}: it may be trusted on cells like this one"
    limit = f"{100 * WITHIN:g} %"
    return f"the simulator is {off}: more than {limit}, so do not choose a policy by it here"
