"""What a tenant's next answer is expected to be long."""

from services.gateway.owner.placement.answer_lengths import AnswerLengths


def test_nothing_is_expected_before_an_answer_then_what_others_had_then_its_own() -> None:
    lengths = AnswerLengths()
    assert lengths.expected("a", 100) == 0
    lengths.note("b", 50)
    assert lengths.expected("a", 100) == 50
    lengths.note("a", 10)
    assert lengths.expected("a", 100) == 10
    assert lengths.expected("b", 100) == 50


def test_no_more_than_a_request_may_have() -> None:
    lengths = AnswerLengths()
    lengths.note("a", 500)
    assert lengths.expected("a", 20) == 20


def test_the_latest_answers_count() -> None:
    lengths = AnswerLengths()
    for _ in range(100):
        lengths.note("a", 400)
    for _ in range(100):
        lengths.note("a", 20)
    assert 20 <= lengths.expected("a", 1000) <= 22
