//! `ipMasq` by nftables: what a pod sends beyond its own network leaves with the node's address.
//!
//! ```text
//!  table inet cni_plugins_masquerade
//!    postrouting   multicast ─► return; else go to
//!    masq_checks   one rule for each address: from it, and not into its network ─► masquerade
//! ```
//!
//! Names, comments and layout are the reference's, pkg/ip/ipmasq_nftables_linux.go of v1.9.1: rules are found by the two
//! hashes their comment begins with, of the network and of interface and container.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustix::io::Errno;
use sha2::{Digest, Sha512};

use crate::error::Error;
use crate::nft::foreign::foreign_rule;
use crate::nft::iptables;
use crate::protocol::{Attachment, Call};
use link::nft::batch::{Batch, Hook, INET, NewRule, Table};
use link::nft::expression::{Expression, Is};
use link::nft::{Filter, Rule};

const TABLE: Table = Table { family: INET, name: "cni_plugins_masquerade" };
const TABLE_COMMENT: &str = "Masquerading for plugins from github.com/containernetworking/plugins";
const CHECKS: &str = "masq_checks";
const CHECKS_COMMENT: &str =
    "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet";
const BASE: &str = "postrouting";
/// NF_INET_POST_ROUTING, NF_IP_PRI_NAT_SRC.
const HOOK: Hook = Hook { kind: "nat", number: 4, priority: 100 };
/// How many rules `common` puts there.
const BASE_RULES: u32 = 3;

/// The longest comment, in bytes; longer ones are cut.
const COMMENT_LIMIT: usize = 128;

/// Attempts when another process changes the rules between listing and change.
const TURNS: u8 = 5;

/// How many rules go in one transaction.
const AT_ONCE: usize = 256;

/// Which packet filter masquerades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// nftables, by our own netlink messages.
    Nftables,
    /// iptables, by its program.
    Iptables,
}

impl Backend {
    /// Whether this node has it.
    ///
    /// # Errors
    /// [`crate::Kind::Kernel`] or [`crate::Kind::Unsupported`] with what is missing.
    pub(crate) fn offered(self) -> Result<(), Error> {
        match self {
            Self::Nftables => {
                let mut whole = common();
                let any = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));
                whole.rule(TABLE, CHECKS, &NewRule { expressions: rule(any), ..NewRule::default() });
                let mut filter = Filter::open()?;
                check_hooks(&mut filter)?;
                Ok(filter.rehearse(whole, TABLE)?)
            }
            Self::Iptables => iptables::offered(),
        }
    }
}

/// The masquerading of one attachment.
#[derive(Clone, Debug)]
pub(crate) struct Masquerading {
    network: String,
    attachment: Attachment,
}

impl Masquerading {
    /// The one of a call's attachment.
    pub(crate) fn new(call: &Call) -> Self {
        Self { network: call.network.clone(), attachment: call.attachment.clone() }
    }

    /// Masquerades what comes from `addresses`, each with its network's prefix length.
    ///
    /// # Errors
    /// [`crate::Kind::Kernel`]; iptables' own error.
    pub(crate) fn set_up(&self, backend: Backend, addresses: &[IpNet]) -> Result<(), Error> {
        match backend {
            Backend::Nftables => self.add_rules(&mut Filter::open()?, addresses),
            Backend::Iptables => iptables::set_up(&self.network, &self.attachment.container, addresses),
        }
    }

    /// Removes the rules of either backend, ours and the reference's; succeeds when there are none. The addresses need not
    /// be known.
    ///
    /// # Errors
    /// Every failure, after all was tried.
    pub(crate) fn tear_down(&self) -> Result<(), Error> {
        let mut filter = Filter::open()?;
        let mut errors = Vec::new();
        errors.extend(self.remove_rules(&mut filter).err());
        errors.extend(iptables::tear_down(&mut filter, &self.network, &self.attachment.container).err());
        Error::all(errors)
    }

