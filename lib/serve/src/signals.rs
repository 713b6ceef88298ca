//! SIGTERM, SIGINT and SIGHUP as a call on a thread of their own. Not here: what stopping means.

use std::io;
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

/// A signal that asks the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: the kubelet, systemd.
    Terminate,
    /// SIGINT: a person.
    Interrupt,
    /// SIGHUP: the person's terminal is gone.
    HangUp,
}

impl Signal {
    /// Exit code a shell would report: 128 and the signal's number.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Terminate => 143,
            Self::Interrupt => 130,
            Self::HangUp => 129,
        }
    }
}

/// SIGXFSZ on every architecture that Rust has for Linux but MIPS (signal(7)).
const FILE_TOO_LONG: i32 = 25;

/// Calls `on_signal` for every SIGTERM, SIGINT and SIGHUP from now on; they lose their default effect. A SIGHUP that
/// the process was started to ignore, as by nohup, stays ignored. When this returns the handlers stand. A file that gets
/// longer than the process may make one is from then on an error of the write (EFBIG), and not the process's end by SIGXFSZ.
///
/// # Errors
/// When the thread, its poller or a handler cannot be made.
pub fn watch(mut on_signal: impl FnMut(Signal) + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut terminate, mut interrupt, mut hang_up) = {
        let _context = runtime.enter();
        drop(signal(SignalKind::from_raw(FILE_TOO_LONG))?);
        let hang_up = if hang_up_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, hang_up)
    };
    thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            loop {
                let hung_up = async {
                    match &mut hang_up {
                        Some(signal) => signal.recv().await,
                        None => std::future::pending().await,
                    }
                };
                let seen = tokio::select! {
                    Some(()) = terminate.recv() => Signal::Terminate,
                    Some(()) = interrupt.recv() => Signal::Interrupt,
                    Some(()) = hung_up => Signal::HangUp,
                    else => return,
                };
                on_signal(seen);
            }
        });
    })?;
    Ok(())
}

/// Whether SIGHUP, signal 1, is ignored: the lowest bit of `SigIgn` in /proc (proc_pid_status(5)).
fn hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
