//! The bell of the worker: calls that delete something ring it. Not here: the work.

use std::sync::mpsc::{self, Receiver, Sender};

/// Lets the worker look after the pools now.
#[derive(Clone, Debug)]
pub(crate) struct Wake(Sender<()>);

/// A bell, and what the worker listens to.
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
