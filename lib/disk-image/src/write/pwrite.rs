//! The engine of plain threads: each takes a write from the queue and writes its pieces one after the other.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Receiver;

use super::output::Output;
use super::{Job, pieces};

/// Starts `threads` of them; they end when the queue is closed and empty.
///
/// # Errors
/// When no thread can be started; fewer than asked for will do.
pub(super) fn start(
    output: &Arc<Output>,
    queue: &Receiver<Job>,
    threads: usize,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut started = Vec::new();
    for number in 0..threads.max(1) {
        let (output, queue) = (output.clone(), queue.clone());
        let thread = std::thread::Builder::new().name(format!("write-{number}"));
        match thread.spawn(move || run(&output, &queue)) {
            Ok(handle) => started.push(handle),
            Err(e) if started.is_empty() => return Err(e),
            Err(_) => break,
        }
    }
    Ok(started)
}

fn run(output: &Output, queue: &Receiver<Job>) {
    let mut parts = Vec::new();
    for job in queue {
        parts.clear();
        pieces(&job, output, &mut parts);
        for piece in &parts {
            // After a failure nothing counts any more: what is queued is let go.
            if output.check().is_err()
                || output
                    .write(&job.bytes[piece.at..piece.at + piece.len], piece.guest, piece.direct)
                    .is_err()
            {
                break;
            }
            output.count(piece.len);
        }
    }
}
