#!/usr/bin/env python3
"""Many clients of NFS: each from an address of its own (127.77.x.y) mounts a share and asks for the attributes of its root ten times. Their
connections stay open until the end.   clients.py PORT PATH COUNT"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from nfs3 import Client  # noqa: E402

port, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
clients = [Client(port, path, f"127.77.{index // 250}.{index % 250 + 1}") for index in range(count)]
answered = sum(client.attributes() for client in clients for _ in range(10))
print(f"clients: {count} addresses, {answered} of {count * 10} requests answered")
sys.exit(answered != count * 10)
