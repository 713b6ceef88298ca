//! The packet filter of a guest behind masquerade, in the guest's namespace: one table of ours, put in place as a whole.
//!
//! ```text
//!  table inet ferrovirt-IFACE
//!    prerouting    what comes by IFACE, to a port of the list (or any) ─► to the guest
//!    postrouting   what leaves by IFACE ─► with IFACE's address; so a guest cannot pretend to be another
//! ```

use std::net::IpAddr;

use link::nft::Filter;
use link::nft::batch::{Batch, Hook, INET, NewRule, Table};
use link::nft::expression::Expression;

use super::Port;
use crate::error::Error;

/// There is one such interface in a namespace, the pod network's.
const TABLE: Table = Table { family: INET, name: "ferrovirt" };
/// `NF_INET_PRE_ROUTING` with `NF_IP_PRI_NAT_DST`, `NF_INET_POST_ROUTING` with `NF_IP_PRI_NAT_SRC`.
const IN: Hook = Hook { kind: "nat", number: 0, priority: -100 };
const OUT: Hook = Hook { kind: "nat", number: 4, priority: 100 };

/// The table of an interface; its packets go to the addresses `guests`.
fn batch(interface: &str, guests: &[IpAddr], ports: &[Port]) -> Batch {
    let mut batch = Batch::new();
    // Made and removed first: what is there is replaced, in one transaction.
    batch.table(TABLE, "");
    batch.delete_table(TABLE);
    batch.table(TABLE, "a guest behind masquerade");
    batch.base_chain(TABLE, "prerouting", IN);
    batch.base_chain(TABLE, "postrouting", OUT);
    let rule = |expressions| NewRule { expressions, ..NewRule::default() };
    for guest in guests {
        let to_guest = |port: Option<&Port>| {
            let mut rule = Expression::input(interface).to_vec();
            rule.extend(Expression::family(*guest));
            if let Some(Port { tcp, number, last }) = port {
                rule.extend(Expression::ports(if *tcp { 6 } else { 17 }, *number, *last));
            }
            rule.extend(Expression::redirect(*guest));
            rule
        };
        if ports.is_empty() {
            batch.rule(TABLE, "prerouting", &rule(to_guest(None)));
        }
        for port in ports {
            batch.rule(TABLE, "prerouting", &rule(to_guest(Some(port))));
        }
    }
    let mut out = Expression::output(interface).to_vec();
    out.push(Expression::Masquerade);
    batch.rule(TABLE, "postrouting", &rule(out));
    batch
}

/// Puts the table in place, in this thread's namespace.
pub(crate) fn put(interface: &str, guests: &[IpAddr], ports: &[Port]) -> Result<(), Error> {
    Ok(Filter::open()?.commit(&batch(interface, guests, ports))?.done()?)
}

/// Removes it.
pub(crate) fn remove() -> Result<(), Error> {
    let mut batch = Batch::new();
    batch.table(TABLE, "");
    batch.delete_table(TABLE);
    Ok(Filter::open()?.commit(&batch)?.done()?)
}
