//! Follows a log that is written by another process and cut when it is too long: what is written to it is handed on in
//! order, from its start on. What comes faster than 1.25 MiB/s and is cut before it was read is left out, so that a guest
//! cannot fill its node's disk through the log of a container.
//!
//! Not here: cutting ([`crate::worker`]'s logs).

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use guest::signals::{self, Signal};

/// Most bytes of one turn: 20 turns are a second at least.
const TURN: u64 = 64 << 10;
/// Most turns at the end.
const LAST: usize = 128;
/// The shortest and the longest pause between two turns: the longer it is quiet, the longer it is.
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_millis(800);

/// Follows the file until SIGTERM; what is in it then is still handed on.
///
/// # Errors
/// The file cannot be read, or the output is closed.
pub(crate) fn follow(path: &Path, output: &mut impl Write) -> io::Result<()> {
    signals::block_signals()?;
    let mut tail = Tail::default();
    let mut pause = SHORT;
    loop {
        pause = if tail.turn(path, output)? > 0 { SHORT } else { (pause * 2).min(LONG) };
        if signals::next_signal(Some(pause))? == Some(Signal::Stop) {
            for _ in 0..LAST {
                if tail.turn(path, output)? == 0 {
                    break;
                }
            }
            return Ok(());
        }
    }
}

/// Where the reader is.
#[derive(Debug, Default)]
struct Tail {
    /// The file, once it is there.
    file: Option<File>,
    position: u64,
}

impl Tail {
    /// Hands on what is new, at most one turn's; answers how many bytes that was.
    fn turn(&mut self, path: &Path, output: &mut impl Write) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            None => match File::open(path) {
                Ok(file) => self.file.insert(file),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
                Err(error) => return Err(error),
            },
        };
        if file.metadata()?.len() < self.position {
            // Cut: what follows is at its start.
            self.position = file.seek(SeekFrom::Start(0))?;
        }
        let mut new = Vec::new();
        let count = file.take(TURN).read_to_end(&mut new)?;
        self.position += u64::try_from(count).unwrap_or(0);
        output.write_all(&new)?;
        output.flush()?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_handed_on_once_also_after_a_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (mut tail, mut said) = (Tail::default(), Vec::new());
        assert_eq!(tail.turn(&path, &mut said).unwrap(), 0);
        let mut log = File::options().create(true).append(true).open(&path).unwrap();
        for (written, cut) in [("one ", false), ("two ", false), ("3", true), ("", false), ("four", false)] {
            if cut {
                log.set_len(0).unwrap();
            }
            log.write_all(written.as_bytes()).unwrap();
            assert_eq!(tail.turn(&path, &mut said).unwrap(), written.len());
        }
        assert_eq!(String::from_utf8(said).unwrap(), "one two 3four");
    }

    #[test]
    fn a_turn_has_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let most = usize::try_from(TURN).unwrap();
        std::fs::write(&path, vec![b'a'; most + 1]).unwrap();
        let (mut tail, mut said) = (Tail::default(), Vec::new());
        assert_eq!(tail.turn(&path, &mut said).unwrap(), most);
        assert_eq!(tail.turn(&path, &mut said).unwrap(), 1);
    }
}
