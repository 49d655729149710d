"""Child processes of the tests of disks, and the faults of their disks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("lmdb_child.py")

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int armed(const char *name) { const char *path = getenv(name); return path && access(path, F_OK) == 0; }
static int hangs(int fd) {
    char link[64], path[4096];
    const char *disk = getenv("EBLA_HANG_DISK");
    if (!disk) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return strstr(path, disk) != NULL;
}
int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    if (armed("EBLA_FAIL_SYNC")) { errno = EIO; return -1; }
    while (armed("EBLA_HANG_SYNC") && hangs(fd)) usleep(1000);
    return real(fd);
}
"""


class Child:
    """One child process, with the lines of its output."""

    program: tuple[str, ...] = (str(CHILD),)

    def __init__(self, *words: object, prefix: tuple[str, ...] = (), **environment: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *self.program, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            text=True,
        )

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        return (line.strip() for line in self.process.stdout)

    def line(self) -> str:
        return next(self.lines())

    def ask(self, line: str) -> str:
        """Send a line to the child; return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.line()

    def kill(self) -> list[str]:
        """Kill the child; return the lines that were not read yet."""
        self.process.kill()
        left = list(self.lines())
        self.process.wait()
        return left

    def finish(self) -> dict[str, str]:
        """Return the child's report by the first word of each line."""
        return {word: rest for word, _, rest in (line.partition(" ") for line in self.output())}

    def output(self) -> list[str]:
        """Wait for the child's end; return its lines. A signal that ends the child is a failure."""
        output, _ = self.process.communicate()
        assert self.process.returncode == 0, (self.process.returncode, output)
        return output.splitlines()


def small_tmpfs(place: Path, size_mib: int, *, ballast: bool = False) -> tuple[str, ...]:
    """Return the words that run a child with a small tmpfs at `place`, in its own mount namespace. With `ballast` the
    tmpfs has a file of 1 MiB that the child can remove."""
    mount = f"mount -t tmpfs -o size={size_mib}m tmpfs {place}"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"skipped: cannot mount a small tmpfs here ({probe.stderr.strip()})")
    more = f" && dd if=/dev/zero of={place}/ballast bs=1M count=1 2>/dev/null" if ballast else ""
    return "unshare", "-m", "sh", "-c", f'{mount}{more} && exec "$@"', "sh"


def read_only_mount(place: Path) -> tuple[str, ...]:
    """Return the words that run a child which sees the directory `place` mounted for reading only, in its own mount namespace."""
    mount = f"mount --bind {place} {place} && mount -o remount,ro,bind {place}"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"skipped: cannot mount for reading only here ({probe.stderr.strip()})")
    return "unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"
