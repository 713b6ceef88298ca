//! The network namespace a call is about.
//!
//! Entering one moves this thread alone, and the program has only one; a netlink socket keeps the namespace it was opened
//! in, so most work is done from outside.

use link::{Kind, Namespace};

use crate::error::Error;
use crate::protocol::Call;

/// The namespace this process is in, and the pod's, for a call that makes or checks something in it.
///
/// # Errors
/// [`crate::Kind::Namespace`] when CNI_NETNS is no namespace, or is ours and CNI_NETNS_OVERRIDE does not allow it.
pub(crate) fn of_call(call: &Call) -> Result<(Namespace, Namespace), Error> {
    let home = Namespace::ours()?;
    let pod = Namespace::open(call.namespace.as_deref().unwrap_or_else(|| "".as_ref()))?;
    if pod.is(&home) && !call.namespace_may_be_ours {
        let message = format!("{} is the namespace the plugin runs in", pod.path().display());
        return Err(link::Error::new(Kind::Namespace, message).into());
    }
    Ok((home, pod))
}

/// The same for a DEL: none when there is nothing to do, because the pod's is gone, or is ours by now: a process's
/// number was given to another one.
///
/// # Errors
/// As [`Namespace::find`].
pub(crate) fn of_deletion(call: &Call) -> Result<Option<(Namespace, Namespace)>, Error> {
    let Some(path) = &call.namespace else { return Ok(None) };
    let Some(pod) = Namespace::find(path)? else { return Ok(None) };
    let home = Namespace::ours()?;
    Ok((call.namespace_may_be_ours || !pod.is(&home)).then_some((home, pod)))
}
