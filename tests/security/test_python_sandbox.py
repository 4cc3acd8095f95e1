"""One adversarial property of the Python sandbox per test, where there are namespaces and where there are none."""

from __future__ import annotations

import errno
import logging
import os
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agentic.tools import PythonSandbox, SandboxError, ToolRuntime, make_python_tool, sandbox_report
from trl_agentic.tools.python_report import log_once
from trl_agentic.tools.python_sandbox.seccomp import assemble
from trl_agentic.tools.python_sandbox.syscalls import NOTIFY, NUMBERS, PROGRAM_DENIALS, SESSION_DENIALS
from trl_agentic.types import CallStatus, ToolCall

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)

LIMITS = {"timeout_s": 10.0, "memory_mb": 256, "disk_mb": 4, "max_output_bytes": 20_000, "max_processes": 8}
SECRET = "sk-a-key-that-no-program-may-see"


@pytest.fixture(scope="module")
def isolated() -> Iterator[PythonSandbox]:
    os.environ["TRL_AGENTIC_TEST_KEY"] = SECRET
    with PythonSandbox(**LIMITS) as sandbox:
        yield sandbox
    del os.environ["TRL_AGENTIC_TEST_KEY"]


@pytest.fixture(scope="module")
def limited() -> Iterator[PythonSandbox]:
    with PythonSandbox(**LIMITS, namespaces=False) as sandbox:
        yield sandbox


@pytest.fixture(scope="module", params=[True, False], ids=["isolated", "limited"])
def hurried(request) -> Iterator[PythonSandbox]:
    """For programs that never end: the same, with a short deadline."""
    with PythonSandbox(**LIMITS | {"timeout_s": 0.5}, namespaces=request.param) as sandbox:
        yield sandbox


@pytest.fixture(params=["isolated", "limited"])
def sandbox(request) -> PythonSandbox:
    """With namespaces where the kernel allows them, and without."""
    return request.getfixturevalue(request.param)


def needs(sandbox: PythonSandbox, kind: str) -> PythonSandbox:
    if not sandbox.report[kind]:
        pytest.skip(f"this kernel does not cut programs off from its {kind}, and the report says so")
    return sandbox


