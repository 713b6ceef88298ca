//! The packet filter, spoken to by its own netlink messages: nf_tables, as much of it as is needed. A change is one
//! transaction in one system call. What it costs grows with the number of tables, chains and rules in the namespace,
//! since the kernel walks them.
//!
//! Not here: what rules are for.

pub mod attribute;
pub mod batch;
pub mod expression;
mod filter;

pub use filter::{Base, Chain, Closed, Committed, Filter, Rule};
