"""
The few Linux calls that the sandbox needs and Python lacks: namespaces, mounts, capabilities.

Standard library only; it runs inside the sandbox's own process. Every function raises `OSError` where the kernel
refuses.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal

NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
BIND, RECURSIVE, PRIVATE, DETACH = 4096, 16384, 1 << 18, 2
NO_SUID, NO_DEVICES = 2, 4
SET_DEATH_SIGNAL, SET_DUMPABLE, DROP_BOUNDING, SET_SUBREAPER, NO_NEW_PRIVILEGES = 1, 4, 24, 36, 38
CAP_SYS_CHROOT, CAP_SYS_ADMIN = 18, 21
MOUNT_SETATTR = 442  # the same number on every architecture; since Linux 5.12
SYSTEM_PATHS = "/usr /bin /sbin /lib /lib32 /lib64 /nix/store /etc/ld.so.cache /etc/localtime".split()
DEVICES = "/dev/null /dev/zero /dev/full /dev/random /dev/urandom".split()

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces; with `NEW_PIDS`, only its next children."""
    _check(_libc.unshare(flags), "unshare")


def enter(namespace: int, kind: int) -> None:
    """Move this process into the namespace of a file descriptor, whose kind is one of the `NEW_*` flags."""
    _check(_libc.setns(namespace, kind), "setns")


def rejoin_pids(namespace: int) -> None:
    """Let the next children be born in the PID namespace of a file descriptor again."""
    enter(namespace, NEW_PIDS)


def control(option: int, value: int) -> None:
    """`prctl` with one argument."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` at `target`."""
    arguments = [text.encode() or None for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def map_accounts(process: str, uids: str, gids: str, deny_groups: bool) -> None:
    """Write who is who in the user namespace of a process (`"self"` or its id), in the format of `uid_map`."""
    texts = {"setgroups": "deny", "gid_map": gids, "uid_map": uids}
    for name, text in texts.items():
        if name == "setgroups" and not deny_groups:
            continue
        with open(f"/proc/{process}/{name}", "w") as file:
            file.write(text)


def hide_proc() -> None:
    """Put an empty directory in the place of `/proc`."""
    mount("tmpfs", "/proc", "tmpfs", NO_SUID, "size=4k,mode=0555")


def drop_capabilities(kept: tuple[int, ...] = ()) -> None:
    """Give up every capability of this process but those `kept`, and all of what it will ever execute."""
    capability = 0
    while _libc.prctl(DROP_BOUNDING, ctypes.c_ulong(capability), 0, 0, 0) == 0:
        capability += 1
    control(NO_NEW_PRIVILEGES, 1)
    mask = sum(1 << number for number in kept)  # all below 32
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask)), "capset")


def may_become(uid: int) -> bool:
    """Whether this process is root and knows the account `uid`; in a user namespace it may not."""
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return os.geteuid() == 0 and any(first <= uid < first + count for first, _, count in ranges)


def enter_user_namespace() -> bool:
    """
    Move this process into new user and mount namespaces, as their root.

    Returns:
        `bool`:
            Whether there is a second account, 1000, which is nobody outside. Only root can arrange that; for others,
            the namespace knows their own account alone.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        unshare(NEW_USER | NEW_MOUNTS)
        map_accounts("self", f"0 {uid} 1", f"0 {gid} 1", deny_groups=True)
        return False
    with contextlib.suppress(OSError):  # denied to a root who is one in a user namespace only
        os.setgroups([])
    read_end, write_end = os.pipe()
    parent = os.getpid()
    helper = os.fork()  # stays outside, where it may map accounts that are not its own
    if helper == 0:
        os.close(write_end)
        os.read(read_end, 1)
        try:
            map_accounts(str(parent), "0 0 1\n1000 65534 1", "0 0 1\n1000 65534 1", deny_groups=False)
        except OSError:
            os._exit(1)
        os._exit(0)
    try:
        unshare(NEW_USER | NEW_MOUNTS)
    finally:
        os.close(write_end)
        os.close(read_end)
        status = os.waitpid(helper, 0)[1]
    if status != 0:
        map_accounts("self", "0 0 1", "0 0 1", deny_groups=True)
    return status == 0


def enter_pid_namespace() -> None:
    """Go on as PID 1 of a new PID namespace: in a child, while the process that was called waits for its end."""
    unshare(NEW_PIDS)
    child = os.fork()
    if child != 0:
        os.closerange(0, 4096)
        os.waitpid(child, 0)
        os._exit(0)
    control(SET_DEATH_SIGNAL, signal.SIGKILL)


def enter_new_root(paths: list[str], directory: str) -> None:
    """
    Replace the file system by a read-only one that holds the system's programs, some devices and `paths` alone.

    `/proc` shows this PID namespace, or nothing where that is not allowed; `directory` is empty.
    """
    wanted = {path: os.path.realpath(path) for path in [*SYSTEM_PATHS, *DEVICES, *paths]}
    links = {path: os.readlink(path) for path in SYSTEM_PATHS if os.path.islink(path)}
    mount("", "/", "", RECURSIVE | PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", NO_SUID, "size=1m,mode=0755")
    os.mkdir("/tmp/old")
    _check(_libc.pivot_root(b"/tmp", b"/tmp/old"), "pivot_root")
    os.chdir("/")
    os.mkdir(directory, 0o755)
    for path in sorted({*wanted, *(real for path, real in wanted.items() if path not in links)}):
        if path in links:
            _link(links[path], path)
        elif os.path.exists(f"/old{wanted.get(path, path)}"):
            _bind(f"/old{wanted.get(path, path)}", path)
    _link(directory, "/dev/shm")
    os.mkdir("/proc")
    with contextlib.suppress(OSError):
        mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES)
    _check(_libc.umount2(b"/old", DETACH), "umount")
    os.rmdir("/old")
    read_only = (ctypes.c_uint64 * 4)(1 | NO_SUID, 0, 0, 0)
    recursive = ctypes.c_uint(0x8000)
    result = _libc.syscall(MOUNT_SETATTR, -100, b"/", recursive, read_only, ctypes.sizeof(read_only))
    _check(result, "mount_setattr")


def _link(source: str, path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(source, path)


def _bind(source: str, path: str) -> None:
    if os.path.exists(path):  # inside a directory that is bound already
        return
    if os.path.isdir(source):
        os.makedirs(path)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").close()
    mount(source, path, "", BIND | RECURSIVE)


def address_space() -> int:
    """Bytes of address space that this process has already: the interpreter and what it has imported."""
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
    return 0


def limit_resources(limits: dict[str, int]) -> None:
    """Set limits of this process by their names in `resource`, without the prefix; never above what is allowed."""
    for name, value in limits.items():
        kind = vars(resource)[f"RLIMIT_{name}"]
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # A second of grace between SIGXCPU and SIGKILL tells "too long" from "killed".
        ceiling = value + 1 if name == "CPU" and hard == resource.RLIM_INFINITY else value
        resource.setrlimit(kind, (value, ceiling))
