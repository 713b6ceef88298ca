//! A child that does not outlive its parent, for which std has no interface.

#![expect(unsafe_code, reason = "pre_exec: the closure calls only async-signal-safe functions")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the kernel kill the program as soon as this process is gone.
pub(super) fn ends_with_us(command: &mut Command) -> &mut Command {
    let parent = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent ended before the request: the kernel would send no signal.
        if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: two system calls, and no memory is taken.
    unsafe { command.pre_exec(tie) }
}
