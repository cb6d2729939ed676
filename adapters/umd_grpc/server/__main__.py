"""`python -m umd_grpc.server`: the server without the command line's extra."""

import sys

from umd_grpc.server.app import main

sys.exit(main())
