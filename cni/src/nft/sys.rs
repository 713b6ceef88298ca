//! A child that does not outlive its parent, which std has no words for.

#![expect(unsafe_code, reason = "what a child does between fork and exec is for its author to vouch for")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the kernel kill the program as soon as this process is gone.
pub(super) fn ends_with_us(command: &mut Command) -> &mut Command {
    let parent = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // Gone before that was said: nobody would tell the kernel.
        if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: two system calls, and no memory is taken.
    unsafe { command.pre_exec(tie) }
}
