//! The operating system of a guest, as its agent reports it.
//!
//! Not here: whether there is an agent ([`super::status`]).

use api::kubevirt::GuestOsInfo;
use api::launcher::{Answer, Request};
use guest::agent::{OS_INFO, os};

use super::run::Run;

/// How long an agent may take, in seconds.
const TIMEOUT_SECONDS: u32 = 60;

/// The operating system in the guest of a run; `None`: its agent does not report it.
pub(super) fn what_it_is(run: &Run) -> Option<GuestOsInfo> {
    let request = Request::Agent { command: OS_INFO.to_owned(), timeout_seconds: TIMEOUT_SECONDS };
    let Ok(Answer::Agent(text)) = run.client().ok()?.call(request) else { return None };
    os(&text)
}
