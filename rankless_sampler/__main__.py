"""``python -m rankless_sampler`` is the `rankless` command."""

import sys

from rankless_sampler.cli import main

if __name__ == "__main__":
    sys.exit(main())
