"""A read-only FUSE volume that does not tell upper case from lower, for tests: `python folding.py MOUNTPOINT`.

It holds `.env`, `private/k`, `.git/config` and `readme`. It speaks the kernel's protocol itself, and needs root.
"""

import ctypes
import errno
import os
import stat
import struct
import sys

FILES = {1: ("", None), 2: (".env", b"SECRET=canary\n"), 3: ("private", None), 4: ("k", b"KEY canary\n")}
FILES |= {5: (".git", None), 6: ("config", b"[core]\n"), 7: ("README", b"hello\n")}
PARENTS = {1: 1, 2: 1, 3: 1, 4: 3, 5: 1, 6: 5, 7: 1}
FORGET, BATCH_FORGET, INTERRUPT, DESTROY = 2, 42, 36, 38


def attributes(node: int) -> bytes:
    content = FILES[node][1]
    mode = stat.S_IFDIR | 0o755 if content is None else stat.S_IFREG | 0o644
    size = len(content or b"")
    return struct.pack("<6Q10I", node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def listing(node: int, offset: int) -> bytes:
    entries = [(n, own.encode()) for n, (own, _) in FILES.items() if PARENTS[n] == node and n != 1]
    out = b""
    for at, (child, name) in list(enumerate(entries, 1))[offset:]:
        kind = stat.S_IFMT(struct.unpack_from("<I", attributes(child), 60)[0]) >> 12
        out += struct.pack("<2Q2I", child, at, len(name), kind) + name + b"\0" * (-len(name) % 8)
    return out


def answer(opcode: int, node: int, body: bytes) -> bytes | int:
    match opcode:
        case 26:  # INIT
            return struct.pack("<4I2H2I2HI7I", 7, 31, 65536, 0, 16, 12, 4096, 1, 0, 0, 0, *[0] * 7)
        case 1:  # LOOKUP
            name = body.rstrip(b"\0").decode().lower()
            found = [n for n, (own, _) in FILES.items() if PARENTS[n] == node and n != 1 and own.lower() == name]
            if not found:
                return -errno.ENOENT
            return struct.pack("<4Q2I", found[0], 0, 0, 0, 0, 0) + attributes(found[0])
        case 3:  # GETATTR
            return struct.pack("<Q2I", 0, 0, 0) + attributes(node)
        case 14 | 27:  # OPEN, OPENDIR
            return struct.pack("<Q2I", 0, 0, 0)
        case 15:  # READ
            _, offset, size = struct.unpack_from("<2QI", body)
            return (FILES[node][1] or b"")[offset : offset + size]
        case 28:  # READDIR
            return listing(node, struct.unpack_from("<2Q", body)[1])
        case 17:  # STATFS
            return struct.pack("<5Q4I6I", 1, 1, 1, 1, 1, 4096, 255, 4096, 0, *[0] * 6)
        case 18 | 29 | 25 | 34:  # RELEASE, RELEASEDIR, FLUSH, ACCESS
            return b""
        case _:
            return -errno.ENOSYS


def main(target: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"folding", target.encode(), b"fuse", ctypes.c_ulong(0), options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    print("mounted", flush=True)
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError:  # unmounted
            return
        _, opcode, unique, node = struct.unpack_from("<2I2Q", request)
        if opcode in {FORGET, BATCH_FORGET, INTERRUPT, DESTROY}:
            continue
        said = answer(opcode, node, request[40:])
        data, error = (b"", said) if isinstance(said, int) else (said, 0)
        os.write(device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)


if __name__ == "__main__":
    main(sys.argv[1])
