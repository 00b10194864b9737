"""The system calls that a program in the sandbox may make, as a seccomp filter for `bwrap --seccomp`.

A call that is not listed here fails with ENOSYS, as on an older kernel, which the C library and Python can handle. The
list has the calls that Python, NumPy and ordinary programs need. It excludes, among others: memory that belongs to no
process (memfd_create, memfd_secret, shmget, mq_open), namespaces and mounts (unshare, setns, clone3, mount,
fsopen), other processes' memory (ptrace, process_vm_readv, pidfd_getfd, userfaultfd), keys (keyctl, add_key), kernel
facilities (bpf, perf_event_open, io_uring_setup), a session or scheduler of its own (setsid, sched_setscheduler).

The filter is a program for the kernel's classic BPF machine (Documentation/userspace-api/seccomp_filter.rst): one
32-bit accumulator, loads from `struct seccomp_data`, jumps forwards only.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Sequence
from functools import cache

# name:number on x86_64:number on aarch64, "-" where there is none. From the kernel's tables: those of x86_64
# (arch/x86/entry/syscalls/syscall_64.tbl) and the generic ones (include/uapi/asm-generic/unistd.h).
ALLOWED = """
files
    access:21:- faccessat:269:48 faccessat2:439:439 open:2:- openat:257:56 openat2:437:437 creat:85:- close:3:57
    close_range:436:436 read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69
    pwritev:296:70 preadv2:327:286 pwritev2:328:287
    lseek:8:62 stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291 statfs:137:43 fstatfs:138:44
    getdents:78:- getdents64:217:61 getcwd:79:17 chdir:80:49 fchdir:81:50 mkdir:83:- mkdirat:258:34 rmdir:84:-
    unlink:87:- unlinkat:263:35
    rename:82:- renameat:264:38 renameat2:316:276 link:86:- linkat:265:37 symlink:88:- symlinkat:266:36
    readlink:89:- readlinkat:267:78 chmod:90:- fchmod:91:52 fchmodat:268:53 chown:92:- fchown:93:55 lchown:94:-
    fchownat:260:54 umask:95:166
    truncate:76:45 ftruncate:77:46 fallocate:285:47 fsync:74:82 fdatasync:75:83 fadvise64:221:223 utime:132:-
    utimes:235:- utimensat:280:88 futimesat:261:- flock:73:32 fcntl:72:25 ioctl:16:29 dup:32:23 dup2:33:-
    dup3:292:24 pipe:22:- pipe2:293:59 sendfile:40:71 copy_file_range:326:285
    getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10 listxattr:194:11 llistxattr:195:12 flistxattr:196:13
waiting
    poll:7:- ppoll:271:73 select:23:- pselect6:270:72 epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21
    epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:- eventfd2:290:19
memory
    brk:12:214 mmap:9:222 munmap:11:215 mremap:25:216 mprotect:10:226 madvise:28:233 msync:26:227 mincore:27:232
processes
    clone:56:220 fork:57:- vfork:58:- execve:59:221 exit:60:93 exit_group:231:94 wait4:61:260 waitid:247:95
identity
    getpid:39:172 getppid:110:173 gettid:186:178 getpgid:121:155 getpgrp:111:- setpgid:109:154 getsid:124:156
    getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150
    getgroups:115:158
    setuid:105:146 setgid:106:144 setresuid:117:147 setresgid:119:149 setreuid:113:145 setregid:114:143
    setgroups:116:159 setfsuid:122:151 setfsgid:123:152 capget:125:90 capset:126:91 prctl:157:167 arch_prctl:158:-
threads
    set_tid_address:218:96 set_robust_list:273:99 get_robust_list:274:100 rseq:334:293 futex:202:98
    membarrier:324:283 restart_syscall:219:128
signals
    kill:62:129 tkill:200:130 tgkill:234:131 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigpending:127:136
    rt_sigsuspend:130:133 rt_sigtimedwait:128:137 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240
    rt_sigreturn:15:139 sigaltstack:131:132 pause:34:-
time
    alarm:37:- setitimer:38:103 getitimer:36:102 timer_create:222:107 timer_settime:223:110 timer_gettime:224:108
    timer_getoverrun:225:109 timer_delete:226:111 nanosleep:35:101 clock_nanosleep:230:115 clock_gettime:228:113
    clock_getres:229:114 gettimeofday:96:169 time:201:- times:100:153
limits, priority
    getrlimit:97:163 setrlimit:160:164 prlimit64:302:261 getrusage:98:165 getpriority:140:141 setpriority:141:140
    sched_yield:24:124 sched_getaffinity:204:123 sched_getparam:143:121 sched_getscheduler:145:120
    sched_get_priority_max:146:125 sched_get_priority_min:147:126
the machine
    uname:63:160 sysinfo:99:179 getcpu:309:168 getrandom:318:278
sockets
    socket:41:198 socketpair:53:199 bind:49:200 listen:50:201 accept:43:202 accept4:288:242 connect:42:203
    getsockname:51:204 getpeername:52:205 getsockopt:55:209 setsockopt:54:208 shutdown:48:210 sendto:44:206
    recvfrom:45:207 sendmsg:46:211 recvmsg:47:212
