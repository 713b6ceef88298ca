//! The terminal of a console: raw mode, and the key that leaves the console.

use std::io;
use std::os::fd::AsFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Ctrl-], as in virtctl and telnet.
const ESCAPE: u8 = 0x1d;

/// Raw mode of standard input; dropping it restores the mode before.
#[derive(Debug)]
pub struct Raw(Termios);

impl Raw {
    /// Sets raw mode; `None` when standard input is no terminal.
    pub fn set() -> Option<Self> {
        let terminal = io::stdin();
        let before = tcgetattr(terminal.as_fd()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal.as_fd(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &self.0);
    }
}

/// The bytes typed before the escape, and whether the escape was typed.
pub fn before_escape(typed: &[u8]) -> (&[u8], bool) {
    match typed.iter().position(|byte| *byte == ESCAPE) {
        Some(at) => (typed.get(..at).unwrap_or_default(), true),
        None => (typed, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_ends_what_is_typed() {
        assert_eq!(before_escape(b"ls\n"), (&b"ls\n"[..], false));
        assert_eq!(before_escape(b"ls\x1dx"), (&b"ls"[..], true));
        assert_eq!(before_escape(b"\x1d"), (&b""[..], true));
    }
}
