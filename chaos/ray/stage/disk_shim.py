"""Disks that fail on command: a library that is loaded into every process of a cluster, and does nothing until a file named after
the process's pid exists.

    fail_sync N     the next N syncs fail with EIO
    slow_disk US    every sync takes US microseconds longer
    full_disk       writes fail with ENOSPC, except to the first two pages of a file: LMDB's roots have their space already

Every changed call adds a byte to `<pid>.hits`, which shows a fault's effect. The library is built with the C compiler of the
machine, and tried on a small process first: `build` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess

VARIABLE = "EBLA_CHAOS_DISK"
BUILD_S = 60.0
REASON_MAX = 300  # characters
COMPILERS = ("cc", "gcc", "clang")

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define ROOTS 8192  /* two pages of LMDB */

enum kind { NONE, FAIL_SYNC, SLOW_DISK, FULL_DISK };
static atomic_long failed;

static int beside(const char *suffix, int flags) {
    const char *directory = getenv("EBLA_CHAOS_DISK");
    char path[4096];
    if (!directory) return -1;
    snprintf(path, sizeof path, "%s/%d%s", directory, (int)getpid(), suffix);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0644);
}

static enum kind armed(long *amount) {
    int before = errno, fd = beside("", O_RDONLY | O_CLOEXEC);
    char text[64];
    errno = before;
    if (fd < 0) return NONE;
    long size = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    errno = before;
    if (size <= 0) return NONE;
    text[size] = 0;
    char *number = strchr(text, ' ');
    *amount = number ? atol(number) : 0;
    if (!strncmp(text, "fail_sync", 9)) return FAIL_SYNC;
    if (!strncmp(text, "slow_disk", 9)) return SLOW_DISK;
    if (!strncmp(text, "full_disk", 9)) return FULL_DISK;
    return NONE;
}

static void hit(void) {
    int before = errno, fd = beside(".hits", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
    if (fd >= 0) {
        syscall(SYS_write, fd, "x", 1L);
        syscall(SYS_close, fd);
    }
    errno = before;
}

/* Whether the sync may take place; a slow one has waited by then. */
static int may_sync(void) {
    long amount;
    switch (armed(&amount)) {
    case FAIL_SYNC:
        if (atomic_fetch_add(&failed, 1) >= amount) return 1;
        hit();
        errno = EIO;
        return 0;
    case SLOW_DISK: {
        struct timespec left = {amount / 1000000, amount % 1000000 * 1000};
        hit();
        while (nanosleep(&left, &left) && errno == EINTR) {}
        return 1;
    }
    default:
        return 1;
    }
}

static int may_write(off_t offset, size_t bytes) {
    long amount;
    if (armed(&amount) != FULL_DISK || offset + (off_t)bytes <= ROOTS) return 1;
    hit();
    errno = ENOSPC;
    return 0;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

int fsync(int fd) { REAL(fsync); return may_sync() ? real(fd) : -1; }
int fdatasync(int fd) { REAL(fdatasync); return may_sync() ? real(fd) : -1; }

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    REAL(pwrite);
    return may_write(offset, bytes) ? real(fd, data, bytes, offset) : -1;
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset) {
    REAL(pwrite64);
    return may_write(offset, bytes) ? real(fd, data, bytes, offset) : -1;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    off_t offset = lseek(fd, 0, SEEK_CUR);  /* -1 for what is no file */
    return offset < 0 || may_write(offset, ROOTS) ? real(fd, parts, count) : -1;
}
"""

TRIAL = """
import errno, os, sys
path = os.path.join(os.environ["EBLA_CHAOS_DISK"], str(os.getpid()))
file = os.open(path + ".trial", os.O_RDWR | os.O_CREAT)
os.fsync(file)
with open(path, "w") as order:
    order.write(sys.argv[1])
try:
    os.fsync(file) if sys.argv[1].startswith("fail") else os.pwrite(file, b"x", 1 << 20)
except OSError as error:
    print(errno.errorcode[error.errno])
"""
EXPECTED = {"fail_sync 1": "EIO", "full_disk": "ENOSPC"}


class DiskShim:
    """The built library. `environment`: for processes that load it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.library = directory / "disk_shim.so"

    @property
    def environment(self) -> dict[str, str]:
        before = os.environ.get("LD_PRELOAD")
        preload = f"{self.library}:{before}" if before else str(self.library)
        return {"LD_PRELOAD": preload, VARIABLE: str(self.directory)}

    def arm(self, pid: int, kind: str, amount: int = 0) -> None:
        beside = self.directory / f"{pid}.new"
        beside.write_text(f"{kind} {amount}")
        beside.rename(self.directory / str(pid))

    def disarm(self, pid: int) -> None:
        (self.directory / str(pid)).unlink(missing_ok=True)

    def hits(self, pid: int) -> int:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / f"{pid}.hits").stat().st_size
        return 0


def build(directory: Path) -> DiskShim | str:
    """Build the library in `directory` and try it. Returns the library, or the reason why it cannot be used."""
    if not sys.platform.startswith("linux"):
        return "no such tool: disks that fail on command need Linux"
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        return f"no such tool: a C compiler ({', '.join(COMPILERS)})"
    directory.mkdir(parents=True, exist_ok=True)
    shim = DiskShim(directory)
    source = directory / "disk_shim.c"
    source.write_text(SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(shim.library), str(source), "-ldl"]
    try:
        built = _run(command)
        if built.returncode:
            return f"the C compiler refuses the library: {built.stderr.strip()[-REASON_MAX:]}"
        for order, expected in EXPECTED.items():
            tried = _run([sys.executable, "-c", TRIAL, order], shim.environment)
            if tried.stdout.strip() != expected:
                why = (tried.stdout + tried.stderr).strip()[-REASON_MAX:]
                return f"processes here do not load the library: {order} gave {why or 'nothing'}"
    except subprocess.TimeoutExpired as error:
        return f"the library was not built and tried within {error.timeout:g} s"
    return shim


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