"""

# Allowed with some arguments only; all of them are also in ALLOWED.
CHECKED = ("clone", "socket", "socketpair", "mmap", "ioctl")
NEW_NAMESPACES = 0x7E02_0000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}; NEWTIME is a flag of clone3 alone
AF_UNIX = 1  # between its own processes; asyncio needs it
MAP_SHARED, MAP_ANONYMOUS, MAP_HUGETLB = 0x01, 0x20, 0x4_0000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # insert input into the caller's terminal

# Instructions: BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K, BPF_JMP|{JEQ,JGT,JGE,JSET}|BPF_K, BPF_RET|BPF_K.
LOAD, AND, EQUAL, GREATER, NOT_LESS, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data: number, architecture, then the instruction pointer and six 64-bit arguments.
NUMBER, ARCHITECTURE = 0, 4
ARGUMENT = tuple(range(16, 64, 8))  # their lower halves (little-endian): all checked arguments are ints
ALLOW, KILL, ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
# AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64 of <linux/audit.h>, and the column in the table.
MACHINES = {"x86_64": (0xC000_003E, 0), "aarch64": (0xC000_00B7, 1)}

# A label; or an instruction with its operand and, for a jump, the labels of its targets ("": the next instruction).
Line = str | tuple[int, int] | tuple[int, int, str, str]


@cache
def program(machine: str = "") -> bytes:
    """The filter for a machine ("": this one): an array of `struct sock_filter`. ValueError if not in MACHINES."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise ValueError(f"The filter of system calls knows {' and '.join(MACHINES)}, and this machine is {machine}.")
    architecture, column = MACHINES[machine]
    number = numbers(column)
    plain = ranges(n for name, n in number.items() if name not in CHECKED)
    return assemble(
        [
            (LOAD, ARCHITECTURE),
            (EQUAL, architecture, "", "kill"),  # 32-bit calls have other numbers
            (LOAD, NUMBER),
            (EQUAL, number["clone"], "clone", ""),
            (EQUAL, number["socket"], "socket", ""),
            (EQUAL, number["socketpair"], "socket", ""),
            (EQUAL, number["mmap"], "mmap", ""),
            (EQUAL, number["ioctl"], "ioctl", ""),
            *_in_ranges(plain),
            "clone",
            (LOAD, ARGUMENT[0]),
            (ANY_BIT, NEW_NAMESPACES, "forbidden", "allowed"),
            "socket",
            (LOAD, ARGUMENT[0]),
            (EQUAL, AF_UNIX, "allowed", "no family"),
            "mmap",  # memory that remains when no process has it mapped is in no process's memory usage
            (LOAD, ARGUMENT[3]),
            (ANY_BIT, MAP_HUGETLB, "forbidden", ""),
            (AND, MAP_SHARED | MAP_ANONYMOUS),
            (EQUAL, MAP_SHARED | MAP_ANONYMOUS, "forbidden", "allowed"),
            "ioctl",
            (LOAD, ARGUMENT[1]),
            (EQUAL, TIOCSTI, "forbidden", ""),
            (EQUAL, TIOCLINUX, "forbidden", "allowed"),
            "allowed",
            (RETURN, ALLOW),
            "forbidden",
            (RETURN, ERRNO | errno.EPERM),
            "no family",
            (RETURN, ERRNO | errno.EAFNOSUPPORT),
            "unknown",
            (RETURN, ERRNO | errno.ENOSYS),
            "kill",
            (RETURN, KILL),
        ]
    )


def numbers(column: int) -> dict[str, int]:
    """{name: number} of the allowed calls, from one column of the table."""
    rows = [word.split(":") for word in ALLOWED.split() if ":" in word]
    return {name: int(columns[column]) for name, *columns in rows if columns[column] != "-"}


def ranges(calls: Iterable[int]) -> list[tuple[int, int]]:
    """(first, last) of each range of consecutive numbers, ascending."""
    result: list[tuple[int, int]] = []
    for n in sorted(calls):
        if result and result[-1][1] == n - 1:
            result[-1] = (result[-1][0], n)
        else:
            result.append((n, n))
    return result


def _in_ranges(allowed: Sequence[tuple[int, int]]) -> list[Line]:
    """Two comparisons per range, ascending: a larger number goes on to the next range, a smaller one is unknown."""
    lines: list[Line] = []
    for first, last in allowed:
        past = "unknown" if (first, last) == allowed[-1] else f"past {last}"
        lines += [(GREATER, last, past, ""), (NOT_LESS, first, "allowed", "unknown"), f"past {last}"]
    return lines


def assemble(lines: Sequence[Line]) -> bytes:
    """The instructions as `struct sock_filter`, with labels replaced by distances: code, jump if true, jump if false,
    operand (16, 8, 8, 32 bits)."""
    index_of: dict[str, int] = {}
    instructions: list[tuple[int, int] | tuple[int, int, str, str]] = []
    for line in lines:
        if isinstance(line, str):
            index_of[line] = len(instructions)
        else:
            instructions.append(line)
    words: list[bytes] = []
    for index, (code, operand, *targets) in enumerate(instructions):
        jumps = [index_of[label] - index - 1 if label else 0 for label in targets] or [0, 0]
        words.append(struct.pack("=HBBI", code, *jumps, operand))  # struct.error: a jump backwards, or beyond 255
    return b"".join(words)
