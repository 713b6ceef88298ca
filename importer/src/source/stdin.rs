//! Standard input: a pipe that is read once, or a file that was redirected. Not here: local files by name.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use disk_image::{FileSource, Once, Source, Stop};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Error;

/// How soon a wish to stop is seen while nothing arrives.
const GLANCE: Duration = Duration::from_millis(200);

/// Opens standard input, and finds its type.
///
/// # Errors
/// When it is closed.
pub(crate) fn open(stop: &Stop) -> Result<(Arc<dyn Source>, Metadata), Error> {
    let failed = |e| Error::connect("cannot read standard input", e);
    let mut file = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    let meta = file.metadata().map_err(failed)?;
    // A redirected file can be read from anywhere, as long as no other process has read from it.
    if meta.is_file() && file.stream_position().is_ok_and(|at| at == 0) {
        return Ok((Arc::new(FileSource::new(file).map_err(failed)?), meta));
    }
    let reader = PipeReader { file, stop: stop.clone() };
    Ok((Arc::new(Once::new("standard input", None, Box::new(reader))), meta))
}

struct PipeReader {
    file: File,
    stop: Stop,
}

impl Read for PipeReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let glance = Timespec::try_from(GLANCE).map_err(io::Error::other)?;
        loop {
            self.stop.check()?;
            let mut waiting = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut waiting, Some(&glance)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return self.file.read(buf),
                Err(e) => return Err(e.into()),
            }
        }
    }
}
