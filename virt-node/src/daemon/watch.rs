//! Watches one run's launcher, on a thread of its own, until it is gone, and reports its events.

use std::thread;
use std::time::Duration;

use api::kubevirt::GuestOsInfo;
use api::launcher::{Answer, Event, Request, State as Doing, Status};

use super::run::Run;
use super::{apply, process};
use virt::run::LauncherState;

/// How long an event is waited for until it is looked whether the launcher is there.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Timeout of a launcher's status.
const WATCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The reported events.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum News {
    /// How the run is now.
    Observed(LauncherState, Option<Status>),
    /// Something that changes nothing of that.
    Event(Event),
    /// The guest's operating system, by its agent.
    Os(Box<GuestOsInfo>),
}

/// Reports the events of a run to `tell` until its launcher is gone; `false` from it ends the watch.
pub(super) fn watch(run: Run, mut tell: impl FnMut(News) -> bool + Send + 'static) -> std::io::Result<()> {
    let work = move || {
        loop {
            if !follow(&run, &mut tell) {
                return;
            }
            if let Some(exit) = run.exit() {
                tell(News::Observed(LauncherState::Ended(exit), None));
                return;
            }
            if !process::lives(&run.log()) {
                // The record is written before the end.
                tell(News::Observed(apply::inspect(&run), None));
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    };
    thread::Builder::new().name("watch".to_owned()).stack_size(256 << 10).spawn(work).map(drop)
}

fn observed(status: Status) -> News {
    let seen = match (status.state, &status.exit) {
        (_, Some(exit)) => LauncherState::Ended(exit.clone()),
        (Doing::Waiting, None) => LauncherState::Waiting,
        (state, None) => LauncherState::Guest(state),
    };
    News::Observed(seen, Some(status))
}

/// Follows one worker of the launcher to its end; `false`: the receiver is gone.
fn follow(run: &Run, tell: &mut impl FnMut(News) -> bool) -> bool {
    let Ok(mut client) = run.client() else { return true };
    let Ok(Answer::Status(status)) = client.call_within(Request::Watch, WATCH_TIMEOUT) else { return true };
    if !tell(observed(status)) {
        return false;
    }
    loop {
        let news = match client.event(POLL_INTERVAL) {
            Ok(Some(Event::Status(status))) => observed(status),
            Ok(Some(event)) => News::Event(event),
            Ok(None) => continue,
            Err(_) => return true,
        };
        let end = matches!(news, News::Observed(LauncherState::Ended(_), _));
        if !tell(news) || end {
            return false;
        }
    }
}
