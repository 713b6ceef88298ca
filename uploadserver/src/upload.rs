//! One upload: a thread that fills the volume from what is fed to it. Not here: whether there may be one (`admission`).

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use disk_image::volume::{self, Done, Error, Holds, Session};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::body_queue::{self, BodyQueue};
use crate::decode::{Body, Shape};

/// How it ended.
pub(crate) type Outcome = Arc<Result<Done, Error>>;

/// An upload that runs, or has ended.
pub(crate) struct Upload {
    /// Unguessable, for the path of a resumable one.
    pub(crate) name: String,
    /// Where its bytes go in.
    pub(crate) feed: BodyQueue,
    /// How far it is.
    pub(crate) session: Session,
    /// It can be resumed after its connection broke.
    pub(crate) resumable: bool,
    /// It is a clone.
    pub(crate) clone: bool,
    outcome: watch::Sender<Option<Outcome>>,
}

impl Upload {
    /// Starts one. `ended` is notified first.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub(crate) fn start(
        server: &volume::Config,
        shape: Shape,
        size: Option<u64>,
        resumable: bool,
        ended: impl FnOnce(&Arc<Upload>, &Outcome) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let (feed, reader) = body_queue::feed(size, Handle::current());
        let upload = Arc::new(Self {
            name: random_name()?,
            feed,
            session: Session::default(),
            resumable,
            clone: shape.clone.is_some(),
            outcome: watch::Sender::new(None),
        });
        let config = shape.config(server);
        let files = config.holds != Holds::Disk;
        let mut body = Body { reader: Some(Box::new(reader)), size, shape, files };
        let running = upload.clone();
        std::thread::Builder::new().name("upload".into()).spawn(move || {
            let outcome = volume::import(&config, &running.session, &mut body);
            // The unread rest is not wanted: its sender gets the answer now.
            drop(body);
            match &outcome {
                Ok(done) => tracing::info!(?done, "the upload is complete"),
                Err(error) => tracing::error!(error = volume::error::chain(error), "Saving stream failed"),
            }
            let outcome = Arc::new(outcome);
            ended(&running, &outcome);
            running.outcome.send_replace(Some(outcome));
        })?;
        Ok(upload)
    }

    /// Ends it, without waiting.
    pub(crate) fn cancel(&self) {
        self.session.stop.set();
        self.feed.cancel();
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&self) -> Option<Outcome> {
        self.outcome.borrow().clone()
    }

    /// Waits for its end.
    pub(crate) async fn end(&self) -> Outcome {
        let mut outcome = self.outcome.subscribe();
        loop {
            if let Some(outcome) = outcome.borrow_and_update().clone() {
                return outcome;
            }
            // The sender is ours: it does not go.
            drop(outcome.changed().await);
        }
    }
}

/// 128 bits from the kernel, in hex.
fn random_name() -> io::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let mut name = String::new();
    for byte in bytes {
        let _infallible = write!(name, "{byte:02x}");
    }
    Ok(name)
}
