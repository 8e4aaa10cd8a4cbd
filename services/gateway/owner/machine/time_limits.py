"""What a request ends with when a time limit is reached: 504, naming the limit and what sets it."""

from services.gateway.owner.machine.effects import Failure

STATUS = 504
CODE = "deadline_exceeded"


def time_is_up(limit_s: float) -> Failure:
    """The request as a whole took `limit_s`, from its first byte on."""
    text = (
        f"the request's time is up after {limit_s:g} s "
        "(set by the header x-baton-timeout-s or the gateway's --request-timeout-s)"
    )
    return Failure(CODE, text, STATUS)


def no_token(limit_s: float) -> Failure:
    """The first token, or the next one, did not come within `limit_s`."""
    text = f"no token came for {limit_s:g} s (set by the gateway's --first-token-timeout-s)"
    return Failure("token_timeout", text, STATUS)
