"""`python forwarded_program.py SOCKET ARGUMENTS`: what the command of `forwarded_python` starts; it loads little."""

import json
import os
import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        program = json.dumps({"arguments": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)})
        socket.send_fds(connection, [b"\0"], [0, 1, 2])
        connection.sendall(program.encode() + b"\n")
        sys.exit(int(connection.makefile().readline() or 1))
