#!/usr/bin/env python3
"""A reward server for code: runs a completion's Python against the tests of its line, in a locked-down child.  Standard library only, Linux.

    deploy/rewards/code_server.py --port 9000 [--jobs 4]
    "verifier": {"kind": "http", "server": {"url": "http://127.0.0.1:9000/", "label": "line"}}

The line brings the tests: {"prompt": ..., "tests": ["assert add(1, 2) == 3", ...]} are run after the code, in its process; {"tests": [{"input": "1 2", "output": "3"}]}
are what the program prints for what it reads.  The code is the completion's last ```python block, else all of it.  The score is the share of tests that pass, each
in a child of its own.

The child is a fresh `python3 -I -S` in an empty folder, without the environment, and with:
  - new user, network, mount, pid and ipc namespaces where the kernel grants them, so that there is no network, no /proc, and no other process to see or signal;
    all that it started ends with it.  Where the kernel does not, the server refuses to start unless --without-namespaces is given, which cuts off none of these
  - limits on CPU time, memory, file size, open files and processes, and on time by the clock
  - no_new_privs, so that no set-user-id program helps it out

What it does not do: files that this server may read, the child may read.  A test in the code's own process can be fooled by code that looks into its frames; what a
program prints cannot.  And it is no wall against an exploit for the kernel.  Run it as a user of its own, in a container or a virtual machine, where that matters.
"""
import concurrent.futures
import contextlib
import ctypes
import json
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import tempfile

import reward_server

CPU_SECONDS, WALL_SECONDS = 2, 5
MEMORY_BYTES = 512 << 20
FILE_BYTES = 1 << 20
TESTS_MAX, SOURCE_BYTES_MAX = 64, 1 << 20
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG = 38, 1
MS_REC, MS_PRIVATE = 0x4000, 0x40000
BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.S)
LIBC = ctypes.CDLL(None, use_errno=True)

# The child: the first process stays outside of the new pid namespace, and ends the one in it, with all that it started, when its time is over.
RUNNER = """
import os, signal, sys
kind, write, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
child = os.fork()
if child:
    os.close(write)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(seconds)
    while True:
        try:
            status = os.waitpid(child, 0)[1]
            break
        except InterruptedError:
            pass
    os._exit(0 if status == 0 else 1)
def run(name, space):
    exec(compile(open(name).read(), name, "exec"), space)
def main(write):
    word = open("word").read()
    os.unlink("word")
    del sys.argv[1:]
    space = {"__name__": "__main__" if kind == "program" else "__solution__"}
    run("solution", space)
    if kind == "assertion":
        run("test", space)
        os.write(write, word.encode())
        os._exit(0)
main(write)
"""


def lock_down(namespaces):
    """In the child, between fork and exec."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()
    if namespaces:
        if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC) != 0:
            os._exit(3)
        if LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0 or LIBC.mount(b"none", b"/proc", b"tmpfs", 0, b"size=4k") != 0:
            os._exit(3)
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        os._exit(3)
    for what, limit in ((resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, FILE_BYTES),
                        (resource.RLIMIT_NOFILE, 32), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, 256)):
        resource.setrlimit(what, (limit, limit))


def write_text(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8", errors="replace") as file:
        file.write(text)


def run_child(folder, kind, namespaces):
    """(did it end well, what it said): a word that it was told says that an assertion was reached and held."""
    read, write = os.pipe()
    try:
        with open(os.path.join(folder, "input")) as given, open(os.path.join(folder, "output"), "w") as printed:
            process = subprocess.Popen([sys.executable, "-I", "-S", "-c", RUNNER, kind, str(write), str(WALL_SECONDS)], cwd=folder, env={}, stdin=given, stdout=printed,
                                       stderr=subprocess.DEVNULL, pass_fds=(write,), preexec_fn=lambda: lock_down(namespaces))
        os.close(write)
        write = -1
        try:
            status = process.wait(WALL_SECONDS + 2)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.set_blocking(read, False)
        said = b""
        with contextlib.suppress(BlockingIOError):
            said = os.read(read, 64)
        return status == 0, said.decode(errors="replace")
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


def passes(code, test, namespaces):
    """Does the code pass one test?"""
    program = isinstance(test, dict)
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        write_text(folder, "solution", code)
        write_text(folder, "test", "" if program else test)
        write_text(folder, "word", word)
        write_text(folder, "input", str(test.get("input", "")) if program else "")
        fine, said = run_child(folder, "program" if program else "assertion", namespaces)
        if not program:
            return fine and said == word
        with open(os.path.join(folder, "output"), encoding="utf-8", errors="replace") as file:
            return fine and file.read().split() == str(test["output"]).split()


def code_of(response):
    blocks = BLOCK.findall(response)
    return blocks[-1] if blocks else response


class Tests:
    def __init__(self, jobs, namespaces):
        self.namespaces = namespaces
        self.jobs = concurrent.futures.ThreadPoolExecutor(jobs)

    def score(self, prompt, response, label):
        tests = json.loads(label)["tests"]
        code = code_of(response)
        if not isinstance(tests, list) or not 0 < len(tests) <= TESTS_MAX or not all(isinstance(test, str) or "output" in test for test in tests):
            raise ValueError(f"a line's `tests` must be 1 to {TESTS_MAX} texts, or objects with `input` and `output`")
        if len(code.encode(errors="replace")) > SOURCE_BYTES_MAX:
            return 0.0
        return sum(self.jobs.map(lambda test: passes(code, test, self.namespaces), tests)) / len(tests)


def main():
    options = reward_server.parser(__doc__)
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="children at once")
    options.add_argument("--without-namespaces", action="store_true", help="run children although they keep the network")
    arguments = options.parse_args()
    namespaces = not arguments.without_namespaces
    if namespaces and not passes("", "pass", True):
        sys.exit("code_server: this kernel grants no user namespaces (kernel.unprivileged_userns_clone, user.max_user_namespaces, or the container's seccomp profile); "
                 "grant them, or pass --without-namespaces and cut the network off by other means")
    if not passes("", "pass", namespaces):
        sys.exit("code_server: a child that does nothing does not pass")
    reward_server.serve(Tests(arguments.jobs, namespaces).score, arguments)


if __name__ == "__main__":
    main()
