//! Netlink, as much as is needed: one synchronous socket that sends several requests in one system call and
//! reads their answers, and the messages for links, addresses, routes, forwarding entries and limits of rates.
//!
//! The kernel has worked off all requests when `sendmsg` returns, and goes on after one that failed. So a batch is
//! ordered such that what follows a failure does no harm, and every answer is looked at.

mod address;
mod forwarding;
mod link;
mod route;
mod router;
mod shaping;
mod socket;

pub use address::Address;
pub use forwarding::Forwarding;
pub use link::{BridgeFacts, Flag, Link, NewBridge, PortSettings, VethPair, VlanRange};
pub use route::{KernelRoute, Route};
pub use router::{Answer, Event, Request, Router};
pub use shaping::{Bucket, leave_out, list_filters, redirect, redirects, take_in};
pub use socket::{Frame, Refusal, Reply, Socket};
