"""The filter as the kernel would run it: an interpreter of classic BPF, written from the kernel's documentation."""

import ctypes
import re
import struct
from pathlib import Path

import pytest

from rlvr.task.verify import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000  # SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS of <linux/seccomp.h>
EPERM, ENOSYS, EAFNOSUPPORT = (0x00050000 | n for n in (1, 38, 97))  # SECCOMP_RET_ERRNO with the number of <errno.h>
X86_64, AARCH64, I386 = 0xC000003E, 0xC00000B7, 0x40000003  # AUDIT_ARCH_* of <linux/audit.h>
MACHINES = {"x86_64": (X86_64, 0), "aarch64": (AARCH64, 1)}
# (x86_64, aarch64) of <asm/unistd.h>
CLONE, SOCKET, SOCKETPAIR, MMAP, IOCTL = (56, 220), (41, 198), (53, 199), (9, 222), (16, 29)
NEVER = {  # each of these gives a way out of the limits
    "ptrace": (101, 117),
    "mount": (165, 40),
    "unshare": (272, 97),
    "setns": (308, 268),
    "clone3": (435, 435),
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "setsid": (112, 157),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "sched_setscheduler": (144, 119),
}


def run(program: bytes, number: int, *arguments: int, architecture: int) -> int:
    """What a filter returns for one system call (struct seccomp_data: number, architecture, pointer, 6 arguments)."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("<HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        kind, operation = code & 0x07, code & 0xF0
        if kind == 0x00:  # BPF_LD
            assert code == 0x20  # of a word, at an absolute place
            accumulator = struct.unpack_from("<I", data, operand)[0]
        elif kind == 0x04:  # BPF_ALU
            assert code == 0x54  # "and" with the operand
            accumulator &= operand
        elif kind == 0x05:  # BPF_JMP
            holds = {
                0x10: accumulator == operand,
                0x20: accumulator > operand,
                0x30: accumulator >= operand,
                0x40: accumulator & operand != 0,
            }[operation]
            at += if_true if holds else if_false
        else:
            assert code == 0x06  # BPF_RET of the operand
            return operand


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


def judge(machine: str, call: tuple[int, int], *arguments: int) -> int:
    architecture, column = MACHINES[machine]
    return run(seccomp.program(machine), call[column], *arguments, architecture=architecture)


def test_each_instruction_is_what_the_kernel_reads() -> None:
    """By hand from struct sock_filter {u16 code; u8 jt, jf; u32 k} and the opcodes of <linux/bpf_common.h>."""
    lines: list[seccomp.Line] = [
        (seccomp.LOAD, 16),
        (seccomp.AND, 0x21),
        (seccomp.EQUAL, 1, "end", ""),
        (seccomp.GREATER, 2, "", "end"),
        (seccomp.NOT_LESS, 3, "end", "last"),
        (seccomp.ANY_BIT, 0xFFFFFFFF, "", "last"),
        "end",
        (seccomp.RETURN, 0x7FFF0000),
        "last",
        (seccomp.RETURN, 0x80000000),
    ]
    expected = [
        "2000 00 00 10000000",  # BPF_LD 0x00 | BPF_W 0x00 | BPF_ABS 0x20
        "5400 00 00 21000000",  # BPF_ALU 0x04 | BPF_AND 0x50 | BPF_K 0x00
        "1500 03 00 01000000",  # BPF_JMP 0x05 | BPF_JEQ 0x10 | BPF_K: three lines are skipped
        "2500 00 02 02000000",  # BPF_JGT 0x20
        "3500 01 02 03000000",  # BPF_JGE 0x30
        "4500 00 01 ffffffff",  # BPF_JSET 0x40
        "0600 00 00 0000ff7f",  # BPF_RET 0x06 | BPF_K
        "0600 00 00 00000080",
    ]
    assert seccomp.assemble(lines) == b"".join(bytes.fromhex(line.replace(" ", "")) for line in expected)


def test_what_classic_bpf_cannot_say_is_refused() -> None:
    back: list[seccomp.Line] = ["start", (seccomp.LOAD, 0), (seccomp.EQUAL, 1, "start", "")]
    far: list[seccomp.Line] = [(seccomp.EQUAL, 1, "end", ""), *[(seccomp.LOAD, 0)] * 256, "end", (seccomp.RETURN, 0)]
    for lines in (back, far):
        with pytest.raises(struct.error):
            seccomp.assemble(lines)
    assert len(seccomp.assemble([*far[:-3], *far[-2:]])) == 8 * 257  # 255 lines can be jumped over


def test_numbers_are_those_of_the_kernel(machine: str) -> None:
    """As libseccomp knows them, or for this machine the kernel's own header."""
    names = seccomp.numbers(MACHINES[machine][1])
    try:
        resolve = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    except OSError:
        header = Path("/usr/include/asm-generic/unistd.h" if machine == "aarch64" else UNISTD)
        if not header.exists():
            pytest.skip("neither libseccomp nor the kernel's headers are here")
        text = header.read_text()
        known = {n: int(k) for n, k in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)\n", text)}
        known |= {"newfstatat": known.get("newfstatat", known.get("fstatat"))}
        assert {name: known.get(name) for name in names} == names
        return
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    architecture = MACHINES[machine][0]
    listed = {word.split(":")[0] for word in seccomp.ALLOWED.split() if ":" in word}
    known = {name: resolve(architecture, name.encode()) for name in listed}
    assert {name: number for name, number in known.items() if number >= 0} == names


