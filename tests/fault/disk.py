"""What a power loss leaves of a folder: made from the shim's log (disk.c) of what a service did to it.

A file's bytes are safe once the file was synced, its name once the folder was: nothing else is promised by POSIX.  All that was not synced may be lost, be
there in part (torn at a sector), or be there without what came before it.  `lose` keeps none of it, or with dice any part of it.

`broken` says which promise the service broke before the power went, whatever was lost: a commit was acknowledged whose log was not synced, a name was
given to bytes that were not, a version was announced whose files were not.
"""
import dataclasses
import os
import pathlib
import shutil
import struct

ENTRY = struct.Struct("<c3xiqq")
SECTOR = 512


@dataclasses.dataclass(eq=False)
class File:
    safe: bytearray = dataclasses.field(default_factory=bytearray)
    pending: list = dataclasses.field(default_factory=list)  # (offset, bytes) or (size, None): a truncation

    def sync(self):
        for change in self.pending:
            apply(self.safe, change)
        self.pending.clear()


@dataclasses.dataclass(eq=False)
class Folder:
    live: dict = dataclasses.field(default_factory=dict)  # name: node
    safe: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class NameChange:
    """In up to two folders at once: a rename is one change."""
    gone: tuple = None  # (folder, name)
    come: tuple = None  # (folder, name, node)

    def folders(self):
        return [place[0] for place in (self.gone, self.come) if place]

    def make(self, which):
        if self.gone:
            getattr(self.gone[0], which).pop(self.gone[1], None)
        if self.come:
            getattr(self.come[0], which)[self.come[1]] = self.come[2]


def apply(content, change):
    at, data = change
    if data is None:
        del content[at:]
        content.extend(bytes(at - len(content)))
        return
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


class Disk:
    def __init__(self, root, before=None):
        """before: a copy of what the folder held, safely, when the log began; None: nothing."""
        self.prefix = str(root)
        self.root = read_folder(pathlib.Path(before)) if before else Folder()
        self.names = []  # changes of names that no fsync of their folder has made safe
        self.open = {}  # descriptor: node
        self.broken = []
        self.syncs = 0

    def place(self, path):
        """The folder that a path lies in, and its name there.  (root, "") for the root itself."""
        parts = path[len(self.prefix) :].strip("/").split("/")
        folder = self.root
        for part in parts[:-1]:
            folder = folder.live[part]
        return folder, parts[-1]

    def node(self, path):
        folder, name = self.place(path)
        return folder.live.get(name) if name else self.root

    def change(self, made):
        made.make("live")
        self.names.append(made)

    def play(self, log):
        data = pathlib.Path(log).read_bytes()
        at = 0
        while at + ENTRY.size <= len(data):
            what, fd, where, length = ENTRY.unpack_from(data, at)
            body = data[at + ENTRY.size : at + ENTRY.size + length]
            at += ENTRY.size + length
            if len(body) == length:
                self.entry(what.decode(), fd, where, body)
        return self

    def entry(self, what, fd, where, body):
        if what in "oOT":
            self.opened(what, fd, body.decode())
        elif what == "c":
            self.open.pop(fd, None)
        elif what == "w":
            self.open[fd].pending.append((where, body))
        elif what == "t":
            self.open[fd].pending.append((where, None))
        elif what == "s":
            self.synced(self.open[fd])
        elif what == "r":
            self.renamed(*body.decode().split("\0"))
        elif what == "u":
            self.change(NameChange(gone=self.place(body.decode())))
        elif what == "m":
            self.change(NameChange(come=(*self.place(body.decode()), Folder())))
        elif what == "M":
            self.marked(body.decode())

    def opened(self, what, fd, path):
        node = self.node(path)
        if what == "O" or node is None:
            node = File()
            self.change(NameChange(come=(*self.place(path), node)))
        elif what == "T":
            node.pending.append((0, None))
        self.open[fd] = node

    def synced(self, node):
        self.syncs += 1
        if isinstance(node, File):
            node.sync()
            return
        for made in [made for made in self.names if node in made.folders()]:
            made.make("safe")
            self.names.remove(made)

    def renamed(self, source, target):
        node = self.node(source)
        if unsafe := list(self.unsafe(node, self.relative(target))):
            self.broken.append(f"{self.relative(source)} was renamed to {self.relative(target)} while {unsafe[0]} was not synced")
        self.change(NameChange(gone=self.place(source), come=(*self.place(target), node)))

    def relative(self, path):
        return path[len(self.prefix) :].strip("/")

    def unsafe(self, node, path=""):
        """What below a node is not on the disk yet."""
        if isinstance(node, File):
            if node.pending:
                yield path
            return
        for made in self.names:
            if made.come and made.come[0] is node and not made.come[1].startswith("."):
                yield f"the name {path}/{made.come[1]}".replace("the name /", "the name ")
        for name, child in node.live.items():
            if not name.startswith("."):  # a partial checkpoint has not got its name yet
                yield from self.unsafe(child, f"{path}/{name}")

    def marked(self, what):
        if what == "start":
            self.open.clear()
        elif what == "commit":
            self.broken += [f"a commit was acknowledged while {name} was not synced" for name, node in self.root.live.items() if name.endswith("-wal") and node.pending]
        elif what == "announce":
            self.broken += [f"a version was announced while {path.lstrip('/')} was not synced" for path in self.unsafe(self.root)]

    # ---- the loss ----

    def lose(self, dice=None):
        """Leaves what is safe; with dice, any part of the rest too."""
        for made in self.names:
            if dice and dice.random() < 0.5:
                made.make("safe")
        self.names.clear()
        self.lose_in(self.root, dice, set())

    def lose_in(self, folder, dice, seen):
        for node in folder.safe.values():
            if isinstance(node, Folder):
                self.lose_in(node, dice, seen)
            elif id(node) not in seen:
                seen.add(id(node))
                for change in node.pending if dice else []:
                    if dice.random() < 0.5:
                        apply(node.safe, torn(change, dice))

    def write(self, target):
        """Makes the folder so."""
        shutil.rmtree(target)
        write_folder(self.root, pathlib.Path(target))


def torn(change, dice):
    at, data = change
    if data is None or len(data) <= SECTOR or dice.random() < 0.5:
        return change
    return at, data[: dice.randrange(len(data) // SECTOR + 1) * SECTOR]


def read_folder(path):
    folder = Folder()
    for entry in path.iterdir():
        folder.live[entry.name] = read_folder(entry) if entry.is_dir() else File(bytearray(entry.read_bytes()))
    folder.safe.update(folder.live)
    return folder


def write_folder(folder, path):
    os.makedirs(path, exist_ok=True)
    for name, node in folder.safe.items():
        if isinstance(node, Folder):
            write_folder(node, path / name)
        else:
            (path / name).write_bytes(node.safe)
