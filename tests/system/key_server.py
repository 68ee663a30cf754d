"""Serves what lies in the working directory as the judge of keys behind https: Python's own server, with TLS by OpenSSL.

key_server.py PORT_FILE [CERTIFICATE KEY [CLIENT_CA]]

Port 0 is chosen by the system and written to PORT_FILE when the server listens. Beside the files it answers to a few addresses as
servers of all kinds do.
"""

import http.server
import os
import ssl
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        what = self.path.partition("?")[0]
        if what in ("/moved", "/down", "/circle"):
            self.send_response(302)
            to = {"/moved": "/pass.key", "/down": "http://localhost/pass.key"}
            self.send_header("Location", to.get(what, "/circle"))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif what == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (b"a passph", b"rase\n", b""):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        elif what == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 65536)
            except OSError:
                self.close_connection = True
        elif what == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"a passphrase\n")
            self.close_connection = True
        else:
            super().do_GET()


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    if len(sys.argv) > 4:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(sys.argv[4])
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(server.server_port))
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