UNISTD = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"


def test_exactly_the_listed_calls_pass(machine: str) -> None:
    architecture, column = MACHINES[machine]
    allowed = set(seccomp.numbers(column).values())
    for number in [*range(-1, 1024), 0x40000000, 0x40000000 + 1, 2**31 - 1]:  # the last but one are x32's
        verdict = run(seccomp.program(machine), number, 1, architecture=architecture)
        assert verdict == (ALLOW if number in allowed else ENOSYS), number


def test_ways_around_the_limits_do_not_exist(machine: str) -> None:
    assert {name: judge(machine, call) for name, call in NEVER.items()} == dict.fromkeys(NEVER, ENOSYS)


def test_calls_of_another_architecture_kill(machine: str) -> None:
    other = X86_64 if machine == "aarch64" else I386
    assert run(seccomp.program(machine), 0, architecture=other) == KILL


@pytest.mark.parametrize(
    ("call", "arguments", "verdict"),
    [
        (CLONE, (17,), ALLOW),  # SIGCHLD: fork
        (CLONE, (0x3D0F00,), ALLOW),  # a thread, as glibc starts it
        (CLONE, (0x4111,), ALLOW),  # CLONE_VM | CLONE_VFORK | SIGCHLD: posix_spawn
        *((CLONE, (1 << bit | 17,), EPERM) for bit in (17, 25, 26, 27, 28, 29, 30)),
        (SOCKET, (1, 1), ALLOW),
        *((SOCKET, (family, 1), EAFNOSUPPORT) for family in (0, 2, 10, 16, 17, 38, 40)),
        (SOCKETPAIR, (1, 1), ALLOW),
        (SOCKETPAIR, (2, 1), EAFNOSUPPORT),
        (MMAP, (0, 4096, 3, 0x22), ALLOW),  # private, anonymous
        (MMAP, (0, 4096, 1, 0x01), ALLOW),  # a file, shared
        (MMAP, (0, 4096, 3, 0x20022), ALLOW),  # a thread's stack
        (MMAP, (0, 4096, 3, 0x21), EPERM),
        (MMAP, (0, 4096, 3, 0x23), EPERM),  # MAP_SHARED_VALIDATE
        (MMAP, (0, 4096, 3, 0x40022), EPERM),  # MAP_HUGETLB
        (IOCTL, (0, 0x5401), ALLOW),  # TCGETS: isatty
        (IOCTL, (0, 0x5412), EPERM),
        (IOCTL, (0, 0x541C), EPERM),
        (IOCTL, (0, 2**32 + 0x5412), EPERM),  # the kernel takes the lower half
    ],
)
def test_arguments_decide(machine: str, call: tuple[int, int], arguments: tuple[int, ...], verdict: int) -> None:
    assert judge(machine, call, *arguments) == verdict


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"knows x86_64 and aarch64, and this machine is riscv64\."):
        seccomp.program("riscv64")
