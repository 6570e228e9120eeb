"""`python -m supervisor` is the command `supervisor`, and imports from the same places."""

import os
import sys

from supervisor import __file__ as own_file
from supervisor.cli import main

if __name__ == "__main__":
    # Python has put the current directory in front, which is needed only if supervisor itself is there.
    if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(own_file)):
        del sys.path[0]
    main()