def processes_with(text: str) -> list[str]:
    """Ids of the processes of this machine whose command line contains a text."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
        except OSError:  # it has just ended
            continue
        if text.encode() in command:
            found.append(folder.name)
    return found


def wait_until(holds, timeout_s: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


# What a program gets to see of its own.


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('a'); 6 * 7", "a\n42\n"),
        ("x = 1", "(no output; print what you want to see)\n"),
        ("", "(no output; print what you want to see)\n"),
        ("None", "(no output; print what you want to see)\n"),
        ("x = [1]\nx.append(2)\nx", "[1, 2]\n"),
        ("print('a', end='')", "a\n"),
        ("1 / 0", "ZeroDivisionError: division by zero (line 1)\n"),
        ("print('a')\ndef f():\n    raise KeyError('b')\nf()", "a\nKeyError: 'b' (line 3)\n"),
        ("raise ValueError", "ValueError (line 1)\n"),
        ("x = = 1", "SyntaxError: invalid syntax (line 1)\n"),
        ("import sys; sys.exit(0)", "(no output; print what you want to see)\n"),
        ("exit('bye')", "bye\n"),
        ("raise SystemExit(3)", "(the program ended with exit code 3)\n"),
        ("import sys; print('oops', file=sys.stderr)", "oops\n"),
        ("__name__", "'__main__'\n"),
        ("```python\nx = 6\nx * 7\n```", "42\n"),
        (">>> x = 6\n>>> x * 7\n42", "42\n"),
        ("    x = 6\n    x / 0", "ZeroDivisionError: division by zero (line 2)\n"),
        (
            "print('a')\nawait b",
            "SyntaxError: await works in async functions alone; put it in `async def main():` and "
            "call `asyncio.run(main())` (line 2)\n",
        ),
        (
            "!ls",
            "SyntaxError: this is Python and no shell; write it in Python, or call subprocess.run([...]) (line 1)\n",
        ),
        (
            "import types; plt = types.SimpleNamespace(show=int); plt.show()",
            "0\n(figures cannot be shown here; print the numbers that you want to see)\n",
        ),
        ("import atexit; _ = atexit.register(print, 'last'); print('first')", "first\nlast\n"),
    ],
)
def test_output_last_value_and_error_come_back_in_order(isolated, code, text):
    assert isolated.run(code) == text


def test_an_error_in_a_library_names_the_line_of_the_program_and_no_file(isolated):
    assert isolated.run("import json\n\njson.loads('{')").startswith("JSONDecodeError: Expecting property name")
    assert isolated.run("import json\n\njson.loads('{')").endswith("(line 3)\n")
    assert "/" not in isolated.run("import json\n\njson.loads('{')")


def test_the_program_waits_for_its_threads(sandbox):
    code = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()\n"
    assert sandbox.run(code + "print('early')") == "early\nlate\n"


def test_sets_of_strings_print_in_the_same_order_in_every_process():
    code = "{str(number) for number in range(50)}"
    with PythonSandbox(**LIMITS) as first, PythonSandbox(**LIMITS) as second:
        assert first.run(code) == second.run(code)


def test_output_that_is_no_utf8_is_replaced(sandbox):
    assert sandbox.run("import os; _ = os.write(1, b'a\\xffb')") == "a�b\n"
    assert sandbox.run("print('a\\ud800b')") == "a\\ud800b\n"


def test_nothing_of_an_earlier_call_is_left(sandbox):
    sandbox.run("import math, builtins\nx = 1\nmath.pi = 3\nbuiltins.print = None\nopen('note', 'w').write('x')")
    code = "import math, os\nprint('x' in globals(), math.pi > 3.1, os.listdir())"
    assert sandbox.run(code) == "False True []\n"


def test_preloaded_modules_are_there_at_once():
    with PythonSandbox(**LIMITS, preload=("shelve",)) as sandbox:
        assert sandbox.run("import sys; 'shelve' in sys.modules") == "True\n"


def test_a_module_that_cannot_be_preloaded_is_named():
    with (
        PythonSandbox(**LIMITS, preload=("no_such_module",)) as sandbox,
        pytest.raises(SandboxError, match="No module named 'no_such_module'"),
    ):
        sandbox.run("1")


# Limits.


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "x = 7 ** 7 ** 9",
        "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "import signal, time\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\ntime.sleep(60)",
        "try:\n    while True: pass\nfinally:\n    while True: pass",
    ],
    ids=["loop", "sleep", "huge-power", "regex", "stopped", "thread", "deaf", "finally"],
)
def test_a_program_without_end_is_stopped_at_its_deadline(hurried, code):
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="longer than 0.5 s"):
        hurried.run(code)
    assert time.monotonic() - start < 5.0


def test_cpu_time_is_limited():
    with (
        PythonSandbox(**LIMITS | {"timeout_s": 60.0}, cpu_s=1) as sandbox,
        pytest.raises(TimeoutError, match="more than 1 s of CPU time"),
    ):
        sandbox.run("while True: pass")


def test_a_memory_bomb_is_refused(sandbox):
    with pytest.raises(SandboxError, match="more than 256 MB of memory"):
        sandbox.run("x = bytearray(10 ** 10)")
    with pytest.raises(SandboxError, match="more than 256 MB of memory"):
        sandbox.run("x = []\nwhile True: x.append(bytes(10 ** 6))")


def test_endless_output_is_stopped(sandbox):
    with pytest.raises(SandboxError, match="printed more than 20000 bytes"):
        sandbox.run("while True: print('a' * 1000)")


def test_endless_output_of_a_child_is_stopped(sandbox):
    with pytest.raises(SandboxError, match="printed more than 20000 bytes"):
        sandbox.run("import os\nif os.fork() == 0:\n    while True: os.write(2, b'a' * 1000)\nos.wait()")


def test_a_huge_int_is_no_megabyte_of_digits(sandbox):
    assert sandbox.run("print(10 ** 10_000)").startswith("ValueError: Exceeds the limit (4300 digits)")


def test_deep_recursion_ends_with_an_error(sandbox):
    assert sandbox.run("def f(): return f()\nf()").startswith("RecursionError: maximum recursion depth exceeded")


def test_deep_recursion_without_a_limit_harms_nobody(sandbox):
    code = "import sys\nsys.setrecursionlimit(10 ** 9)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())"
    try:
        assert re.search("SIGSEGV|RecursionError", sandbox.run(code))
    except (SandboxError, TimeoutError):
        pass
    assert sandbox.run("1") == "1\n"


def test_a_crash_of_the_interpreter_is_reported(sandbox):
    assert sandbox.run("print('a')\nimport ctypes\nctypes.string_at(0)") == "a\n(the program was ended by SIGSEGV)\n"


def test_a_signal_without_a_name_is_reported_by_its_number(sandbox):
    assert sandbox.run("import os; os.kill(os.getpid(), 40)") == "(the program was ended by signal 40)\n"


def test_leaving_without_goodbye_keeps_the_output(sandbox):
    assert sandbox.run("import os\nprint('a')\nos._exit(3)") == "a\n(the program ended with exit code 3)\n"


def test_a_fork_bomb_is_contained(hurried):
    code = "import os, time\nfor _ in range(200):\n    try: os.fork()\n    except OSError: break\ntime.sleep(60)"
    with pytest.raises(TimeoutError):
        hurried.run(code)


def test_no_more_processes_start_than_are_allowed(sandbox):
    code = (
        "import os, time\nstarted = 0\ntry:\n    while started < 100:\n        if os.fork() == 0: time.sleep(60)\n"
        "        started += 1\nexcept OSError as error: print(type(error).__name__)\nprint(started)"
    )
    name, started = sandbox.run(code).split()
    assert name == "BlockingIOError" and int(started) <= 7


def test_no_more_threads_start_than_are_allowed(sandbox):
    code = "import threading, time\nfor _ in range(100):\n    threading.Thread(target=time.sleep, args=(0.2,)).start()"
    assert sandbox.run(code).startswith("RuntimeError: can't start new thread")


def test_the_limit_on_processes_is_one_per_call(isolated):
    needs(isolated, "processes")
    code = (
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0: time.sleep(0.5); os._exit(0)\ntime.sleep(0.5)\n1"
    )
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(isolated.run, [code] * 4)) == ["1\n"] * 4


def test_a_file_does_not_grow_beyond_its_limit(sandbox):
    assert re.match(r"OSError: \[Errno (27|28)\]", sandbox.run("open('big', 'wb').write(b'a' * 5_000_000)"))


def test_all_files_together_do_not_grow_beyond_the_limit(isolated):
    needs(isolated, "filesystem")
    code = "for number in range(10):\n    open(str(number), 'wb').write(b'a' * 1_000_000)"
    assert isolated.run(code).startswith("OSError: [Errno 28] No space left on device")


def test_open_files_are_limited(sandbox):
    assert sandbox.run("x = [open('/dev/null') for _ in range(1000)]").startswith("OSError: [Errno 24]")


# Secrets.


def test_the_environment_is_not_visible(isolated):
    text = isolated.run("import os\nprint(dict(os.environ))\nprint(open('/proc/self/environ').read())")
    assert SECRET not in text and "KEY" not in text and "TOKEN" not in text


def test_no_descriptor_is_inherited(sandbox):
    secret = tempfile.TemporaryFile()
    os.set_inheritable(secret.fileno(), True)
    code = "import os\nopen_ones = []\nfor fd in range(300):\n    try: os.fstat(fd); open_ones.append(fd)\n"
    with secret:
        assert sandbox.run(code + "    except OSError: pass\nopen_ones") == "[0, 1, 2]\n"


def test_standard_input_is_empty(sandbox):
    assert sandbox.run("input()").startswith("EOFError")
    assert sandbox.run("import sys; sys.stdin.read()") == "''\n"


def test_files_of_this_machine_are_not_readable(isolated, tmp_path):
    needs(isolated, "filesystem")
    (tmp_path / "secret").write_text(SECRET)
    for path in (
        tmp_path / "secret",
        "/etc/passwd",
        Path.home() / ".bashrc",
        Path(__file__),
        "/proc/1/root/etc/passwd",
    ):
        assert re.match("FileNotFoundError|PermissionError", isolated.run(f"open({str(path)!r}).read()"))


def test_a_symbolic_link_leads_nowhere_new(isolated):
    needs(isolated, "filesystem")
    code = "import os\nos.symlink('/proc/1/root/../../etc/passwd', 'link')\nopen('link').read()"
    assert re.match("FileNotFoundError|PermissionError", isolated.run(code))


def test_files_that_only_root_may_read_stay_secret_without_namespaces(limited, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("programs run under this process's account, since it is not root's")
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    assert limited.run(f"open({str(tmp_path / 'secret')!r}).read()").startswith("PermissionError")


# Ways out.


def test_nothing_outside_the_private_directory_can_be_written(sandbox):
    if not sandbox.report["filesystem"] and not sandbox.report["account"]:
        pytest.skip("programs may write what this account may, and the report says so")
    code = """
