"""What one process writes to a memory file, another reads; closing frees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from rlvr.rollout.memory_file import MemoryFile, write_at


def test_another_process_reads_what_was_written_and_closing_frees_it() -> None:
    memory = MemoryFile()
    data = np.arange(70000, dtype=np.int32).view(np.uint8)
    write_at(memory.descriptor, data[:1000], 64)
    write_at(memory.descriptor, data[1000:], 1064)
    code = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
    read = subprocess.run([sys.executable, "-c", code, memory.path], capture_output=True, check=True).stdout
    assert read == bytes(64) + data.tobytes()
    assert num_open() == 1
    memory.close()
    assert num_open() == 0


def num_open() -> int:
    """Number of memory files that this process has open."""
    return sum("rlvr-weights" in str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink())
