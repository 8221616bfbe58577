"""What `make demo` and `make deps` show before the demo runs: packages and files, while they are installed and compiled, on a terminal and in a log."""
import os
import pty
import subprocess

import pytest

from harness import ROOT

PREPARE = ROOT / "deploy/demo/prepare"

MAKE = """#!/bin/bash
[[ " $* " == *" -n "* ]] && dry=1
for file in one two; do
  echo "gcc -O2 -c $file.c -o build/$file.o"
  [ "$dry" ] && continue
  [ $file = one ] && read -r _ <"$GATE"
  [ "$FAILS" ] && echo "$file.c:1: error: not C" >&2 && exit 2
done
exit 0
"""
DPKG_QUERY = """#!/bin/bash
[ "${@: -1}" = there ] && echo 'install ok installed'
"""
APT_GET = """#!/bin/bash
echo "apt-get $*"
[[ " $* " == *" update "* ]] && exit 0
for word; do [[ $word == APT::Status-Fd=* ]] && account=${word#*=}; done
echo 'pmstatus:missing:40.0000:Unpacking missing (amd64)' >&"$account"
read -r _ <"$GATE"
[ "$FAILS" ] && echo 'E: it broke' >&2 && exit 100
(eval "exec $account>&-"; echo "a package's script says so") # as apt does
"""


@pytest.fixture
def stage(tmp_path):
    """Make, apt-get and dpkg-query as they behave, which go on when the gate is opened."""
    for name, text in (("make", MAKE), ("apt-get", APT_GET), ("dpkg-query", DPKG_QUERY), ("sudo", '#!/bin/bash\nexec "$@"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    os.mkfifo(tmp_path / "gate")
    return tmp_path


class Shown:
    """prepare, followed; terminal: what it writes to is one."""

    def __init__(self, stage, *args, terminal=False, fails=False):
        environment = {**os.environ, "PATH": f"{stage}:{os.environ['PATH']}", "MAKE": "make", "GATE": str(stage / "gate"), "FAILS": "1" if fails else ""}
        self.gate = stage / "gate"
        ours, theirs = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen([PREPARE, *map(str, args)], stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self.fd = ours
        self.text = ""

    def until(self, wanted):
        while wanted not in self.text:
            try:
                piece = os.read(self.fd, 4096)
            except OSError:  # a terminal's end
                piece = b""
            assert piece, f"ended without {wanted!r}: {self.text}"
            self.text += piece.decode()

    def end(self):
        """Opens the gate; the exit status."""
        self.gate.write_text("on\n")
        while True:
            try:
                piece = os.read(self.fd, 4096)
            except OSError:
                break
            if not piece:
                break
            self.text += piece.decode()
        os.close(self.fd)
        return self.process.wait(20)


@pytest.mark.parametrize("terminal", [False, True], ids=["log", "terminal"])
def test_a_build_says_how_far_it_is_while_it_runs(stage, terminal):
    shown = Shown(stage, "build", stage / "build/log", "all", terminal=terminal)
    shown.until("building: 2 files to compile")
    shown.until("building: 1 of 2 files, ")
    assert shown.end() == 0
    assert "building: done in" in shown.text
    assert ("\r" in shown.text and "\x1b" in shown.text) == terminal  # no control characters in a log


@pytest.mark.parametrize("terminal", [False, True], ids=["log", "terminal"])
def test_packages_are_named_while_they_are_installed(stage, terminal):
    shown = Shown(stage, "packages", stage / "log", "there", "missing", terminal=terminal)
    shown.until("packages: installing 1 of 2: missing")
    shown.until("packages: installing, 40 %, " if terminal else "packages: reading the lists")
    assert shown.end() == 0
    assert "packages: installed in" in shown.text
    assert ("\x1b" in shown.text) == terminal
    log = (stage / "log").read_text()
    assert "apt-get -q" in log and "a package's script says so" in log


@pytest.mark.parametrize(("args", "said"), [(("build", "all"), "one.c:1: error: not C"), (("packages", "missing"), "E: it broke")])
def test_a_failure_shows_the_end_of_the_log(stage, args, said):
    shown = Shown(stage, args[0], stage / "log", *args[1:], fails=True)
    assert shown.end() == 1
    assert said in shown.text and str(stage / "log") in shown.text


def test_nothing_is_installed_where_nothing_is_missing(stage):
    assert subprocess.run([PREPARE, "packages", stage / "log", "there"], capture_output=True, text=True, env={**os.environ, "PATH": f"{stage}:{os.environ['PATH']}"}).stdout == "packages: all 1 are installed\n"
