//! Netlink, as much as is needed: one synchronous socket that sends several requests in one system call and
//! reads their answers, and the messages for links, addresses and routes.
//!
//! The kernel has worked off all requests when `sendmsg` returns, and goes on after one that failed. So a batch is
//! ordered such that what follows a failure does no harm, and every answer is looked at.

mod address;
mod link;
mod route;
mod router;
mod socket;

pub use address::Address;
pub use link::{BridgeFacts, Flag, Link, NewBridge, PortSettings, VethPair, VlanRange};
pub use route::{KernelRoute, Route};
pub use router::{Answer, Event, Request, Router};
pub use socket::{Frame, Refusal, Reply, Socket};
