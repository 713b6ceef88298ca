//! The CNI protocol, specification 1.1.0 and before: what a call is, what a result looks like in every version, and
//! the one document that answers it.
//!
//! Nothing here touches the network or the file system, but for standard input and output.

mod answer;
mod arguments;
mod call;
mod json;
mod outcome;
mod version;

pub(crate) use answer::{Answer, answer};
pub(crate) use arguments::Arguments;
pub(crate) use call::{Attachment, Call, Environment, Verb, is_interface_name, is_name, read};
pub(crate) use json::{Json, Object};
pub(crate) use link::Mac;
pub(crate) use link::netlink::Route;
pub(crate) use outcome::{Dns, Interface, IpConfig, Outcome, address_at, network, read_route};
pub(crate) use version::Version;

use crate::error::Error;

/// A plugin's implementation of each verb. Every method validates the call before it changes anything.
pub(crate) trait Plugin {
    /// The name on the "about" line.
    fn name(&self) -> &'static str;

    /// ADD: attaches, or undoes all it did and fails.
    fn add(&self, call: &Call) -> Result<Outcome, Error>;

    /// DEL: detaches; succeeds when nothing is left to do, and cleans as much as it can before it fails.
    fn delete(&self, call: &Call) -> Result<(), Error>;

    /// CHECK: fails unless the attachment still is what ADD made.
    fn check(&self, call: &Call) -> Result<(), Error>;

    /// GC: removes what belongs to this network and to none of [`Call::valid_attachments`].
    fn collect(&self, call: &Call) -> Result<(), Error>;

    /// STATUS: fails with [`crate::Kind::Unavailable`] or [`crate::Kind::Impaired`] if an ADD could not succeed.
    fn status(&self, call: &Call) -> Result<(), Error>;
}
