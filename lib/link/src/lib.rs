//! The kernel's networking, as much of it as the plugins and virt-node need: links, addresses and routes ([`netlink`]), the
//! packet filter ([`nft`]), locked ports of bridges ([`locked`]), network namespaces ([`Namespace`]) and tap devices ([`tap`]).
//!
//! Synchronous, with no thread and no async runtime: a plugin process lives for a few milliseconds, and a daemon calls from a
//! thread of its own.
//!
//! Not here: CNI, Kubernetes, the desired state.

mod error;
pub mod locked;
mod mac;
mod namespace;
pub mod netlink;
pub mod nft;
pub mod tap;

pub use ::mac::Mac;
pub use error::{Error, Kind};
pub use mac::interface_mac;
pub use namespace::Namespace;
