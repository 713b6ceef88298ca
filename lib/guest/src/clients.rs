//! A limit on the clients of a listener that is served by threads. When it is reached, the client that has been idle longest
//! is disconnected for the next one: clients that send nothing, or part of a request, keep no other client out.
//!
//! ```text
//!  admit ─► idle ◄─► busy ─► gone
//!             └─ the limit is reached and no other client has been idle longer ─► shut down
//! ```
//!
//! Not here: accepting, reading and answering.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::net::{Shutdown, shutdown};

/// At most so many clients.
#[derive(Debug)]
pub struct Clients<S> {
    most: usize,
    /// Clients that their threads still hold.
    admitted: Vec<Arc<Client<S>>>,
}

/// A client, idle until [`Client::busy`] is called. Its thread holds it until the end.
#[derive(Debug)]
pub struct Client<S> {
    stream: S,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Guards that are alive; the client is idle at 0.
    busy: usize,
    since: Instant,
}

/// While this exists, its client is not disconnected.
#[derive(Debug)]
pub struct Busy<'a, S>(&'a Client<S>);

impl<S: AsFd> Clients<S> {
    /// A limit of `most` clients.
    pub fn new(most: usize) -> Self {
        Self { most, admitted: Vec::new() }
    }

    /// The next client; `None` if all others are busy, and then its stream is closed.
    pub fn admit(&mut self, stream: S) -> Option<Arc<Client<S>>> {
        self.admitted.retain(|client| Arc::strong_count(client) > 1);
        if self.admitted.len() >= self.most {
            let idle = self.admitted.iter().enumerate();
            let idle = idle.filter_map(|(place, client)| Some((client.idle_since()?, place)));
            let (_, place) = idle.min()?;
            let client = self.admitted.swap_remove(place);
            // Its thread reads an end and leaves. A peer that is gone already is as good.
            _ = shutdown(&client.stream, Shutdown::Both);
        }
        let state = Mutex::new(State { busy: 0, since: Instant::now() });
        let client = Arc::new(Client { stream, state });
        self.admitted.push(Arc::clone(&client));
        Some(client)
    }
}

impl<S> Client<S> {
    /// The connection.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Keeps the client connected until the guard is dropped. To be called when a whole request has arrived.
    pub fn busy(&self) -> Busy<'_, S> {
        self.lock().busy += 1;
        Busy(self)
    }

    fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.busy == 0).then_some(state.since)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Drop for Busy<'_, S> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        state.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Whether the peer of a client was disconnected.
    fn is_closed(mut peer: &UnixStream) -> bool {
        peer.set_nonblocking(true).unwrap();
        matches!(peer.read(&mut [0]), Ok(0))
    }

    #[test]
    fn client_idle_longest_is_disconnected_and_busy_one_is_not() {
        let mut clients = Clients::new(3);
        let mut admit = || {
            let (peer, stream) = UnixStream::pair().unwrap();
            (peer, clients.admit(stream))
        };
        let ((first, one), (second, two), (third, three)) = (admit(), admit(), admit());
        let (one, two, three) = (one.unwrap(), two.unwrap(), three.unwrap());
        let busy = one.busy();
        drop(two.busy());
        // The third one is idle longest: the second one was busy after it came.
        let (_fourth, four) = admit();
        assert!(is_closed(&third) && !is_closed(&first) && !is_closed(&second));
        drop(three);
        let four = four.unwrap();
        let all = [two.busy(), four.busy()];
        let (fifth, none) = admit();
        assert!(none.is_none() && is_closed(&fifth), "all are busy");
        drop(all);
        drop(busy);
        let (_sixth, six) = admit();
        assert!(six.is_some() && is_closed(&second) && !is_closed(&first));
        // A client whose thread has ended takes no place.
        drop((one, four));
        assert!(admit().1.is_some() && admit().1.is_some());
    }
}