import os
for path in ("/", "/usr", "/usr/lib", "/etc", "/dev", "/proc", "/root", "/home", os.path.dirname(os.__file__)):
    try:
        open(path + "/trl-agentic-was-here", "w")
        print("wrote below", path)
    except OSError:
        pass
"""
    assert sandbox.run(code) == "(no output; print what you want to see)\n"


def test_the_private_directory_is_private_and_removed(sandbox):
    where = sandbox.run("import os\nopen('note', 'w').write('x')\nos.makedirs('deep/er')\nprint(os.getcwd())").strip()
    # "/sandbox" is in memory too: it stands in for /tmp where Python itself lies there.
    assert where.startswith(("/tmp", "/sandbox", tempfile.gettempdir()))
    assert where == "/tmp" or not Path(where).exists()
    assert not Path(where, "note").exists()


def test_a_python_below_tmp_is_not_hidden_by_the_private_directory(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as prefix:
        Path(prefix).chmod(0o755)
        Path(prefix, "library").touch()
        monkeypatch.setattr(sys, "exec_prefix", prefix)
        with PythonSandbox(**LIMITS) as sandbox:
            needs(sandbox, "filesystem")
            code = f"import os\nopen('note', 'w').close()\nprint(os.listdir({prefix!r}), os.listdir())"
            assert sandbox.run(code) == "['library'] ['note']\n"
            assert sandbox.run(f"open({prefix + '/more'!r}, 'w')").startswith("OSError: [Errno 30]")


def test_a_directory_that_denies_access_is_removed_too(limited):
    where = limited.run("import os\nos.makedirs('a/b')\nos.chmod('a', 0)\nprint(os.getcwd())").strip()
    assert not Path(where).exists()


def test_directories_nested_deeper_than_python_recurses_are_removed_too(limited):
    code = "import os\nprint(os.getcwd())\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    assert not Path(limited.run(code).strip()).exists()


def test_there_is_no_network(isolated):
    needs(isolated, "network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = isolated.run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)")
    assert text.startswith("OSError: [Errno 101] Network is unreachable")


def test_programs_do_not_share_a_network_namespace_where_they_could_meet(isolated):
    needs(isolated, "network")
    cookie = "socket.socket(socket.AF_UNIX).getsockopt(socket.SOL_SOCKET, 71, 8)"  # SO_NETNS_COOKIE
    code = f"import socket\nint.from_bytes({cookie}, 'little')"
    first = isolated.run(code)
    if "Protocol not available" in first:
        pytest.skip("kernels before 5.14 do not number their network namespaces")
    with isolated.session() as session, isolated.session() as other:
        numbers = [first, isolated.run(code), session.run(code), other.run(code)]
    assert len(set(map(int, numbers))) == 4


def test_abstract_sockets_of_this_machine_cannot_be_reached(isolated):
    needs(isolated, "network")
    name = f"\0trl-agentic-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        text = isolated.run(f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})")
    assert text.startswith("ConnectionRefusedError")


def test_other_processes_are_not_visible(isolated):
    needs(isolated, "processes")
    assert isolated.run("import os\nsorted(name for name in os.listdir('/proc') if name.isdigit())") == "['1', '2']\n"


def test_no_signal_reaches_another_process(sandbox):
    code = "import os, signal\ntry:\n    os.kill({pid}, signal.SIGKILL)\n    print('sent')\nexcept OSError: pass\n"
    if not sandbox.report["processes"] and not sandbox.report["account"]:
        pytest.skip("programs may signal what this account may, and the report says so")
    with subprocess.Popen(["sleep", "60"]) as victim:
        try:
            assert "sent" not in sandbox.run(code.format(pid=victim.pid))
            assert victim.poll() is None
        finally:
            victim.kill()


def test_the_process_that_watches_cannot_be_harmed(isolated):
    needs(isolated, "processes")
    code = """
