//! `macspoofchk`: frames from a pod that bear another Ethernet address than the pod's are thrown away.
//!
//! ```text
//!  table bridge nat
//!    PREROUTING                        iifname <host's end> ─► jump
//!    cni-br-iface-<container>-<if>     ─► jump
//!    cni-br-iface-<container>-<if>-mac ether saddr <pod's address> ─► return; else drop
//! ```
//!
//! Names, comments and layout are the reference's, pkg/link/spoofcheck.go of v1.9.1. Ours is made in one transaction. Its
//! rule in the common chain comes before all others, while the reference's comes last, where a rule of another program may
//! have accepted the frame before; and it bears a mark of its network in its user data, where `nft` does not look.
//!
//! Handles of a table are given in order, so the rule in the common chain has the number after those of the two chains
//! that were made with it, and a DEL finds it without listing a chain that has a rule for every pod of the node. If the
//! guess is wrong, it lists.

use std::collections::BTreeSet;

use rustix::io::Errno;

use crate::error::{Error, Kind};
use crate::nft::foreign::foreign_rule;
use crate::nft::tag;
use crate::protocol::{Attachment, Mac};
use link::nft::batch::{BRIDGE, Batch, Hook, NewRule, Table};
use link::nft::expression::Expression;
use link::nft::{Chain, Filter, Rule};

const TABLE: Table = Table { family: BRIDGE, name: "nat" };
const COMMON: &str = "PREROUTING";
/// NF_BR_PRE_ROUTING.
const HOOK: Hook = Hook { kind: "filter", number: 0, priority: -300 };
const COMMENT: &str = "macspoofchk-";
const CHAIN: &str = "cni-br-iface-";

/// The longest comment `nft` takes, in bytes.
const COMMENT_LIMIT: usize = 128;

/// Attempts when another process changes the rules between look-up and change.
const TURNS: u8 = 5;

/// How many attachments go in one transaction: it must fit into a socket's buffer.
const AT_ONCE: usize = 128;

/// The check of one attachment.
#[derive(Clone, Debug)]
pub(crate) struct SpoofCheck {
    /// `<container>-<interface>`, which is in all names.
    id: String,
    tag: Vec<u8>,
}

impl SpoofCheck {
    /// The one of `attachment` to `network`.
    pub(crate) fn new(network: &str, attachment: &Attachment) -> Self {
        let Attachment { container, interface } = attachment;
        let id = format!("{container}-{interface}");
        let tag = tag::of(network, &id);
        Self { id, tag }
    }

    /// Whether its names can be written at all.
    ///
    /// # Errors
    /// [`Kind::Unsupported`].
    pub(crate) fn fits(&self) -> Result<(), Error> {
        if COMMENT.len() + self.id.len() <= COMMENT_LIMIT {
            return Ok(());
        }
        let most = COMMENT_LIMIT - COMMENT.len();
        let message =
            format!("\"macspoofchk\" takes at most {most} bytes of container id and interface name");
        Err(Error::new(Kind::Unsupported, message))
    }

    fn chain(&self) -> String {
        format!("{CHAIN}{}", self.id)
    }

    fn mac_chain(&self) -> String {
        format!("{CHAIN}{}-mac", self.id)
    }

    fn comment(&self) -> String {
        format!("{COMMENT}{}", self.id)
    }

    /// Restricts frames through `host_end` to the source address `mac`. The link need not exist yet. Rules of an earlier
    /// attachment of the same name are replaced if its link is gone: `link_exists` reports it.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] when the attachment exists, when the table is dormant, or when another program made the common
    /// chain with another type, hook, priority or policy; [`Kind::Kernel`].
    pub(crate) fn set_up(
        &self,
        filter: &mut Filter,
        host_end: &str,
        mac: Mac,
        mut link_exists: impl FnMut(&str) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        self.fits()?;
        check_hooks(filter)?;
        for turn in 1..=TURNS {
            // The table and its common chain are there, mostly. To make them again would be an update, and the kernel lets
            // a process that has updated something wait for a grace period when it closes its socket.
            let mut committed = filter.commit(&self.making(host_end, mac))?;
            if committed.because(Errno::NOENT) {
                let mut whole = common();
                whole.append(self.making(host_end, mac));
                committed = filter.commit(&whole)?;
            }
            if !committed.because(Errno::EXIST) || turn == TURNS {
                return Ok(committed.done()?);
            }
            let chain = filter.chain(TABLE, &self.chain())?;
            let rules = self.rules(filter, chain.as_ref())?;
            for link in rules.iter().filter_map(|rule| rule.input.as_deref()) {
                if link_exists(link)? {
                    let message = format!("{} is attached already, by {link}; detach it first", self.id);
                    return Err(Error::mismatch(message));
                }
            }
            self.tear_down(filter)?;
        }
        Ok(())
    }

