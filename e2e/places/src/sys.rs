//! Child processes without some system calls, or with a limit. Not here: what they run.

#![expect(unsafe_code, reason = "a seccomp filter and a limit can be set only between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The three io_uring calls answer `errno` in the child: EPERM as under a container runtime's default profile, ENOSYS as
/// on a kernel without them.
pub fn forbid_io_uring(command: &mut Command, errno: i32) {
    // From linux/seccomp.h and linux/filter.h: load the call's number, compare, return.
    const LOAD_NR: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_GE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let filter = [
        op(LOAD_NR, 0, 0, 0),
        op(JUMP_GE, 0, 2, libc::SYS_io_uring_setup as u32),
        op(JUMP_GE, 1, 0, libc::SYS_io_uring_register as u32 + 1),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    // SAFETY: the closure only makes system calls, on memory that was allocated before the fork.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
            {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// At most `bytes` of memory may be locked in the child.
pub fn limit_memlock(command: &mut Command, bytes: u64) {
    // SAFETY: the closure makes one system call.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            if libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}