import os, signal
for number in range(1, 65):
    try: os.kill(os.getppid(), number)
    except OSError: pass
for path in ("/proc/1/mem", "/proc/1/fd/3"):
    try: print(open(path, "r+b"))
    except OSError: pass
print("ended")
"""
    assert isolated.run(code) == "ended\n"


def test_the_process_that_watches_cannot_be_traced(isolated):
    needs(isolated, "processes")
    code = "import ctypes\nctypes.CDLL(None).ptrace(16, 1, 0, 0)"  # PTRACE_ATTACH
    assert isolated.run(code) == "-1\n"


def test_a_program_has_no_privileges(sandbox):
    status = dict(line.split(":\t", 1) for line in eval(sandbox.run("open('/proc/self/status').read()")).splitlines())
    assert [status[name].strip("0") for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [""] * 4
    assert status["NoNewPrivs"] == "1"


@pytest.mark.parametrize(
    "call",
    ["unshare(0x10000000)", "unshare(0x20000)", "mount(b'x', b'/usr', b'tmpfs', 0, None)", "umount2(b'/tmp', 2)",
     "chroot(b'/tmp')", "setuid(0)", "sethostname(b'x', 1)", "reboot(0)"],
)  # fmt: skip
def test_no_call_for_privileges_is_granted(isolated, call):
    needs(isolated, "processes")
    assert isolated.run(f"import ctypes\nctypes.CDLL(None).{call}") == "-1\n"


def test_a_limit_cannot_be_raised(sandbox):
    code = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))"
    assert sandbox.run(code).startswith("ValueError: not allowed to raise maximum limit")


def test_a_device_cannot_be_made(sandbox):
    assert sandbox.run("import os, stat\nos.mknod('disk', stat.S_IFBLK | 0o600, os.makedev(8, 0))").startswith(
        "PermissionError"
    )


def test_a_background_process_dies_with_the_call(sandbox):
    seconds = "4321.125" if sandbox.report["processes"] else "4321.25"
    code = (
        "import subprocess, sys\nquiet = dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.DEVNULL)\n"
        f"subprocess.Popen(['/bin/sleep', '{seconds}'], start_new_session=True, **quiet).pid > 0"
    )
    assert sandbox.run(code) == "True\n"
    assert wait_until(lambda: not processes_with(seconds))


def test_a_background_process_does_not_delay_the_answer(sandbox):
    start = time.monotonic()
    assert sandbox.run("import os, time\nif os.fork() == 0: time.sleep(60)\n'done'") == "'done'\n"
    assert time.monotonic() - start < 5.0


# More ways to use up what there is, or to be believed.


def test_a_zip_bomb_fills_no_more_than_the_disk_and_the_memory_of_the_call(isolated):
    needs(isolated, "filesystem")
    pack = "import io, zipfile\nbomb = io.BytesIO()\nwith zipfile.ZipFile(bomb, 'w', zipfile.ZIP_DEFLATED) as file:\n"
    pack += "    with file.open('x', 'w') as inner:\n        for _ in range(300): inner.write(bytes(10 ** 6))\n"
    assert re.match(r"OSError: \[Errno (27|28)\]", isolated.run(pack + "zipfile.ZipFile(bomb).extractall()"))
    with pytest.raises(SandboxError, match="more than 256 MB of memory"):
        isolated.run(pack + "zipfile.ZipFile(bomb).read('x')")


def test_a_pickle_is_text_to_whoever_called(sandbox, tmp_path):
    marker = tmp_path / "loaded"
    payload = (
        b"cbuiltins\nopen\n(V" + str(marker).encode() + b"\nVw\ntR."
    )  # opens a file for writing when it is loaded
    assert "cbuiltins" in sandbox.run(f"import os; _ = os.write(1, {payload!r})")
    assert not marker.exists()


def test_what_looks_like_a_reply_is_output(sandbox):
    forged = '{"reason": "timeout", "code": 0, "output": ""}'
    assert sandbox.run(f"print({forged!r})") == forged + "\n"


def test_a_loop_of_symbolic_links_ends_with_an_error(sandbox):
    code = "import os\nos.symlink('b', 'a')\nos.symlink('a', 'b')\nopen('a')"
    assert sandbox.run(code).startswith("OSError: [Errno 40]")


def test_many_small_files_are_limited(isolated):
    needs(isolated, "filesystem")
    assert isolated.run("for number in range(10_000): open(str(number), 'w').close()").startswith(
        "OSError: [Errno 28]"
    )


def test_the_kernel_s_settings_cannot_be_changed(sandbox):
    code = """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger",
             "/proc/1/oom_score_adj", "/proc/self/uid_map", "/sys/kernel/uevent_helper"):
    try:
        with open(path, "w") as file: file.write("1")
        print("wrote", path)
    except OSError:
        pass
