"""The files of a session: a directory that every call gets a copy of, at the same path."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from dataclasses import dataclass

from . import kernel
from .isolation import PROGRAM_ACCOUNT, Isolation
from .trees import copy_tree, remove_tree


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
            remove_tree(self.path)


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
                    self._send_copy(theirs, path, source)
            message, descriptors, _, _ = socket.recv_fds(mine, 4096, 2)  # the keeper buries the child
        if len(descriptors) != 2:
            raise OSError(errno.EIO, f"the files could not be copied: {message.decode('utf-8', 'replace')}")
        return Files(path, descriptors[1], descriptors[0])

    def _send_copy(self, connection: socket.socket, path: str, source: Files | None) -> None:
        """In a child: copy, send the result or what went wrong, and end. Never returns: this is no second keeper."""
        try:
            mounts, directory = self._mount(path, source)
            socket.send_fds(connection, [b"done"], [mounts, directory])
        except OSError as error:
            connection.send(str(error).encode("utf-8", "replace")[:4000])
        finally:
            os._exit(0)

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
            OSError: If they do not fit, or the kernel refuses.
        """
        path = os.path.join(self._parent, str(next(self._numbers)))
        os.mkdir(path, 0o700)
        account = self._isolation.account
        if account is not None:
            os.chown(path, account, account)
        if source is not None:
            child = os.fork()
            if child == 0:
                self._copy_and_leave(source.path, path)
            if os.waitpid(child, 0)[1] != 0:
                remove_tree(path)
                raise OSError(errno.EIO, "the files could not be copied: too many, nested too deep, or closed")
        return Files(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    def _copy_and_leave(self, source: str, path: str) -> None:
        """In a child: copy as the program's account, so that root does not read what it may not. Never returns."""
        code = 1
        try:
            account = self._isolation.account
            if account is not None:
                os.setresgid(account, account, account)
                os.setresuid(account, account, account)
            copy_tree(source, path)
            code = 0
        finally:
            os._exit(code)
