"""Baton as a library: one model in this process, without a server (services/offline/README.md)."""

from services.offline.answer import Answer, Choice, TokenLogprob
from services.offline.answer_stream import AnswerStream
from services.offline.llm import LLM
from services.offline.sampling_params import SamplingParams

__all__ = ["LLM", "Answer", "AnswerStream", "Choice", "SamplingParams", "TokenLogprob"]