"""
    if not sandbox.report["filesystem"] and not sandbox.report["account"]:
        pytest.skip("programs may write what this account may, and the report says so")
    assert sandbox.run(code) == "(no output; print what you want to see)\n"


def test_the_memory_of_the_kernel_and_of_others_cannot_be_read(isolated):
    needs(isolated, "processes")
    for path in ("/proc/kcore", "/dev/mem", "/dev/kmsg", "/proc/1/mem", "/proc/1/environ", "/proc/1/maps"):
        assert re.match("FileNotFoundError|PermissionError", isolated.run(f"open({path!r}, 'rb').read(1)"))


# Calls that no program needs.


def system_call(name: str, *arguments: str) -> str:
    """Code that makes a call by its number and shows the error."""
    number = NUMBERS[name][0 if platform.machine() == "x86_64" else 1]
    made = f"ctypes.CDLL(None, use_errno=True).syscall({', '.join([str(number), *arguments])})"
    return f"import ctypes, errno\nprint({made}, errno.errorcode.get(ctypes.get_errno()))"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ptrace", ["0", "0", "0", "0"]),  # ask to be traced, which needs no right at all
        ("process_vm_readv", ["1", "0", "0", "0", "0", "0"]),
        ("process_vm_writev", ["1", "0", "0", "0", "0", "0"]),
        ("bpf", ["0", "0", "0"]),
        ("perf_event_open", ["0", "0", "0", "0", "0"]),
        ("keyctl", ["0", "-3", "0", "0", "0"]),
        ("add_key", ["0", "0", "0", "0", "0"]),
        ("request_key", ["0", "0", "0", "0"]),
        ("userfaultfd", ["1"]),
        ("unshare", ["0"]),
        ("setns", ["0", "0"]),
        ("clone", ["0x10000011", "0", "0", "0", "0"]),
        ("mount", ["0", "0", "0", "0", "0"]),
        ("fsopen", ["b'tmpfs'", "0"]),
        ("open_tree", ["-100", "b'/'", "1"]),
        ("open_by_handle_at", ["0", "0", "0"]),
        ("name_to_handle_at", ["-100", "b'/'", "0", "0", "0"]),
        ("kexec_load", ["0", "0", "0", "0"]),
        ("init_module", ["0", "0", "0"]),
        ("finit_module", ["0", "0", "0"]),
        ("delete_module", ["0", "0"]),
        ("pidfd_getfd", ["0", "0", "0"]),
        ("kcmp", ["1", "1", "0", "0", "0"]),
        ("shmget", ["0", "4096", "0o1600"]),
        ("msgget", ["0", "0o1600"]),
        ("semget", ["0", "1", "0o1600"]),
        ("quotactl", ["0", "0", "0", "0"]),
        ("syslog", ["3", "0", "0"]),
        ("memfd_secret", ["0"]),
        ("vmsplice", ["0", "0", "0", "0"]),
        ("personality", ["0x0400000"]),
        ("setsockopt", ["0", "1", "26", "0", "0"]),  # SO_ATTACH_FILTER
        ("setsockopt", ["0", "1", "76", "0", "0"]),  # SO_PASSPIDFD
        ("fcntl", ["0", "1024", "1"]),  # F_SETLEASE
    ],
)
def test_a_call_that_no_program_needs_is_denied(sandbox, name, arguments):
    needs(sandbox, "seccomp")
    assert sandbox.run(system_call(name, *arguments)) == "-1 EPERM\n"


@pytest.mark.parametrize("replacement", ["io.StringIO()", "open(os.devnull, 'w')", "None"])
def test_an_error_is_shown_whatever_the_output_was_replaced_by(sandbox, replacement):
    code = f"import io, os, sys\nprint('before', end=' ')\nsys.stdout = sys.stderr = {replacement}\n1 / 0"
    assert sandbox.run(code) == "before ZeroDivisionError: division by zero (line 4)\n"


@pytest.mark.parametrize("error", ["ValueError", "SyntaxError", "KeyboardInterrupt"])
def test_an_error_that_cannot_be_shown_is_named(sandbox, error):
    code = f"x = 1\nclass Odd({error}):\n    def __str__(self): return 1 / 0\nraise Odd()"
    expected = "Odd: (its message cannot be shown) (line 4)\n"
    assert sandbox.run(code) == expected


@pytest.mark.parametrize("name", ["io_uring_setup", "clone3", "memfd_create"])
def test_a_call_that_libraries_can_do_without_is_unknown(sandbox, name):
    needs(sandbox, "seccomp")
    assert sandbox.run(system_call(name, "0", "0")) == "-1 ENOSYS\n"


def test_a_call_that_is_younger_than_the_table_is_unknown(sandbox):
    needs(sandbox, "seccomp")
    code = "import ctypes, errno\nctypes.CDLL(None, use_errno=True).syscall(470), errno.errorcode[ctypes.get_errno()]"
    assert sandbox.run(code) == "(-1, 'ENOSYS')\n"


@pytest.mark.parametrize("family", [16, 17, 38, 40], ids=["netlink", "packet", "alg", "vsock"])
def test_other_kinds_of_sockets_do_not_exist(sandbox, family):
    needs(sandbox, "seccomp")
    assert sandbox.run(f"import socket\nsocket.socket({family}, socket.SOCK_RAW)").startswith("OSError: [Errno 97]")


@pytest.mark.parametrize("address", ["'\\0abstract'", "'path'"])
def test_no_program_awaits_connections(sandbox, address):
    needs(sandbox, "seccomp")
    assert sandbox.run(f"import socket\nsocket.socket(socket.AF_UNIX).bind({address})").startswith("PermissionError")


@pytest.mark.parametrize("option", [16, 76], ids=["SO_PASSCRED", "SO_PASSPIDFD"])
def test_no_socket_gets_a_name_without_bind(sandbox, option):
    needs(sandbox, "seccomp")
    code = f"""
