"""What the demos in Python need of a place of their own: an environment that the caller's services have no part in, and a folder."""
import fcntl
import os
import shutil
import signal
import sys


def set_apart(demo):
    """All here talks plain http on the loopback address and keeps its own curves, whatever the caller's services, command line and proxies are told; and what ends this ends its services."""
    for name in list(os.environ):
        if name.startswith(("LEASEHOLD_TLS_", "LEASEHOLD_TRACK")) or name in ("LEASEHOLD_AUTH_TOKEN", "LEASEHOLD_TOKEN_DIR", "LEASEHOLD_BIND", "LEASEHOLD_ADVERTISE_URL"):
            del os.environ[name]
    os.environ["no_proxy"] = "127.0.0.1"
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(f"{demo}: interrupted, stopping the services"))


def take_folder(demo, out):
    """Empties the folder, which must be a demo's or new, and which no other demo works in while this process lives."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()) and not (out / "logs").is_dir():
        sys.exit(f"{demo}: OUT would be emptied, and {out} holds other files than a demo's: name another folder")
    try:
        fcntl.flock(os.open(out, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"{demo}: another demo works in {out}: end it, or name another folder by OUT")
    for path in out.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
