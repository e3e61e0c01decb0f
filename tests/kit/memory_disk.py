"""Where tests put disks that need not survive: memory, if there is enough of it. A container has 64 MB of /dev/shm by default."""

import os
import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_MIN = 1024**3  # several workers at once, each with the queues of some nodes


def place_in_memory() -> Path | None:
    """`None`: none, or too small; `tempfile` then takes the place of temporary files."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM_MIN:
        return None
    return MEMORY