import socket
own = socket.socket(socket.AF_UNIX)
try: own.setsockopt(socket.SOL_SOCKET, {option}, 1)
except OSError as error: print(type(error).__name__)
try: own.connect("\\0nobody")
except OSError: pass
print(repr(own.getsockname()))
"""
    assert sandbox.run(code) == "PermissionError\n''\n"


def test_clients_may_set_sizes_and_times_of_their_sockets(sandbox):
    code = """
import socket, struct
client = socket.socket()
for option in (socket.SO_REUSEADDR, socket.SO_KEEPALIVE, socket.SO_SNDBUF, socket.SO_RCVBUF):
    client.setsockopt(socket.SOL_SOCKET, option, 1)
client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 1, 0))
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
"""
    assert sandbox.run(code) == "(no output; print what you want to see)\n"


def test_sockets_within_a_program_work(isolated):
    assert isolated.run("import socket\na, b = socket.socketpair()\n_ = a.send(b'x')\nb.recv(1)") == "b'x'\n"
    assert isolated.run("import asyncio\nasync def f(): return 1\nasyncio.run(f())") == "1\n"


def test_threads_and_processes_start_all_the_same(sandbox):
    code = "import subprocess, threading\nt = threading.Thread(target=print, args=(1,)); t.start(); t.join()\n"
    assert sandbox.run(code + "subprocess.run(['/bin/echo', '2'], stdout=1).returncode").split() == ["1", "2", "0"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines have one interface only")
@pytest.mark.parametrize(
    "code",
    [
        "import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)",
        # mov eax, 20; int 0x80; ret
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\n"
        "_ = m.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
    ],
    ids=["x32", "ia32"],
)
def test_calls_by_another_architecture_s_interface_end_the_program(sandbox, code):
    needs(sandbox, "seccomp")
    # A kernel without the 32-bit interface answers the interrupt with SIGSEGV.
    assert re.fullmatch(r"\(the program was ended by SIG(SYS|SEGV)\)\n", sandbox.run(code))


def naive_verdict(denials, number: int, arguments: list[int], machine: str) -> int | None:
    """What a table of denials says about a call: an error, or `None` if it is allowed."""
    if number > 467:
        return errno.ENOSYS
    for name, error, tests in denials:
        if NUMBERS[name][0 if machine == "x86_64" else 1] == number and all(
            {
                "==": arguments[position] & 0xFFFFFFFF == value,
                "!=": arguments[position] & 0xFFFFFFFF != value,
                "&": arguments[position] & value != 0,
                "type": arguments[position] & 0xFF00 == value,
                "high": arguments[position] >> 32 != 0,
            }[operation]
            for position, operation, value in tests
        ):
            return error
    return None


def interpret(program, architecture: int, number: int, arguments: list[int]) -> int:
    """What the kernel makes of a filter: the value that it returns."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, *arguments)
    accumulator, counter = 0, 0
    while True:
        code, if_true, if_false, value = program[counter]
        counter += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x54:
            accumulator &= value
        elif code == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value != 0}[code]
            counter += if_true if holds else if_false


