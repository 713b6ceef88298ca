//! Foreign packet filters that drop forwarded traffic, and so the guests': detected, with the command that admits ours.
//! Nothing in them is changed: they are not ours.

use link::nft::batch::{INET, IPV4, IPV6};
use link::nft::{Closed, Filter};

use super::pod::BRIDGE;
use crate::error::Error;

/// Rules that block the pod network's traffic, each with the command that admits it.
///
/// # Errors
/// The packet filter cannot be asked.
pub fn closed() -> Result<Vec<(String, String)>, Error> {
    let found = Filter::open()?.closed(BRIDGE)?;
    Ok(found.iter().map(|one| (describe(one), command(one))).collect())
}

fn describe(one: &Closed) -> String {
    let Closed { table, chain, .. } = one;
    if table == "firewalld" {
        return "firewalld does not forward packets of guests".to_owned();
    }
    format!("the chain {chain} of the packet filter's table {table} throws away what is forwarded")
}

fn command(one: &Closed) -> String {
    let Closed { family, table, chain } = one;
    if table == "firewalld" {
        return format!(
            "firewall-cmd --permanent --zone=trusted --add-interface={BRIDGE} && firewall-cmd --reload"
        );
    }
    let rules = |insert: &str, accept: &str, input: &str, output: &str| {
        format!("{insert} {input} {BRIDGE} {accept} && {insert} {output} {BRIDGE} {accept}")
    };
    // The tables of iptables are its own; nft must not write them.
    match (*family, table.as_str()) {
        (IPV4, "filter") => rules(&format!("iptables -I {chain}"), "-j ACCEPT", "-i", "-o"),
        (IPV6, "filter") => rules(&format!("ip6tables -I {chain}"), "-j ACCEPT", "-i", "-o"),
        (family, table) => {
            let family = match family {
                IPV4 => "ip",
                IPV6 => "ip6",
                INET => "inet",
                _ => "bridge",
            };
            rules(&format!("nft insert rule {family} {table} {chain}"), "accept", "iifname", "oifname")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_its_own_command() {
        let of = |family, table: &str, chain: &str| {
            command(&Closed { family, table: table.to_owned(), chain: chain.to_owned() })
        };
        assert_eq!(
            of(IPV4, "filter", "FORWARD"),
            "iptables -I FORWARD -i fv0 -j ACCEPT && iptables -I FORWARD -o fv0 -j ACCEPT"
        );
        assert!(of(INET, "firewalld", "filter_FORWARD").starts_with("firewall-cmd "));
        assert_eq!(
            of(INET, "own", "fwd"),
            "nft insert rule inet own fwd iifname fv0 accept && nft insert rule inet own fwd oifname fv0 accept"
        );
    }
}
