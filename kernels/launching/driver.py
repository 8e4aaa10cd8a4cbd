"""The CUDA driver's own calls through ctypes. Needs a current context: torch must have used the
device in this thread."""

import ctypes
from ctypes import c_char_p, c_int
from functools import cache


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_int), ("id", c_int))


class DriverError(Exception):
    """The driver refused; the message has its words."""


@cache
def driver() -> ctypes.CDLL:
    """OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")


def has_call(name: str) -> bool:
    """Whether this driver knows the call."""
    return hasattr(driver(), name)


def call(name: str, *arguments: object) -> None:
    """Each argument of the exact C type. DriverError when the status is not success."""
    function = getattr(driver(), name)
    function.restype = c_int
    status = function(*arguments)
    if status:
        text = c_char_p()
        driver().cuGetErrorString(c_int(status), ctypes.byref(text))
        words = (text.value or b"unknown error").decode()
        raise DriverError(f"{name}: {words} ({status})")
