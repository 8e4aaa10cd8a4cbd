"""What `--planted-faults` asks for.

`planted_faults = "prefill=200,transport=50,crash=7"` sleeps that many milliseconds once per request
in the named stage, and kills the engine in the first step that computes a sequence with token 7 in
it: prefill, decode and crash in faulty_engine.py, transport in services/decode/pulls.py.
"""

from shared.errors import SettingsError

STAGES = ("prefill", "transport", "decode")
CRASH = "crash"


def planted_delay_s(text: str, stage: str) -> float:
    """Seconds to sleep in `stage`, 0 when none is planted; SettingsError when malformed."""
    return _amounts(text).get(stage, 0) / 1000


def planted_crash(text: str) -> int | None:
    """The token that kills; None when there is none. SettingsError when malformed."""
    return _amounts(text).get(CRASH)


def _amounts(text: str) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        name, _, amount = item.partition("=")
        if name not in (*STAGES, CRASH) or not amount.isdigit():
            raise SettingsError(
                f"--planted-faults: {item!r} is not one of {STAGES} = milliseconds, nor {CRASH} = "
                "token id"
            )
        amounts[name] = int(amount)
    return amounts
