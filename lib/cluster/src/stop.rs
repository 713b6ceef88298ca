//! The wish to end gracefully, passed to everything that runs.

use tokio::sync::watch;

/// Stops all its [`Stop`]s. Dropping it stops them, too.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Becomes ready when the process, or a part of it, is to end.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// A pair of both.
pub fn pair() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    /// Asks everything to end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Returns when the end is asked for.
    pub async fn wait(&self) {
        let mut receiver = self.0.clone();
        // An error means that the other end is gone, which asks for the end as well.
        let _asked = receiver.wait_for(|stop| *stop).await;
    }

    /// Whether the end is asked for.
    pub fn is_set(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_clone_is_notified_also_by_a_drop() {
        let (stopper, stop) = pair();
        assert!(!stop.is_set());
        stopper.stop();
        let clone = stop.clone();
        tokio::join!(stop.wait(), clone.wait());
        assert!(stop.is_set());
        let (stopper, stop) = pair();
        drop(stopper);
        stop.wait().await;
        assert!(stop.is_set());
    }
}
