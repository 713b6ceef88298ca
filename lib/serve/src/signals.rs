//! SIGTERM and SIGINT as a call on a thread of their own. Not here: what stopping means.

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
}

impl Signal {
    /// Exit code a shell would report: 128 and the signal's number.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Terminate => 143,
            Self::Interrupt => 130,
        }
    }
}

/// Calls `on_signal` for every SIGTERM and SIGINT from now on; both lose their default effect. When this returns the
/// handlers stand.
///
/// # Errors
/// When the thread, its poller or a handler cannot be made.
pub fn watch(mut on_signal: impl FnMut(Signal) + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut terminate, mut interrupt) = {
        let _context = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            loop {
                let seen = tokio::select! {
                    Some(()) = terminate.recv() => Signal::Terminate,
                    Some(()) = interrupt.recv() => Signal::Interrupt,
                    else => return,
                };
                on_signal(seen);
            }
        });
    })?;
    Ok(())
}
