#!/usr/bin/env python3
"""Changes programs in a directory by several ways, as root and as nobody, and prints what is left of their set-id bits and capabilities.

  privileges.py DIRECTORY
"""
import os, sys

# VFS_CAP_REVISION_2, CAP_NET_RAW permitted. Linux: include/uapi/linux/capability.h
CAPABILITY = bytes.fromhex("0000000200200000000000000000000000000000")


def write(path):
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"x", 0)
    os.pwrite(fd, b"y", 1)


WAYS = {
    "write": write,
    "truncate": lambda path: os.truncate(path, 1),
    "open": lambda path: os.open(path, os.O_WRONLY | os.O_TRUNC),
    "fallocate": lambda path: os.posix_fallocate(os.open(path, os.O_WRONLY), 0, 100),
}


def run_as(uid, way, path):
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        way(path)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def program(path):
    with open(path, "w") as file:
        file.write("content")
    os.chmod(path, 0o6777)
    os.setxattr(path, "security.capability", CAPABILITY)
    os.stat(path)
    return path


def show(path, *what):
    print(*what, oct(os.stat(path).st_mode & 0o7777), os.listxattr(path))


directory = sys.argv[1]
os.chmod(directory, 0o777)
for name, way in WAYS.items():
    for uid in (0, 65534):
        path = program(f"{directory}/{name}-{uid}")
        run_as(uid, way, path)
        show(path, name, uid)
path = program(directory + "/chown")
os.chown(path, 5, 5)
show(path, "chown")