    fn making(&self, host_end: &str, mac: Mac) -> Batch {
        let (chain, mac_chain) = (self.chain(), self.mac_chain());
        let rule = |expressions: Vec<Expression>, tag: &[u8]| NewRule {
            expressions,
            comment: self.comment(),
            tag: tag.to_vec(),
        };
        let mut batch = Batch::new();
        batch.new_chain(TABLE, &chain);
        batch.new_chain(TABLE, &mac_chain);
        let [meta, compare] = Expression::input(host_end);
        // Rules of others may accept frames before they reach the end of the chain.
        batch.first_rule(
            TABLE,
            COMMON,
            &rule(vec![meta, compare, Expression::Jump(chain.clone())], &self.tag),
        );
        batch.rule(TABLE, &chain, &rule(vec![Expression::Jump(mac_chain.clone())], &[]));
        let [load, compare] = Expression::ether_source(mac.0);
        batch.rule(TABLE, &mac_chain, &rule(vec![load, compare, Expression::Return], &[]));
        batch.rule(TABLE, &mac_chain, &rule(vec![Expression::Drop], &[]));
        batch
    }

    /// Removes the check, ours or the reference's; succeeds when there is none. A check with names that cannot be written
    /// was never made, and the kernel rejects the query.
    ///
    /// # Errors
    /// [`Kind::Kernel`].
    pub(crate) fn tear_down(&self, filter: &mut Filter) -> Result<(), Error> {
        if self.fits().is_err() {
            return Ok(());
        }
        for _ in 1..TURNS {
            let batch = self.removing(filter)?;
            let committed = filter.commit(&batch)?;
            // Another process changed the rules first.
            if !committed.because(Errno::NOENT) && !committed.because(Errno::BUSY) {
                return Ok(committed.done()?);
            }
        }
        let batch = self.removing(filter)?;
        Ok(filter.commit(&batch)?.done()?)
    }

    fn removing(&self, filter: &mut Filter) -> Result<Batch, Error> {
        let mut batch = Batch::new();
        let chain = filter.chain(TABLE, &self.chain())?;
        let mac_chain = filter.chain(TABLE, &self.mac_chain())?;
        if chain.is_none() && mac_chain.is_none() {
            return Ok(batch);
        }
        for rule in self.rules(filter, chain.as_ref())? {
            batch.delete_rule(TABLE, COMMON, rule.handle);
        }
        if chain.is_some() {
            batch.delete_chain(TABLE, &self.chain());
        }
        if mac_chain.is_some() {
            batch.delete_chain(TABLE, &self.mac_chain());
        }
        Ok(batch)
    }

    /// Its rules in the common chain: one, unless an ADD of the reference found some left behind.
    fn rules(&self, filter: &mut Filter, chain: Option<&Chain>) -> Result<Vec<Rule>, Error> {
        let comment = self.comment();
        // Its one rule and its one caller.
        if let Some(chain) = chain.filter(|chain| chain.uses == 2)
            && let Some(guess) = chain.handle.checked_add(2)
            && let Some(rule) = filter.rule(TABLE, COMMON, guess)?.filter(|rule| rule.comment == comment)
        {
            return Ok(vec![rule]);
        }
        let all = filter.rules(TABLE, COMMON)?;
        Ok(all.into_iter().filter(|rule| rule.comment == comment).collect())
    }

    /// Whether this node's kernel can check.
    ///
    /// # Errors
    /// [`Kind::Kernel`] with what it lacks; [`Kind::Mismatch`] when the table is dormant or its common chain is not
    /// the one that sees all frames.
    pub(crate) fn offered() -> Result<(), Error> {
        let attachment = Attachment { container: "status".to_owned(), interface: "status".to_owned() };
        let mut whole = common();
        whole.append(Self::new("", &attachment).making("status", Mac([0; 6])));
        let mut filter = Filter::open()?;
        check_hooks(&mut filter)?;
        // A check that is in use proves it. The rehearsal makes the kernel wait for all processors, 10 to 20 ms.
        if filter.chains(TABLE)?.iter().any(|chain| chain.name.starts_with(CHAIN) && chain.uses > 0) {
            return Ok(());
        }
        Ok(filter.rehearse(whole, TABLE)?)
    }

    /// Whether what comes through `host_end` is checked, and no rule of another program may accept it before.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] when it is not; [`Kind::Kernel`].
    pub(crate) fn check(&self, filter: &mut Filter, host_end: &str) -> Result<(), Error> {
        check_hooks(filter)?;
        let target = self.chain();
        let checks = |rule: &Rule| {
            rule.input.as_deref() == Some(host_end) && rule.target.as_deref() == Some(target.as_str())
        };
        let whole = self.is_whole(filter, host_end)?;
        let rules = filter.rules(TABLE, COMMON)?;
        let Some(place) = rules.iter().position(checks).filter(|_| whole) else {
            let message = format!("the Ethernet address of frames from {host_end} is no longer checked");
            return Err(Error::mismatch(message));
        };
        let evades = |rule: &&Rule| {
            let of_link = rule.input.as_deref().is_none_or(|input| input == host_end);
            rule.diverts && of_link && !rule.comment.starts_with(COMMENT)
        };
        match rules.iter().take(place).find(evades) {
            None => Ok(()),
            Some(rule) => Err(foreign(COMMON, rule, host_end)),
        }
    }