    /// Checks that traffic from `addresses` is masqueraded, by either backend, ours or the reference's, and that no rule of
    /// another program in the same chains may let it pass before.
    ///
    /// # Errors
    /// [`crate::Kind::Mismatch`] when it is not; [`crate::Kind::Kernel`].
    pub(crate) fn check(&self, addresses: &[IpNet]) -> Result<(), Error> {
        let mut filter = Filter::open()?;
        let hash = instance(&self.network, &self.attachment);
        let base = filter.rules(TABLE, BASE)?;
        let leads = base.iter().enumerate().find(|(_, rule)| rule.target.as_deref() == Some(CHECKS));
        let rules = filter.rules(TABLE, CHECKS)?;
        let is_ours = |rule: &Rule| rule.comment.starts_with(&hash);
        let ours = rules.iter().filter(|rule| is_ours(rule)).count();
        if let Some((place, lead)) = leads.filter(|_| ours >= addresses.len()) {
            check_hooks(&mut filter)?;
            // The rules for multicast were made in one transaction with the one that leads on, right before it.
            let before = 1..u64::from(BASE_RULES);
            let multicast =
                |rule: &Rule| lead.handle.checked_sub(rule.handle).is_some_and(|back| before.contains(&back));
            reject_foreign(BASE, base.iter().take(place).find(|rule| rule.diverts && !multicast(rule)))?;
            let last = rules.iter().rposition(is_ours).unwrap_or(0);
            return reject_foreign(CHECKS, rules.iter().take(last).find(|rule| rule.diverts));
        }
        if iptables::is_set_up(&mut filter, &self.network, &self.attachment.container, addresses)? {
            return Ok(());
        }
        let from: Vec<String> = addresses.iter().map(|net| net.addr().to_string()).collect();
        Err(Error::mismatch(format!("traffic from {} is no longer masqueraded", from.join(", "))))
    }

    fn add_rules(&self, filter: &mut Filter, addresses: &[IpNet]) -> Result<(), Error> {
        check_hooks(filter)?;
        let rules = making(&self.network, &self.attachment, addresses);
        // The shared part mostly exists. Rewriting it each time, as the reference does, would cost a grace period when
        // the socket is closed.
        if filter.chain(TABLE, BASE)?.is_some_and(|chain| chain.uses == BASE_RULES) {
            let committed = filter.commit(&rules)?;
            if !committed.because(Errno::NOENT) {
                return Ok(committed.done()?);
            }
        }
        let mut whole = common();
        whole.append(rules);
        Ok(filter.commit(&whole)?.done()?)
    }

    fn remove_rules(&self, filter: &mut Filter) -> Result<(), Error> {
        let hash = instance(&self.network, &self.attachment);
        for turn in 1..=TURNS {
            let mut rules = filter.rules(TABLE, CHECKS)?;
            rules.retain(|rule| rule.comment.starts_with(&hash));
            let committed = filter.commit(&removing(&rules))?;
            if !committed.because(Errno::NOENT) || turn == TURNS {
                return Ok(committed.done()?);
            }
        }
        Ok(())
    }
}

/// Removes the rules of `network` that belong to none of `valid`, of either backend; the attachments are not known, their
/// rules are.
///
/// # Errors
/// Every failure, after all was tried.
pub(crate) fn sweep(filter: &mut Filter, network: &str, valid: &BTreeSet<Attachment>) -> Result<(), Error> {
    let mut errors = Vec::new();
    errors.extend(sweep_rules(filter, network, valid).err());
    errors.extend(iptables::sweep(filter, network, valid).err());
    Error::all(errors)
}

fn sweep_rules(filter: &mut Filter, network: &str, valid: &BTreeSet<Attachment>) -> Result<(), Error> {
    let keep: BTreeSet<String> = valid.iter().map(|one| instance(network, one)).collect();
    let prefix = format!("{}-", hash(network));
    for turn in 1..=TURNS {
        let mut rules = filter.rules(TABLE, CHECKS)?;
        rules.retain(|rule| {
            let name = rule.comment.split(',').next().unwrap_or_default();
            name.starts_with(&prefix) && !keep.contains(name)
        });
        let mut again = false;
        for some in rules.chunks(AT_ONCE) {
            let committed = filter.commit(&removing(some))?;
            again |= committed.because(Errno::NOENT);
            if !committed.because(Errno::NOENT) || turn == TURNS {
                committed.done()?;
            }
        }
        if !again {
            break;
        }
    }
    Ok(())
}

