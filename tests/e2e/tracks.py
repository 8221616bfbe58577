"""Reads what the coordinator writes for trackers, by the formats' definitions and without their packages."""
import json
import pathlib
import struct

CRC_TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    CRC_TABLE.append(byte)


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def lines(folder):
    text = (pathlib.Path(folder) / "metrics.jsonl").read_text()
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def event_file(folder):
    (path,) = pathlib.Path(folder).glob("events.out.tfevents.*")
    return path


def records(data):
    """The records of a TensorBoard file; every byte of it must be of a whole one."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked_crc32c(data[at : at + 8]), at
        record = data[at + 12 : at + 12 + length]
        assert len(record) == length and struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(record), at
        yield record
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(message):
    """Number and content of a protobuf message's fields."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(message, at)
        else:
            length, at = {1: (8, at), 5: (4, at)}.get(kind) or varint(message, at)
            value, at = message[at : at + length], at + length
        yield key >> 3, value


def events(folder):
    """(step, wall time, {tag: value}) of every event behind the first, which names the file's version."""
    first, *rest = records(event_file(folder).read_bytes())
    assert dict(fields(first))[3] == b"brain.Event:2"
    for record in rest:
        event = dict(fields(record))
        values = {}
        for number, value in fields(event[5]):
            pair = dict(fields(value))
            assert number == 1 and pair[1].decode() not in values
            values[pair[1].decode()] = struct.unpack("<f", pair[2])[0]
        yield event.get(2, 0), struct.unpack("<d", event[1])[0], values


def fragments(folder):
    """The records in Trackio's inbox, by their ids, in the order of the files' names."""
    return [json.loads(line) for path in sorted(pathlib.Path(folder).glob("inbox/*/*.jsonl")) for line in path.read_text().splitlines()]
