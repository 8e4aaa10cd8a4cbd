"""Failures in the client's terms: what Redis did not admit, and what the HTTP layer raises."""

from services.gateway.owner.machine.effects import WRONG_GRAMMAR_CODE, Failure
from shared.errors import AttemptError, BatonError, OverloadedError, RequestError
from shared.state.records import Admission, KeyTaken

NO_ANSWER = "the state store does not answer"
NO_WRITES = "the state store refuses writes; its log or INFO memory says why"


def refusal(answer: Admission | KeyTaken | None, retry_after_s: float) -> Failure:
    """Why a request ends that was not admitted. None: Redis did not say."""
    if isinstance(answer, KeyTaken):
        return Failure("idempotency_conflict", _key_taken(answer), 409)
    if answer is None:
        return Failure("state_unavailable", NO_ANSWER, 503, retry_after_s)
    if answer is Admission.REFUSES_WRITES:
        return Failure("state_unavailable", NO_WRITES, 503, retry_after_s)
    if answer is Admission.OVER_QUOTA:
        text = "too many live requests of this tenant"
        return Failure("over_quota", text, 429, retry_after_s)
    return Failure("request_id_taken", "the request id is in use", 409)


def _key_taken(taken: KeyTaken) -> str:
    """What the client has to know of the request that has its key."""
    first, outcome = f"Idempotency-Key: request {taken.rid}", taken.outcome
    if not taken.same_body:
        return f"{first} has this key and another body; use a new key"
    if outcome is None:
        return f"{first} has this key and is still running"
    return (
        f"{first} had this key and is {outcome.state} ({outcome.code}) with "
        f"{outcome.num_output_tokens} output tokens; answers are not kept"
    )


def error_of(failure: Failure, grammar_param: str) -> BatonError:
    """What the reader of the request's generation gets. `grammar_param`: the client's field that
    its grammar comes from."""
    if failure.code == WRONG_GRAMMAR_CODE:
        text = f"{grammar_param}: {failure.message}"
        return RequestError(text, code=failure.code, param=grammar_param)
    if failure.retry_after_s is not None:
        return OverloadedError(
            failure.message, retry_after_s=failure.retry_after_s, status=failure.status
        )
    return AttemptError(failure.message, code=failure.code, status=failure.status)
