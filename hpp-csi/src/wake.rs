//! Wakes the worker after deletions. Not here: the worker's tasks.

use std::sync::mpsc::{self, Receiver, Sender};

/// Wakes the worker.
#[derive(Clone, Debug)]
pub(crate) struct Wake(Sender<()>);

/// The waking end and the worker's end.
pub(crate) fn channel() -> (Wake, Receiver<()>) {
    let (sender, receiver) = mpsc::channel();
    (Wake(sender), receiver)
}

impl Wake {
    pub(crate) fn worker(&self) {
        // Without a worker the message has no receiver.
        let _ = self.0.send(());
    }
}