    /// Whether its two chains hold the rules that it made.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] when one of them holds a rule of another program; [`Kind::Kernel`].
    fn is_whole(&self, filter: &mut Filter, host_end: &str) -> Result<bool, Error> {
        let comment = self.comment();
        let mut whole = true;
        for (chain, wanted) in [(self.chain(), 1), (self.mac_chain(), 2)] {
            let rules = filter.rules(TABLE, &chain)?;
            if let Some(rule) = rules.iter().find(|rule| rule.comment != comment) {
                return Err(foreign(&chain, rule, host_end));
            }
            whole &= rules.len() == wanted;
        }
        Ok(whole)
    }
}

/// The error for a rule of another program in `chain`.
fn foreign(chain: &str, rule: &Rule, host_end: &str) -> Error {
    let effect = format!("accept frames from {host_end} before their Ethernet address is checked");
    foreign_rule(TABLE, chain, rule, &effect)
}

/// Rejects a table with rules that frames from pods do not pass.
fn check_hooks(filter: &mut Filter) -> Result<(), Error> {
    filter.reject_dormant(TABLE)?;
    Ok(filter.hooked(TABLE, COMMON, HOOK)?)
}

/// The part that all checks share, if it is missing.
fn common() -> Batch {
    let mut batch = Batch::new();
    batch.table(TABLE, "");
    batch.base_chain(TABLE, COMMON, HOOK);
    batch
}

/// All checks of a node, to find those that are left behind.
#[derive(Debug, Default)]
pub(crate) struct SpoofChecks {
    rules: Vec<Rule>,
    chains: BTreeSet<String>,
}

impl SpoofChecks {
    /// Looks.
    ///
    /// # Errors
    /// [`Kind::Kernel`].
    pub(crate) fn list(filter: &mut Filter) -> Result<Self, Error> {
        let mut rules = filter.rules(TABLE, COMMON)?;
        rules.retain(|rule| rule.comment.starts_with(COMMENT));
        let chains = filter.chains(TABLE)?.into_iter().map(|chain| chain.name);
        Ok(Self { rules, chains: chains.filter(|name| name.starts_with(CHAIN)).collect() })
    }

    /// The link of an attachment that has a check.
    pub(crate) fn link(&self, attachment: &Attachment) -> Option<&str> {
        let comment = SpoofCheck::new("", attachment).comment();
        self.rules.iter().find(|rule| rule.comment == comment)?.input.as_deref()
    }

    /// Removes the checks of `network` that belong to none of `valid`: ours by their mark, others if they are of one of
    /// `proven`, attachments that are known to be of this network.
    ///
    /// # Errors
    /// [`Kind::Kernel`].
    pub(crate) fn sweep(
        &self,
        filter: &mut Filter,
        network: &str,
        valid: &BTreeSet<Attachment>,
        proven: &BTreeSet<Attachment>,
    ) -> Result<(), Error> {
        let checks = |set: &BTreeSet<Attachment>| -> Vec<SpoofCheck> {
            set.iter().map(|one| SpoofCheck::new(network, one)).collect()
        };
        let keep: BTreeSet<String> = checks(valid).into_iter().map(|check| check.id).collect();
        let known: BTreeSet<String> = checks(proven).into_iter().map(|check| check.id).collect();
        let ours = tag::of_network(network);
        let of_rules = self.rules.iter().filter_map(|rule| {
            let id = rule.comment.strip_prefix(COMMENT)?;
            (rule.tag.starts_with(&ours) || known.contains(id)).then(|| id.to_owned())
        });
        let stale: BTreeSet<String> =
            of_rules.chain(known.iter().cloned()).filter(|id| !keep.contains(id)).collect();
        let stale: Vec<String> = stale.into_iter().collect();
        let mut errors = Vec::new();
        for some in stale.chunks(AT_ONCE) {
            if filter.commit(&self.sweeping(some))?.done().is_ok() {
                continue;
            }
            // Rules changed in between: remove one by one.
            for id in some {
                let check = SpoofCheck { id: id.clone(), tag: Vec::new() };
                errors.extend(check.tear_down(filter).err());
            }
        }
        Error::all(errors)
    }

    fn sweeping(&self, ids: &[String]) -> Batch {
        let comments: BTreeSet<String> = ids.iter().map(|id| format!("{COMMENT}{id}")).collect();
        let mut batch = Batch::new();
        for rule in self.rules.iter().filter(|rule| comments.contains(&rule.comment)) {
            batch.delete_rule(TABLE, COMMON, rule.handle);
        }
        for id in ids {
            for name in [format!("{CHAIN}{id}"), format!("{CHAIN}{id}-mac")] {
                if self.chains.contains(&name) {
                    batch.delete_chain(TABLE, &name);
                }
            }
        }
        batch
    }
}