/// Whether the kernel has tables for IPv4 and IPv6 together.
///
/// # Errors
/// [`crate::Kind::Kernel`] with what it lacks.
pub(crate) fn offers_inet() -> Result<(), Error> {
    let mut batch = Batch::new();
    batch.table(TABLE, TABLE_COMMENT);
    Ok(Filter::open()?.rehearse(batch, TABLE)?)
}

/// Rejects a rule of another program in `chain` that comes before ours.
fn reject_foreign(chain: &str, rule: Option<&Rule>) -> Result<(), Error> {
    let effect = "let traffic of pods pass before it is masqueraded";
    rule.map_or(Ok(()), |rule| Err(foreign_rule(TABLE, chain, rule, effect)))
}

fn removing(rules: &[Rule]) -> Batch {
    let mut batch = Batch::new();
    for rule in rules {
        batch.delete_rule(TABLE, CHECKS, rule.handle);
    }
    batch
}

/// Rejects a table with rules that outgoing packets do not pass.
fn check_hooks(filter: &mut Filter) -> Result<(), Error> {
    filter.reject_dormant(TABLE)?;
    filter.hooked(TABLE, BASE, HOOK)?;
    Ok(filter.unhooked(TABLE, CHECKS)?)
}

/// The part that all attachments share.
fn common() -> Batch {
    let mut batch = Batch::new();
    batch.table(TABLE, TABLE_COMMENT);
    batch.chain(TABLE, CHECKS, CHECKS_COMMENT);
    batch.base_chain(TABLE, BASE, HOOK);
    batch.flush_chain(TABLE, BASE);
    let multicast = [
        IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)),
    ];
    let plain = |expressions| NewRule { expressions, ..NewRule::default() };
    for net in multicast {
        let mut expressions = Expression::family(net.addr()).to_vec();
        expressions.extend(Expression::destination(Is::Equal, net));
        expressions.push(Expression::Return);
        batch.rule(TABLE, BASE, &plain(expressions));
    }
    batch.rule(TABLE, BASE, &plain(vec![Expression::Goto(CHECKS.to_owned())]));
    batch
}

fn making(network: &str, attachment: &Attachment, addresses: &[IpNet]) -> Batch {
    let mut batch = Batch::new();
    for address in addresses {
        let comment = comment(network, attachment);
        batch.rule(TABLE, CHECKS, &NewRule { expressions: rule(*address), comment, tag: Vec::new() });
    }
    batch
}

fn rule(address: IpNet) -> Vec<Expression> {
    let from: IpAddr = address.addr();
    let mut expressions = Expression::family(from).to_vec();
    expressions.extend(Expression::source(from));
    expressions.extend(Expression::destination(Is::Different, address));
    expressions.push(Expression::Masquerade);
    expressions
}

fn hash(text: &str) -> String {
    Sha512::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn instance(network: &str, attachment: &Attachment) -> String {
    let Attachment { container, interface } = attachment;
    format!("{}-{}", hash(network), hash(&format!("{interface}:{container}")))
}

fn comment(network: &str, attachment: &Attachment) -> String {
    let Attachment { container, interface } = attachment;
    let hashes = instance(network, attachment);
    let interface = interface.replace('"', "");
    let mut comment = format!("{hashes}, net: {network}, if: {interface}, id: {container}");
    if comment.len() > COMMENT_LIMIT {
        let end = (0..=COMMENT_LIMIT).rev().find(|at| comment.is_char_boundary(*at)).unwrap_or(0);
        comment.truncate(end);
    }
    comment
}
