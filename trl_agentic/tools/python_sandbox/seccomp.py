"""
Filters of system calls, assembled by hand for `seccomp`: no library is needed for a hundred comparisons.

Standard library only; it runs inside the sandbox's own process.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from errno import ENOSYS
from itertools import groupby

from .syscalls import LAST_NUMBER, NOTIFY, NUMBERS, Denial, Test

# Classic BPF: load a word, compare and jump, return.
_LOAD, _AND, _EQUAL, _GREATER_OR_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_KILL, _ERROR, _USER_NOTIFY, _ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in `struct seccomp_data`
_X32 = 0x40000000  # calls of the x32 interface have this bit
_SET_FILTER, _NEW_LISTENER = 1, 8

# `AUDIT_ARCH_*`, column in `NUMBERS`, number of `seccomp` itself.
_MACHINES = {"x86_64": (0xC000003E, 0, 317), "aarch64": (0xC00000B7, 1, 277)}

_Instruction = tuple[int, int, int, int]
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def assemble(denials: list[Denial], machine: str) -> list[_Instruction]:
    """
    Write the filter for denials.

    Args:
        denials (`list[Denial]`):
            See `syscalls.py`; the denials of one call stand side by side or apart, in any order.
        machine (`str`):
            `"x86_64"` or `"aarch64"`.

    Returns:
        `list[tuple[int, int, int, int]]`:
            Instructions of classic BPF: code, jump if true, jump if false, operand. Calls of another architecture's
            interface end the process.
    """
    architecture, column, _ = _MACHINES[machine]
    kill = (_RETURN, 0, 0, _KILL)
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), kill, (_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":
        program += [(_GREATER_OR_EQUAL, 0, 1, _X32), kill]
    program += [(_GREATER_OR_EQUAL, 0, 1, LAST_NUMBER + 1), (_RETURN, 0, 0, _ERROR | ENOSYS)]
    for name, same in groupby(sorted(denials, key=lambda denial: denial[0]), key=lambda denial: denial[0]):
        number = NUMBERS[name][column]
        if number is not None:
            block = [line for _, action, tests in same for line in _deny(action, tests)]
            block.append((_RETURN, 0, 0, _ALLOW))  # for calls that pass the tests
            program += [(_EQUAL, 0, len(block), number), *block]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _deny(action: int, tests: tuple[Test, ...]) -> list[_Instruction]:
    """Return `action` if every test holds, else go on behind."""
    block = [(_RETURN, 0, 0, _USER_NOTIFY if action == NOTIFY else _ERROR | action)]
    for position, operation, value in reversed(tests):
        behind = len(block)
        load = [(_LOAD, 0, 0, _ARGUMENTS + 8 * position + (4 if operation == "high" else 0))]
        if operation == "type":
            load.append((_AND, 0, 0, 0xFF00))
        jumps = {"==": (_EQUAL, 0, behind), "type": (_EQUAL, 0, behind), "&": (_ANY_BIT, 0, behind)}
        code, if_true, if_false = jumps.get(operation, (_EQUAL, behind, 0))
        block = [*load, (code, if_true, if_false, value), *block]
    return block


def compile_filter(denials: list[Denial]) -> bytes | None:
    """The filter for this machine, or `None` where there is no table of numbers for it."""
    machine = platform.machine()
    if machine not in _MACHINES or sys.byteorder != "little" or sys.maxsize < 2**32:
        return None
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in assemble(denials, machine))


def install(code: bytes, listen: bool = False) -> int:
    """
    Put this process and all that it will ever start under a filter. It must have given up new privileges before.

    Args:
        code (`bytes`):
            What `compile_filter` returned.
        listen (`bool`, *optional*, defaults to `False`):
            Whether the filter asks somebody about some calls.

    Returns:
        `int`:
            A file descriptor to read the questions from, 0 without `listen`.

    Raises:
        OSError: If the kernel refuses.
    """
    program = _Program(len(code) // 8, code)
    number = _MACHINES[platform.machine()][2]
    result = _libc.syscall(number, _SET_FILTER, _NEW_LISTENER if listen else 0, ctypes.byref(program))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp: {os.strerror(error)}")
    return result


def is_available(code: bytes | None) -> bool:
    """Whether the kernel takes a filter; tried in a child, since there is no way back."""
    if code is None:
        return False
    child = os.fork()
    if child == 0:
        try:
            _libc.prctl(38, ctypes.c_ulong(1), 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
            install(code)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
