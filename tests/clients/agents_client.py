"""The `openai-agents` framework over both of its APIs: a tool that the model must call, structured
output, a hand-off to another agent, a stream. Arguments: URL, model."""

import asyncio
import sys
from typing import Literal

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.items import ToolCallOutputItem
from openai import AsyncOpenAI
from pydantic import BaseModel

MUST_CALL = ModelSettings(tool_choice="required", max_tokens=64, temperature=0.0)
ANSWERS = ModelSettings(max_tokens=64, temperature=0.0)
called: list[str] = []


class City(BaseModel):
    """An answer of two fields."""

    city: Literal["Paris", "Rome"]
    is_capital: bool


def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    called.append(city)
    return f"It is sunny in {city}."


async def main(url: str, model: str) -> None:
    """Raises on any error."""
    set_tracing_disabled(True)  # else the framework reports to OpenAI
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        api: Model = kind(model=model, openai_client=client)
        await calls_a_tool(api)
        await answers_in_form(api)
        await hands_off(api)


async def calls_a_tool(model: Model) -> None:
    """The first turn calls it with arguments that its schema allows; the next reads its result."""
    called.clear()
    agent = Agent(
        "forecaster", model=model, tools=[function_tool(weather)], model_settings=MUST_CALL
    )
    result = await Runner.run(agent, "What is the weather in Rome?", max_turns=4)
    assert called
    assert set(called) <= {"Paris", "Rome"}
    outputs = [item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)]
    assert outputs == [f"It is sunny in {city}." for city in called]
    assert len(result.raw_responses) > 1
    assert result.final_output
    assert result.context_wrapper.usage.output_tokens > 0


async def answers_in_form(model: Model) -> None:
    """Structured output, whole and streamed."""
    agent = Agent("geographer", model=model, output_type=City, model_settings=ANSWERS)
    result = await Runner.run(agent, "Name a city.")
    assert isinstance(result.final_output, City)
    streamed = Runner.run_streamed(agent, "Name a city.")
    pieces = [
        event.data.delta
        async for event in streamed.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert City.model_validate_json("".join(pieces)) == streamed.final_output


async def hands_off(model: Model) -> None:
    """An agent that can only pass the question on, and one that answers it."""
    second = Agent("storyteller", model=model, model_settings=ANSWERS)
    first = Agent("porter", model=model, handoffs=[second], model_settings=MUST_CALL)
    result = await Runner.run(first, "Tell me a story", max_turns=4)
    assert result.last_agent is second
    assert result.final_output


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
