//! The packet filter, spoken to by its own netlink messages: nf_tables, as much of it as is needed. A change is one
//! transaction in one system call, and costs the same however many rules there are.
//!
//! Not here: what rules are for.

pub mod attribute;
pub mod batch;
pub mod expression;
mod filter;

pub use filter::{Chain, Closed, Committed, Filter, Rule};
