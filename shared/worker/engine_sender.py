"""The engine process as the io side's logic sees it: something that takes commands."""

from typing import Protocol

from shared.worker.channel import Command


class EngineSender(Protocol):
    def send(self, command: Command) -> None:
        """Queue a command; the engine applies commands in order, between steps."""
