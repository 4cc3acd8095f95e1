"""The files of a session: a directory that every call gets a copy of, at the same path."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import socket
from dataclasses import dataclass

from . import kernel
from .isolation import PROGRAM_ACCOUNT, Isolation


@dataclass(frozen=True)
class Files:
    """
    The files of one point in the life of a session.

    Args:
        path (`str`):
            Where the session sees them.
        directory (`int`):
            Descriptor of the directory.
        mounts (`int`, *optional*):
            Descriptor of the mount namespace that shows it there; `None` where there is none.
    """

    path: str
    directory: int
    mounts: int | None = None

    @property
    def namespace(self) -> int | None:
        """What tells the processes that see these files from others: the number of the mount namespace."""
        return None if self.mounts is None else os.fstat(self.mounts).st_ino

    def remove(self) -> None:
        """Let them go. In memory they vanish with the last process that sees them."""
        os.close(self.directory)
        if self.mounts is not None:
            os.close(self.mounts)
        else:
            shutil.rmtree(self.path, ignore_errors=True)


class PrivateMounts:
    """
    Makes copies in memory, each shown at one and the same path in a mount namespace of its own.

    Args:
        isolation ([`Isolation`]):
            What is granted here.
        user_namespace (`int`):
            Descriptor of the user namespace that the mount namespaces shall belong to.
    """

    def __init__(self, isolation: Isolation, user_namespace: int):
        self._isolation = isolation
        self._user_namespace = user_namespace

    def copy(self, source: Files | None) -> Files:
        """
        Copy files, or begin with none.

        Raises:
            OSError: If they do not fit, or the kernel refuses.
        """
        path = self._isolation.settings["directory"]
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine:
            with theirs:
                child = os.fork()
                if child == 0:
                    with _failures_reported(theirs):
                        mounts, directory = self._mount(path, source)
                        socket.send_fds(theirs, [b"done"], [mounts, directory])
                    os._exit(0)
            message, descriptors, _, _ = socket.recv_fds(mine, 4096, 2)  # the keeper buries the child
        if len(descriptors) != 2:
            raise OSError(errno.EIO, f"the files could not be copied: {message.decode('utf-8', 'replace')}")
        return Files(path, descriptors[1], descriptors[0])

    def _mount(self, path: str, source: Files | None) -> tuple[int, int]:
        """In a child: move to a new mount namespace, and fill the directory there."""
        kernel.enter(self._user_namespace, kernel.NEW_USER)
        os.setresgid(PROGRAM_ACCOUNT, PROGRAM_ACCOUNT, PROGRAM_ACCOUNT)
        os.setresuid(PROGRAM_ACCOUNT, PROGRAM_ACCOUNT, PROGRAM_ACCOUNT)
        kernel.unshare(kernel.NEW_MOUNTS)
        options = f"size={self._isolation.settings['disk_mb']}m,nr_inodes=4096,mode=0700"
        kernel.mount("tmpfs", path, "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, options)
        mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        if source is not None:
            copy_tree(f"/proc/self/fd/{source.directory}", path)
        kernel.hide_proc()  # it would show the other sessions of the family
        return mounts, directory


class PlainDirectories:
    """
    Makes copies in directories side by side, for lack of mount namespaces: each is seen at another path.

    Args:
        isolation ([`Isolation`]):
            What is granted here.
        parent (`str`):
            Where the directories are made.
    """

    def __init__(self, isolation: Isolation, parent: str):
        self._isolation = isolation
        self._parent = parent
        self._numbers = itertools.count()

    def copy(self, source: Files | None) -> Files:
        """
        Copy files, or begin with none.

        Raises:
            OSError: If the kernel refuses.
        """
        path = os.path.join(self._parent, str(next(self._numbers)))
        os.mkdir(path, 0o700)
        account = self._isolation.account
        if account is not None:
            os.chown(path, account, account)
        if source is not None:
            child = os.fork()
            if child == 0:  # as the program's account: it shall not have root read what it may not
                with contextlib.suppress(OSError):
                    if account is not None:
                        os.setresgid(account, account, account)
                        os.setresuid(account, account, account)
                    copy_tree(source.path, path)
                os._exit(0)
            os.waitpid(child, 0)
        return Files(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY))


def copy_tree(source: str, target: str) -> None:
    """
    Copy a directory's content: files, directories and symbolic links, with modes and times. Pipes, sockets and what
    cannot be read are left out.

    Raises:
        OSError: If the disk is full.
    """
    try:
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    except shutil.Error as error:
        if any("No space left" in str(reason) for _, _, reason in error.args[0]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None


@contextlib.contextmanager
def _failures_reported(connection: socket.socket):
    try:
        yield
    except OSError as error:
        connection.send(str(error).encode()[:4000])
