"""
Which system calls a program is denied, and their numbers. Data alone; `seccomp.py` turns it into a filter.

A denial is a tuple: the call, the error it fails with, and tests of its arguments that must all hold. Everything else
that was known when the table was written is allowed: it takes away what no program needs, and is no list of what one
may need.
"""

from __future__ import annotations

from errno import EACCES, EAFNOSUPPORT, ENOSYS, EPERM

NOTIFY = -1  # in place of an error: the keeper of the session decides
# (position of the argument, operation, value). "high" tests the upper half of a 64-bit argument for being set, "type"
# compares the second byte, which tells the kinds of `ioctl` apart.
Test = tuple[int, str, int]
Denial = tuple[str, int, tuple[Test, ...]]

LAST_NUMBER = 467  # what came later may be anything, and libraries can do without: it fails with ENOSYS

# Number on x86_64, and on aarch64 if the call exists there. From 424 on both agree.
NUMBERS: dict[str, tuple[int, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bind": (49, 200), "bpf": (321, 280),
    "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220),
    "clone3": (435, 435), "delete_module": (176, 106), "fanotify_init": (300, 262), "fcntl": (72, 25),
    "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430),
    "fspick": (433, 433), "getsockopt": (55, 209),
    "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, None), "iopl": (172, None),
    "ioprio_set": (251, 30), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "kill": (62, 129), "listen": (50, 201), "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "migrate_pages": (256, 238), "modify_ldt": (154, None),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239),
    "mq_open": (240, 180), "msgget": (68, 186), "name_to_handle_at": (303, 264), "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "prctl": (157, 167), "prlimit64": (302, 261),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "request_key": (249, 218), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "semget": (64, 190), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "setpriority": (141, 140), "setrlimit": (160, 164), "setsockopt": (54, 208),
    "settimeofday": (164, 170), "shmget": (29, 194), "socket": (41, 198), "statmount": (457, 457),
    "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "tgkill": (234, 131), "tkill": (200, 130),
    "umount2": (166, 39), "unshare": (272, 97), "uselib": (134, None), "userfaultfd": (323, 282),
    "vmsplice": (278, 75),
}  # fmt: skip

_NAMESPACES = 0x7E020000  # every CLONE_NEW* that fits into the flags of `clone`
_UNIX, _IPV4, _IPV6 = 1, 2, 10
_WITHOUT_NETWORK: tuple[Test, ...] = ((0, "!=", _UNIX), (0, "!=", _IPV4), (0, "!=", _IPV6))
# SOL_SOCKET, and those of its options that clients use: sizes, times, urgency, reuse. Others load filters, or give a
# socket a name that another program can find, as SO_PASSCRED and SO_PASSPIDFD do without `bind`.
_SOCKET = 1
_SOCKET_OPTIONS = (2, 5, 6, 7, 8, 9, 10, 12, 13, 15, 18, 19, 20, 21, 66, 67)
_LEASES = (1024, 1040)  # F_SETLEASE and F_SETDELEG: who copies the file would wait for its owner, who is stopped

# What reads or writes another process, changes the machine or the file system's tree, or talks to large or young parts
# of the kernel that no numerical program calls. System V memory, message queues and keys are shared by all programs of
# one account, and `bind` would let one find another.
_FORBIDDEN = """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig
    fsmount fsopen fspick init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl listmount lookup_dcookie
    memfd_secret migrate_pages modify_ldt mount mount_setattr move_mount move_pages mq_open msgget name_to_handle_at
    nfsservctl open_by_handle_at open_tree open_tree_attr perf_event_open pidfd_getfd pivot_root process_madvise
    process_mrelease process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot request_key semget
    setdomainname sethostname settimeofday shmget statmount swapoff swapon syslog umount2 unshare uselib userfaultfd
    vmsplice
""".split()

_PROGRAM: list[Denial] = [
    *((name, EPERM, ()) for name in _FORBIDDEN),
    *((name, EACCES, ()) for name in ("bind", "listen")),
    # ENOSYS where libraries know what to do without: `clone3` hides its flags from filters, and no limit counts the
    # memory of a `memfd`.
    *(
        (name, ENOSYS, ())
        for name in ("clone3", "memfd_create", "io_uring_enter", "io_uring_register", "io_uring_setup")
    ),
    ("clone", EPERM, ((0, "&", _NAMESPACES),)),
    ("personality", EPERM, ((0, "!=", 0), (0, "!=", 0xFFFFFFFF))),
    ("socket", EAFNOSUPPORT, _WITHOUT_NETWORK),  # no VSOCK, NETLINK, ALG, PACKET, ...
    ("setsockopt", EPERM, ((1, "==", _SOCKET), *((2, "!=", option) for option in _SOCKET_OPTIONS))),
    *(("fcntl", EPERM, ((1, "==", command),)) for command in _LEASES),
]

PROGRAM_DENIALS: list[Denial] = [*_PROGRAM, ("setns", EPERM, ())]

_NEW_MOUNTS, _PIDFD, _PEER_PIDFD, _SET_DUMPABLE, _PROCESSES = 0x20000, 0x1000, 77, 4, 6
# A session and its forks share a PID namespace, hence what reaches other processes by their number is denied too,
# and signals are the keeper's to decide. `setns` is how a fork enters the files that the keeper has copied for it, and
# the keeper sees to it that it enters no others.
SESSION_DENIALS: list[Denial] = [
    *_PROGRAM,
    ("setns", EPERM, ((1, "!=", _NEW_MOUNTS),)),
    ("setns", NOTIFY, ()),
    # A descriptor of a process leads to its namespaces.
    ("clone", EPERM, ((0, "&", _PIDFD),)),
    ("getsockopt", EPERM, ((1, "==", _SOCKET), (2, "==", _PEER_PIDFD))),
    ("ioctl", EPERM, ((1, "type", 0xFF00),)),
    *((name, NOTIFY, ()) for name in ("kill", "tkill", "tgkill")),
    *((name, EPERM, ()) for name in ("pidfd_open", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo")),
    ("fcntl", EPERM, ((1, "==", 8),)),  # F_SETOWN and its kin send signals too
    ("fcntl", EPERM, ((1, "==", 15),)),
    ("ioctl", EPERM, ((1, "==", 0x8901),)),
    ("ioctl", EPERM, ((1, "==", 0x8902),)),
    ("ioctl", EPERM, ((1, "type", 0xB700),)),  # from one namespace to the next
    ("prctl", EPERM, ((0, "==", _SET_DUMPABLE), (1, "==", 0))),  # it would hide from the keeper
    ("setrlimit", EPERM, ((0, "==", _PROCESSES),)),  # the limit moves with the number of sessions
    ("prlimit64", EPERM, ((0, "!=", 0),)),
    ("prlimit64", EPERM, ((1, "==", _PROCESSES), (2, "!=", 0))),
    ("prlimit64", EPERM, ((1, "==", _PROCESSES), (2, "high", 0))),
    ("setpriority", EPERM, ((0, "!=", 0),)),
    ("setpriority", EPERM, ((1, "!=", 0),)),
    ("ioprio_set", EPERM, ()),
    *(
        (name, EPERM, ((0, "!=", 0),))
        for name in ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")
    ),
]
