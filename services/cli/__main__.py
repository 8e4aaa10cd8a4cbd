"""`baton`: the command line. Loads only the command that was named, so that it starts fast.

Exit codes: 0 done, or stopped by Ctrl-C; 1 failed while running; 2 a bad flag, setting or model; 3
something is missing on the machine; 4 no gateway answers; 130 a batch was stopped. A failure is one
line, `baton: error: ...`; `--debug` or BATON_DEBUG=1 adds the traceback.
"""

import argparse
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from shared.errors import BatonError, SettingsError
from shared.release import release

COMMANDS = {
    "up": "start Redis, a gateway and workers on this machine",
    "down": "stop what `baton up` started",
    "chat": "talk to the model",
    "batch": "answer a file of requests, and go on where it was stopped",
    "status": "show the workers of a running gateway",
    "trace": "draw where the time of one request went",
    "doctor": "say whether this machine, or a running cell, can serve",
    "capacity": "say what of a model fits on a GPU, or on this machine",
    "chaos": "break a cell of this machine under load, and see what its clients saw",
    "bench": "measure a server, the gateway, the engine or its kernels",
    "serve": "run one process: gateway, prefill or decode",
    "autoscaler": "scale a cell's pools, or say why not",
    "simulate": "compare ways to batch requests, on simulated load",
    "demo": "start everything, ask one question, show its trace, stop",
}
RARE = frozenset({"autoscaler", "chaos", "demo", "simulate"})
"""commands that the overview lists under a heading of their own"""
FOLDERS = {
    "batch": "services.cli.batch.command",
    "bench": "services.cli.bench.command",
    "capacity": "services.cli.capacity.command",
    "chaos": "services.cli.chaos.command",
    "doctor": "services.cli.doctor.command",
    "trace": "services.cli.trace.command",
}
"""commands with a folder of their own"""


class Parser(argparse.ArgumentParser):
    """Reports a bad flag as a SettingsError and does not guess abbreviations."""

    def __init__(self, *, prog: str, description: str | None = None, add_help: bool = True) -> None:
        super().__init__(prog=prog, description=description, add_help=add_help, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message} (see `{self.prog} --help`)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except BatonError as error:
        return _fail(error, error.exit_code, arguments)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 the last resort: one line instead of a traceback
        return _fail(error, 1, arguments)


def _run(argv: list[str]) -> int:
    available = {name: text for name, text in COMMANDS.items() if _exists(name)}
    if argv and argv[0] == "--debug":
        argv = [*argv[1:], "--debug"]
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(_overview(available))
        return 0
    if argv[0] == "--version":
        sys.stdout.write(f"baton {release()}\n")
        return 0
    name, *rest = argv
    if name not in available:
        raise SettingsError(f"unknown command {name!r}; one of: {', '.join(available)}")
    command = importlib.import_module(_module(name))
    parser = Parser(prog=f"baton {name}", description=available[name])
    command.add_arguments(parser)
    if not any("--debug" in action.option_strings for action in parser._actions):
        parser.add_argument(
            "--debug",
            action="store_true",
            default=argparse.SUPPRESS,
            help="show a traceback on failure",
        )
    arguments = parser.parse_args(rest)
    arguments.command_line = rest
    code: int = command.run(arguments)
    return code


def _module(name: str) -> str:
    return FOLDERS.get(name, f"services.cli.{name}")


def _exists(name: str) -> bool:
    return importlib.util.find_spec(_module(name)) is not None


def _overview(available: dict[str, str]) -> str:
    lines = {name: f"  {name:12}{text}\n" for name, text in available.items()}
    first = "".join(line for name, line in lines.items() if name not in RARE)
    rest = "".join(line for name, line in lines.items() if name in RARE)
    return (
        f"usage: baton COMMAND [flags]\n\n{first}\nother commands:\n{rest}\n"
        "`baton COMMAND --help` shows a command's flags\n"
    )


def _fail(error: Exception, code: int, argv: Sequence[str]) -> int:
    if _debug(argv):
        traceback.print_exception(error)
    text = " ".join(str(error).split()) or type(error).__name__
    sys.stderr.write(f"baton: error: {text}\n")
    return code


def _debug(argv: Sequence[str]) -> bool:
    """The setting `debug`, or a preset's, read by itself: what failed may be any other flag or
    variable. Imports the settings only here, because a start that fails in nothing needs none of
    them."""
    from shared.settings.load import load_settings  # noqa: PLC0415
    from shared.settings.presets import preset_values  # noqa: PLC0415
    from shared.settings.setting import environment_name  # noqa: PLC0415

    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--debug", nargs="?", const="true")
    flags.add_argument("--preset", nargs="?")
    given = flags.parse_known_args(argv)[0]
    name = environment_name("debug")
    text = given.debug or os.environ.get(name)
    if text is None:
        preset = given.preset or os.environ.get(environment_name("preset"), "")
        return bool(preset_values(preset).get("debug", False))
    try:
        settings = load_settings(environ={name: text})
    except SettingsError:
        return True
    return settings.telemetry.debug


if __name__ == "__main__":
    sys.exit(main())
