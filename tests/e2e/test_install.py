"""What `make install` leaves: programs, a manual page for each with every flag of it, and units that systemd takes."""
import re
import shutil
import subprocess

import pytest

from harness import BIN, ROOT

PROGRAMS = ("coordinator", "generation-server", "leasehold", "rollout-agent", "trainer-server")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a root")
    subprocess.run(["make", "-s", "install", f"DESTDIR={folder}", "PREFIX=/opt/leasehold"], cwd=ROOT, check=True, timeout=120, umask=0o077)
    return folder / "opt/leasehold"


def test_what_root_installs_can_be_read_by_all_whatever_its_umask(prefix):
    modes = {path.relative_to(prefix).parts[0]: path.stat().st_mode & 0o777 for path in prefix.rglob("*") if path.is_file()}
    assert modes == {"bin": 0o755, "share": 0o644, "lib": 0o644}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_page_has_every_flag(prefix, program):
    page = (prefix / f"share/man/man8/{program}.8").read_text()
    help_ = subprocess.run([prefix / "bin" / program, "--help"], capture_output=True, text=True, check=True).stdout
    said = page.replace("\\-", "-")
    for flag in re.findall(r"^  (--[a-z0-9-]+)", help_, re.M):
        assert re.search(rf"^\.B {flag}\b", said, re.M), flag
    for variable in re.findall(r"variable (\w+)", help_):
        assert f"(variable {variable}," in said, variable
    assert ".SH NAME" in page and f"{program} \\- " in page.replace(program.replace("-", "\\-"), program)
    if shutil.which("groff"):
        made = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=page, capture_output=True, text=True, check=False)
        assert made.returncode == 0 and made.stderr == ""


def test_units_run_what_is_installed_with_variables_that_exist(prefix):
    units = sorted((prefix / "lib/systemd/system").iterdir())
    assert [unit.name for unit in units] == ["leasehold-coordinator.service", "leasehold-generation-server@.service", "leasehold-preprocessor@.service", "leasehold-rollout-agent@.service", "leasehold-trainer-server.service"]
    for unit in units:
        text = unit.read_text()
        (program,) = re.findall(r"^ExecStart=/opt/leasehold/bin/(\S+)$", text, re.M)
        help_ = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, check=True).stdout
        known = set(re.findall(r"variable (\w+)", help_))
        assert set(re.findall(r"LEASEHOLD_[A-Z_]*[A-Z]\b", text)) <= known | {"LEASEHOLD"}, unit.name


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here")
def test_systemd_takes_the_units(prefix, tmp_path):
    (tmp_path / "root").symlink_to(prefix)  # whose own path has a space
    for unit in (prefix / "lib/systemd/system").iterdir():
        text = unit.read_text().replace("/opt/leasehold/", f"{tmp_path}/root/")
        name = unit.name.replace("@.", "@1.")
        (tmp_path / unit.name).write_text(text)
        made = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / name if "@" not in unit.name else tmp_path / unit.name], capture_output=True, text=True, check=False)
        assert unit.name not in made.stderr and name not in made.stderr, made.stderr
