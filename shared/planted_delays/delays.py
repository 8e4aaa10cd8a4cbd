"""What `--fault-delay` asks for.

`fault_delay = "prefill=200,transport=50"` sleeps that many milliseconds once per request in
the named stage: prefill and decode in delayed_engine.py, transport in services/decode/pulls.py.
"""

from shared.errors import SettingsError

STAGES = ("prefill", "transport", "decode")


def planted_delay_s(text: str, stage: str) -> float:
    """Seconds to sleep in `stage`, 0 when none is planted; SettingsError when malformed."""
    delays: dict[str, float] = {}
    for item in filter(None, text.split(",")):
        name, _, amount = item.partition("=")
        if name not in STAGES or not amount.isdigit():
            raise SettingsError(f"--fault-delay: {item!r} is not one of {STAGES} = milliseconds")
        delays[name] = int(amount) / 1000
    return delays.get(stage, 0.0)
