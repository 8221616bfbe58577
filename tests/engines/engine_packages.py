"""Installs a server of others into a folder of its own below build/, by a pinned version."""
import pathlib
import re
import shutil
import subprocess
import sys

BUILD = pathlib.Path(__file__).resolve().parents[2] / "build"


def installed(name, wanted, package, left_out, also=(), finish=lambda about: None):
    """build/NAME/bin, with what `wanted` says; installed unless it is there.

    package: as pip names it, with its version.  left_out: a regular expression of what it needs and does without; also: what it gets in that place.
    finish: is called at the end with the folder of the package's own description.
    """
    venv = BUILD / name
    stamp = venv / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return venv / "bin"

    def pip(*args):
        subprocess.run([venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *args], check=True)

    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip("--no-deps", package)
    (about,) = venv.glob(f"lib/python3*/site-packages/{package.split('==')[0].replace('-', '_')}-*.dist-info")
    needs = re.findall(r"^Requires-Dist: (.*)$", (about / "METADATA").read_text(), re.MULTILINE)
    requirements = venv / "requirements.txt"
    requirements.write_text("\n".join([*(need for need in needs if "extra ==" not in need and not re.match(left_out, need)), *also]) + "\n")
    pip("-r", requirements)
    finish(about)
    stamp.write_text(wanted)
    return venv / "bin"
