"""Which kinds of isolation the kernel grants, and how a process gives up what it could do."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from . import kernel, seccomp
from .syscalls import PROGRAM_DENIALS, SESSION_DENIALS

NOBODY = 65534
PROGRAM_ACCOUNT = 1000  # inside a user namespace
# What a session keeps, in a user namespace that owns nothing but the files of its family; the filter denies every
# call that these two allow, except `setns` into a mount namespace.
_SESSION_CAPABILITIES = (kernel.CAP_SYS_CHROOT, kernel.CAP_SYS_ADMIN)
_MOST_PROCESSES = 4096  # of a family of sessions; each call has a limit of its own below it


class Isolation:
    """
    Isolates the process that makes it, once and for all programs that it will fork.

    Args:
        settings (`dict[str, Any]`):
            What [`PythonSandbox`] was made with: `namespaces`, `paths`, `directory`, `disk_mb`, `max_processes`,
            `limits`, ...

    Attributes:
        report (`dict[str, bool]`):
            What the kernel has granted: `network`, `filesystem`, `processes`, `account`, `seccomp`.
    """

    def __init__(self, settings: dict[str, Any]):
        self.settings = settings
        self.report = {"network": False, "filesystem": False, "processes": False}
        self.report["account"] = kernel.may_become(NOBODY)
        self.second_account = False
        self.pid_namespace: int | None = None
        if settings["namespaces"]:
            with contextlib.suppress(OSError):
                self._isolate()
        self._filter = seccomp.compile_filter(PROGRAM_DENIALS)
        self._session_filter = seccomp.compile_filter(SESSION_DENIALS)
        self.report["seccomp"] = seccomp.is_available(self._filter)

    def _isolate(self) -> None:
        self.second_account = kernel.enter_user_namespace()
        self.report["account"] = self.second_account
        for flag in (kernel.NEW_IPC, kernel.NEW_UTS):
            with contextlib.suppress(OSError):
                kernel.unshare(flag)
        with contextlib.suppress(OSError):
            kernel.unshare(kernel.NEW_NETWORK)
            self.report["network"] = True
        with contextlib.suppress(OSError):
            kernel.enter_pid_namespace()
            self.pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            self.report["processes"] = True
        with contextlib.suppress(OSError):
            kernel.enter_new_root(self.settings["paths"], self.settings["directory"])
            self.report["filesystem"] = True

    def fork(self) -> int:
        """`os.fork`, the child being PID 1 of a new PID namespace where that is possible."""
        if self.pid_namespace is None:
            return os.fork()
        kernel.unshare(kernel.NEW_PIDS)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                kernel.rejoin_pids(self.pid_namespace)
        return pid

    def enter_own_network(self) -> None:
        """
        Move this process into a network namespace without any network, where it has been cut off from the machine's:
        programs that share one could meet there.
        """
        if self.report["network"]:
            with contextlib.suppress(OSError):  # there may be too many; the one it is in leads nowhere either
                kernel.unshare(kernel.NEW_NETWORK)

    @property
    def account(self) -> int | None:
        """The account that programs run under, as this process sees it; `None` if it is this process's own."""
        if self.second_account:
            return PROGRAM_ACCOUNT
        in_namespace = self.pid_namespace is not None or self.report["filesystem"]
        return NOBODY if self.report["account"] and not in_namespace else None

    def disk_options(self) -> str:
        """Options for mounting the directory that a program may write to."""
        owner = PROGRAM_ACCOUNT if self.second_account else 0
        return f"size={self.settings['disk_mb']}m,nr_inodes=4096,mode=0700,uid={owner},gid={owner}"

    def become_program(self, own_proc: bool) -> None:
        """
        Give up every privilege and put this process under its limits.

        Args:
            own_proc (`bool`):
                Whether `/proc` shows this process.

        Raises:
            OSError: If the kernel refuses what it has granted before.
        """
        guards = 1 if self._change_account() is None else 0  # processes of ours that the limit would count
        in_namespace = self.pid_namespace is not None or self.report["filesystem"]
        if in_namespace and own_proc:  # processes are counted per user namespace, hence one per call
            self._enter_own_user_namespace()
            guards = 0
        kernel.drop_capabilities()
        self._limit(self.settings["max_processes"] + guards)
        if self.report["seccomp"] and self._filter is not None:
            seccomp.install(self._filter)

    def become_session(self, isolated: bool) -> int | None:
        """
        The same for the first process of a family of sessions, from which all its programs are forked.

        Args:
            isolated (`bool`):
                Whether its calls have mount namespaces of their own.

        Returns:
            `int` or `None`:
                The descriptor that signals are asked about at, if `isolated`.

        Raises:
            OSError: If the kernel refuses.
        """
        self._change_account()
        if isolated:
            self._enter_own_user_namespace()
        kernel.drop_capabilities(_SESSION_CAPABILITIES if isolated else ())
        self._limit(_MOST_PROCESSES)
        if isolated and self._session_filter is not None:
            return seccomp.install(self._session_filter, listen=True)
        if self.report["seccomp"] and self._filter is not None:
            seccomp.install(self._filter)
        return None

    def _change_account(self) -> int | None:
        if self.account is not None:
            os.setresgid(self.account, self.account, self.account)
            os.setresuid(self.account, self.account, self.account)
        kernel.control(kernel.SET_DUMPABLE, 1)  # else `/proc/self` belongs to root
        return self.account

    def _enter_own_user_namespace(self) -> None:
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(kernel.NEW_USER)
        kernel.map_accounts("self", f"{PROGRAM_ACCOUNT} {uid} 1", f"{PROGRAM_ACCOUNT} {gid} 1", deny_groups=True)
        with contextlib.suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")  # in this namespace: the program shall not become the root of another one

    def _limit(self, num_processes: int) -> None:
        limits = self.settings["limits"] | {"NPROC": num_processes}
        kernel.limit_resources(limits | {"AS": limits["AS"] + kernel.address_space()})
