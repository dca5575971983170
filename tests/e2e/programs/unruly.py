"""serving.py with bad manners: `unruly.py PORT MANNERS FILE`.

forks     a child of its own serves, and a grandchild does nothing for an hour
stubborn  SIGTERM is ignored
crashes   every third start, counted in FILE, ends with exit code 3 before it listens
"""

import os
import runpy
import signal
import sys
import time

PORT, MANNERS, FILE = sys.argv[1:4]


def main() -> None:
    if MANNERS == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif MANNERS == "crashes":
        with open(FILE, "ab") as file:
            file.write(b".")
            starts = file.tell()
        if starts % 3 == 0:
            sys.exit(3)
    elif MANNERS == "forks":
        if os.fork():
            os.wait()
            sys.exit(0)
        if not os.fork():
            time.sleep(3600)
    sys.argv[1:] = [PORT]
    runpy.run_path(os.path.join(os.path.dirname(__file__), "serving.py"))


main()
