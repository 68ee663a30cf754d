#!/usr/bin/env python3
"""A client of NFSv3 by libnfs that holds a file open while its server is replaced by another.

held_file.py URL PATH: opens PATH below URL, says "open", waits for a line, reads all of the file by the handle that it has, writes " and on" behind
it, and prints what it read."""
import ctypes
import os
import sys

nfs = ctypes.CDLL("libnfs.so.13")
POINTER, WORD = ctypes.c_void_p, ctypes.c_uint64
for name, result, arguments in [
    ("nfs_init_context", POINTER, []),
    ("nfs_get_error", ctypes.c_char_p, [POINTER]),
    ("nfs_parse_url_dir", POINTER, [POINTER, ctypes.c_char_p]),
    ("nfs_mount", ctypes.c_int, [POINTER, ctypes.c_char_p, ctypes.c_char_p]),
    ("nfs_open", ctypes.c_int, [POINTER, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(POINTER)]),
    ("nfs_pread", ctypes.c_int, [POINTER, POINTER, WORD, WORD, ctypes.c_char_p]),
    ("nfs_pwrite", ctypes.c_int, [POINTER, POINTER, WORD, WORD, ctypes.c_char_p]),
    ("nfs_fsync", ctypes.c_int, [POINTER, POINTER]),
]:
    function = getattr(nfs, name)
    function.restype, function.argtypes = result, arguments


class Url(ctypes.Structure):
    _fields_ = [("server", ctypes.c_char_p), ("path", ctypes.c_char_p), ("file", ctypes.c_char_p)]


context = nfs.nfs_init_context()


def done(result):
    if result is None or result < 0:
        sys.exit(f"libnfs: {nfs.nfs_get_error(context)}")
    return result


url = Url.from_address(done(nfs.nfs_parse_url_dir(context, sys.argv[1].encode())))
done(nfs.nfs_mount(context, url.server, url.path))
file = POINTER()
done(nfs.nfs_open(context, sys.argv[2].encode(), os.O_RDWR, ctypes.byref(file)))
print("open", flush=True)
sys.stdin.readline()
buffer = ctypes.create_string_buffer(1 << 16)
count = done(nfs.nfs_pread(context, file, 0, len(buffer), buffer))
more = b" and on"
done(nfs.nfs_pwrite(context, file, count, len(more), more))
done(nfs.nfs_fsync(context, file))
print(buffer.raw[:count].decode(), flush=True)
