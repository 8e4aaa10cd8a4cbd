"""An engine of several ranks takes no KV over from another worker."""

import asyncio

from shared.protocol import Attempt, Sampling
from shared.worker.channel import Refused, Reserve
from shared.worker.engine_process import EngineLoop
from tests.support.pairs.worker_pair import StepChannel
from tests.unit.engine.fake_runner import fake_engine, make_prompt, make_spec


def test_a_reservation_is_refused() -> None:
    engine, _ = fake_engine(8, role="decode", max_model_len=33)
    channel = StepChannel(asyncio.Event())
    loop = EngineLoop(engine, channel, tp=2)
    sampling = Sampling(max_tokens=6, temperature=0.0)
    channel.put(Reserve(make_spec("a", make_prompt(9), sampling, "decode")))
    loop.turn()
    assert channel.events[0] == Refused(Attempt("a", 0), "--tp 2 takes no KV over")
    assert not engine.sequences
