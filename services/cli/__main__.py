"""`baton`: the command line. Loads only the command that was named, so that it starts fast.

Exit codes: 0 done, or stopped by a signal; 1 failed while running; 2 a bad flag, setting or
model; 3 something is missing on the machine; 4 no gateway answers. A failure is one line,
`baton: error: ...`; `--debug` or BATON_DEBUG=1 adds the traceback.
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
    "status": "show the workers of a running gateway",
    "chat": "talk to the model",
    "demo": "start everything, ask one question, show its trace, stop",
    "serve": "run one process: gateway, prefill or decode",
    "bench": "measure a server, the gateway, the engine or its kernels",
}


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
    command = importlib.import_module(f"services.cli.{name}")
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


def _exists(name: str) -> bool:
    return importlib.util.find_spec(f"services.cli.{name}") is not None


def _overview(available: dict[str, str]) -> str:
    lines = [f"  {name:8}{text}" for name, text in available.items()]
    return "usage: baton COMMAND [flags]\n\n" + "\n".join(lines) + "\n"


def _fail(error: Exception, code: int, argv: Sequence[str]) -> int:
    if "--debug" in argv or os.environ.get("BATON_DEBUG", "").lower() in ("1", "true", "yes"):
        traceback.print_exception(error)
    text = " ".join(str(error).split()) or type(error).__name__
    sys.stderr.write(f"baton: error: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
