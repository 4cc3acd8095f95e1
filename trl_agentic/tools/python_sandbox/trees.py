"""Copies and removes the directories that programs have written to, whatever they have left there."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess


def copy_tree(source: str, target: str) -> None:
    """
    Copy a directory's content: files, directories and symbolic links, with modes and times. Pipes, sockets and what
    cannot be read are left out.

    Args:
        source (`str`), target (`str`):
            The directories; both exist.

    Raises:
        OSError: If the disk is full, or directories are nested too deep.
    """
    try:
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "directories are nested too deep") from None
    except shutil.Error as error:
        if any("No space left" in str(reason) for _, _, reason in error.args[0]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None


def remove_tree(path: str) -> None:
    """
    Remove a directory, as far as permissions go. What is in the way of that is no error.

    Args:
        path (`str`):
            The directory.
    """
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        return
    # Nested deeper than Python follows, or closed by a mode. Root is stopped by no mode, and must not change one: the
    # program may have linked a file that is root's.
    opening = [] if os.geteuid() == 0 else [["chmod", "-R", "u+rwx", "--", path]]
    for command in [*opening, ["rm", "-rf", "--", path]]:
        with contextlib.suppress(OSError):
            nothing = subprocess.DEVNULL
            subprocess.run(command, stdin=nothing, stdout=nothing, stderr=nothing)