CALL = st.sampled_from(sorted({number for pair in NUMBERS.values() for number in pair if number is not None}))
ARGUMENT = st.one_of(
    st.sampled_from(
        [
            0,
            1,
            2,
            4,
            6,
            8,
            10,
            15,
            16,
            17,
            67,
            76,
            1024,
            1040,
            0x20000,
            0x8901,
            0x8902,
            0xB70A,
            0x10000011,
            0xFFFFFFFF,
            1 << 32,
        ]
    ),
    st.integers(0, 2**64 - 1),
)


@pytest.mark.parametrize(("machine", "architecture"), [("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)])
@pytest.mark.parametrize("denials", [PROGRAM_DENIALS, SESSION_DENIALS], ids=["program", "session"])
@given(number=st.one_of(CALL, st.integers(0, 600)), arguments=st.lists(ARGUMENT, min_size=6, max_size=6))
@settings(max_examples=300, deadline=None)
def test_the_filter_says_what_the_table_says(denials, machine, architecture, number, arguments):
    verdict = interpret(assemble(denials, machine), architecture, number, arguments)
    error = naive_verdict(denials, number, arguments, machine)
    expected = 0x7FFF0000 if error is None else 0x7FC00000 if error == NOTIFY else 0x50000 | error
    assert verdict == expected
    assert interpret(assemble(denials, machine), 0x40000003, number, arguments) == 0x80000000  # another architecture


def test_every_jump_of_a_filter_is_short_enough():
    for machine in ("x86_64", "aarch64"):
        assert all(max(line[1], line[2]) < 256 for line in assemble(SESSION_DENIALS, machine))
        assert len(assemble(SESSION_DENIALS, machine)) < 4096


def test_where_the_kernel_takes_no_filter_the_report_says_so(monkeypatch, isolated):
    monkeypatch.setattr(PythonSandbox, "report", {**isolated.report, "seccomp": False})
    report = sandbox_report(isolated)
    assert report["seccomp"] is False
    assert report["summary"].endswith("They may make every system call: the kernel takes no filter here.")


# The long-lived process.


def test_many_threads_get_their_own_answers(sandbox):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(sandbox.run, [f"print({number})" for number in range(40)]))
    assert answers == [f"{number}\n" for number in range(40)]


def test_a_killed_process_is_reported_and_replaced():
    with PythonSandbox(**LIMITS) as sandbox:
        assert sandbox.run("1") == "1\n"
        first = sandbox._zygote.process
        killer = threading.Timer(0.5, os.killpg, (first.pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(SandboxError, match="was lost; run it again"):
            sandbox.run("import time; time.sleep(60)")
        killer.join()
        assert sandbox.run("2") == "2\n"
        assert sandbox._zygote.process is not first


def test_closing_ends_the_process_and_a_later_call_starts_another():
    sandbox = PythonSandbox(**LIMITS)
    sandbox.run("1")
    process = sandbox._zygote.process
    sandbox.close()
    sandbox.close()
    assert process.poll() is not None
    assert sandbox.run("1") == "1\n"
    sandbox.close()


def test_a_forgotten_sandbox_ends_its_process():
    sandbox = PythonSandbox(**LIMITS)
    sandbox.run("1")
    process = sandbox._zygote.process
    del sandbox
    assert process.poll() is not None


def test_no_descriptor_is_left_behind(sandbox):
    sandbox.run("1")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        sandbox.run("1")
    assert len(os.listdir("/proc/self/fd")) == before


def test_everything_ends_when_the_owner_is_killed():
    program = """
import os, signal, threading, time
from trl_agentic.tools import PythonSandbox
sandbox = PythonSandbox(timeout_s=60)
sandbox.run("1")
print(sandbox._zygote.process.pid, flush=True)
threading.Thread(target=sandbox.run, args=("import time; time.sleep(60)",), daemon=True).start()
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    session = int(ended.stdout)
    assert wait_until(lambda: not _session(session))


def _session(leader: int) -> list[str]:
    """Ids of the processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def test_a_fork_of_the_owner_starts_a_process_of_its_own():
    program = """
import os
from trl_agentic.tools.python import PythonSandbox
sandbox = PythonSandbox()
sandbox.run("1")
child = os.fork()
print(sandbox.run(f"'{'child' if child == 0 else 'parent'}'").strip(), flush=True)
if child: os.waitpid(child, 0); print(sandbox.run("'still here'").strip(), flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert sorted(ended.stdout.split("\n")) == ["", "'child'", "'parent'", "'still here'"]


# The report and the tool.


def test_the_report_says_what_is_enforced(isolated, limited):
    report = sandbox_report(isolated)
    assert {kind: report[kind] for kind in isolated.report} == isolated.report
    assert report["limits"] is True and report["kernel"] == os.uname().release
    open_ends = sandbox_report(limited)
    assert not (open_ends["network"] or open_ends["filesystem"] or open_ends["processes"])
    assert "NOT cut off from this machine's network, filesystem, processes" in open_ends["summary"]


@pytest.fixture
def logged(caplog) -> Callable[[], list[tuple[int, str]]]:
    """Level and text of what is logged about sandboxes, as if nothing had been said in this process yet."""
    log_once.cache_clear()
    caplog.set_level(logging.INFO, log_once.__module__)
    return lambda: [(level, text) for name, level, text in caplog.record_tuples if name == log_once.__module__]


def test_what_is_enforced_is_logged_once_in_a_process(logged):
    for _ in range(2):
        with PythonSandbox(**LIMITS) as sandbox:
            report = sandbox_report(sandbox)
    enforced = all(report[kind] for kind in ("network", "filesystem", "processes", "seccomp"))
    ((level, text),) = logged()
    assert level == (logging.INFO if enforced else logging.WARNING)
    assert text.startswith(f"Python sandbox: {report['summary']}")


def test_what_is_not_enforced_is_logged_as_a_warning(logged):
    for _ in range(2):
        with PythonSandbox(**LIMITS, namespaces=False) as sandbox, sandbox.session() as session:
            assert not session.isolated
    (programs, sessions) = logged()
    assert programs[0] == sessions[0] == logging.WARNING
    assert "NOT cut off from this machine's network, filesystem, processes" in programs[1]
    assert "the forks of a session are NOT kept apart from one another" in sessions[1]


def test_the_tool_is_named_python_and_has_a_schema():
    from transformers.utils import get_json_schema

    function = get_json_schema(make_python_tool(PythonSandbox()))["function"]
    assert function["name"] == "python"
    assert function["parameters"]["properties"]["code"]["type"] == "string"
    assert function["parameters"]["required"] == ["code"]


def test_exceeded_limits_are_counted_by_the_runtime():
    sandbox = PythonSandbox(**LIMITS | {"timeout_s": 2.0})
    with sandbox, ToolRuntime([make_python_tool(sandbox)], num_workers=2) as runtime:
        codes = ["6 * 7", "while True: pass", "x = bytearray(10 ** 10)", "1 / 0"]
        runtime.submit("turn", [ToolCall("python", {"code": code}) for code in codes])
        results = runtime.poll(wait_s=20.0)[0][1]
    assert [result.status for result in results] == [
        CallStatus.OK,
        CallStatus.TIMEOUT,
        CallStatus.ERROR,
        CallStatus.OK,
    ]
    assert results[1].content == "TimeoutError: the program ran longer than 2 s and was stopped"
    assert results[2].content == "SandboxError: the program used more than 256 MB of memory"


@pytest.mark.parametrize("setting", ["timeout_s", "memory_mb", "disk_mb", "max_output_bytes", "max_processes"])
def test_a_limit_must_be_positive(setting):
    with pytest.raises(ValueError, match="must be positive"):
        PythonSandbox(**{setting: 0})
