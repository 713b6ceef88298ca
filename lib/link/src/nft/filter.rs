//! The socket to nf_tables: sends a transaction, and asks for chains and rules.

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;
use rustix::io::Errno;

use crate::error::{Error, Kind};
use crate::netlink::{Frame, Refusal, Reply, Socket};
use crate::nft::attribute::{self, Attributes};
use crate::nft::batch::{
    Batch, Element, GET_CHAIN, GET_ELEMENTS, GET_RULE, GET_TABLE, Hook, INET, IPV4, IPV6, NEW_CHAIN,
    NEW_ELEMENTS, NEW_RULE, NEW_TABLE, Set, Table, remarks,
};
use crate::nft::expression;

/// `linux/netfilter/nfnetlink.h`.
const SUBSYSTEM: u8 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// Bytes of nfgenmsg, which come before the attributes.
const FAMILY_HEADER: usize = 4;

/// Attempts of a dump while the rules change.
const DUMPS: u8 = 20;

/// `NFT_TABLE_F_DORMANT`: no packet comes into the table's chains.
const DORMANT: u32 = 1;

/// `NF_INET_FORWARD`, and `NF_DROP` as a policy.
const FORWARD: u32 = 2;
const DROP: u32 = 0;
/// The table of firewalld, and its chain for what is forwarded.
const FIREWALLD: &str = "firewalld";
const FIREWALLD_FORWARD: &str = "filter_FORWARD";

/// A chain that does not exist.
const NOWHERE: &str = "cni-nowhere";

/// A socket to the packet filter of the namespace this process is in. Where the kernel has none there are no rules, and
/// none can be made.
pub struct Filter {
    socket: Option<Socket>,
}

/// Result of a transaction.
#[must_use]
pub enum Committed {
    /// All of it happened.
    Yes,
    /// Nothing happened; the first message that was refused, and why.
    Refused {
        /// The purpose of the message.
        what: String,
        /// Why.
        refusal: Refusal,
    },
}

impl Committed {
    /// # Errors
    /// [`Kind::Kernel`] with what was refused and the kernel's words.
    pub fn done(self) -> Result<(), Error> {
        match self {
            Self::Yes => Ok(()),
            Self::Refused { what, refusal } => Err(refused(&what, refusal)),
        }
    }

    /// Whether it was refused for this reason.
    pub fn because(&self, errno: Errno) -> bool {
        matches!(self, Self::Refused { refusal, .. } if refusal.errno == errno)
    }
}

fn refused(what: &str, refusal: Refusal) -> Error {
    if refusal.errno == Errno::OPNOTSUPP {
        let message = format!("the kernel did not {what}: it may lack nf_tables or a part of it");
        return Error::with(Kind::Kernel, message, refusal);
    }
    Error::with(Kind::Kernel, format!("the kernel did not {what}"), refusal)
}

/// A chain as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Its number.
    pub handle: u64,
    /// Its name.
    pub name: String,
    /// Its rules, and those that jump to it.
    pub uses: u32,
    /// Where packets enter it; none for a chain that is only jumped to.
    pub base: Option<Base>,
}

/// Where packets enter a base chain, and what becomes of those that reach its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// `filter`, `nat` or `route`.
    pub kind: String,
    /// `NF_…` of the family.
    pub number: u32,
    /// Chains of lower ones come first.
    pub priority: i32,
    /// Whether its policy is to drop.
    pub drops: bool,
}

impl Base {
    fn words(&self) -> String {
        let policy = if self.drops { "drop" } else { "accept" };
        let Self { kind, number, priority, .. } = self;
        let number = number.to_string();
        let hook = match self.number {
            0 => "prerouting",
            1 => "input",
            FORWARD => "forward",
            3 => "output",
            4 => "postrouting",
            5 => "ingress",
            _ => &number,
        };
        format!("type {kind} at hook {hook} with priority {priority} and policy {policy}")
    }
}

/// A rule as the kernel describes it, as far as rules differ for us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Its number.
    pub handle: u64,
    /// Its remark.
    pub comment: String,
    /// Our mark in its user data.
    pub tag: Vec<u8>,
    /// The link of its incoming packets.
    pub input: Option<String>,
    /// The chain it jumps to.
    pub target: Option<String>,
    /// Whether rules after it may not see a packet that it lets pass.
    pub diverts: bool,
}

/// A chain that throws away what is forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// `NFPROTO_…`.
    pub family: u8,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
}

impl Filter {
    /// In the namespace this process is in.
    ///
    /// # Errors
    /// As [`Socket::open`].
    pub fn open() -> Result<Self, Error> {
        match Socket::open(NETLINK_NETFILTER) {
            Ok(socket) => Ok(Self { socket: Some(socket) }),
            Err(error) if error.kind() == Kind::Unsupported => Ok(Self { socket: None }),
            Err(error) => Err(error),
        }
    }

    /// Whether the kernel would carry a transaction out in `table`. It is sent with an end that cannot be, so that nothing
    /// of it happens.
    ///
    /// # Errors
    /// [`Kind::Kernel`] with what would be refused and why.
    pub fn rehearse(&mut self, mut batch: Batch, table: Table) -> Result<(), Error> {
        batch.flush_chain(table, NOWHERE);
        match self.commit(&batch)? {
            Committed::Refused { what, refusal }
                if refusal.errno == Errno::NOENT && what.contains(NOWHERE) =>
            {
                Ok(())
            }
            other @ (Committed::Yes | Committed::Refused { .. }) => other.done(),
        }
    }

    /// Carries a transaction out, in one system call.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when the socket fails; a refusal is an answer.
    pub fn commit(&mut self, batch: &Batch) -> Result<Committed, Error> {
        if batch.is_empty() {
            return Ok(Committed::Yes);
        }
        let Some(socket) = &mut self.socket else {
            return Err(Error::new(Kind::Kernel, "the kernel has no nf_tables"));
        };
        let mut bytes = Vec::new();
        let begin = socket.next_sequence();
        frame(&mut bytes, BATCH_BEGIN, 0, begin, (0, u16::from(SUBSYSTEM)), &Attributes::default());
        let mut last = begin;
        for (index, message) in batch.messages.iter().enumerate() {
            last = socket.next_sequence();
            let end = index + 1 == batch.messages.len();
            // Refusals come anyway; only the end must be acknowledged.
            let flags = message.flags | if end { NLM_F_ACK } else { 0 };
            let kind = kind(message.kind);
            frame(&mut bytes, kind, flags, last, (message.family, 0), &message.attributes);
        }
        let end = socket.next_sequence();
        frame(&mut bytes, BATCH_END, 0, end, (0, u16::from(SUBSYSTEM)), &Attributes::default());
        // A failure of the whole transaction, not of one message, is answered as if the first frame had failed.
        let replies = socket.transact_until(&bytes, |reply| match reply {
            Reply::Data(_) => false,
            Reply::Done { sequence } => *sequence == last,
            Reply::Refused { sequence, .. } => *sequence == last || *sequence == begin,
        })?;
        let first = replies.into_iter().find_map(|reply| match reply {
            Reply::Refused { sequence, refusal } => Some((sequence, refusal)),
            Reply::Data(_) | Reply::Done { .. } => None,
        });
        Ok(match first {
            None => Committed::Yes,
            Some((sequence, refusal)) => {
                let index = usize::try_from(sequence.wrapping_sub(begin)).unwrap_or(0);
                let message = index.checked_sub(1).and_then(|index| batch.messages.get(index));
                let what = message.map_or("change the packet filter", |message| &message.what).to_owned();
                Committed::Refused { what, refusal }
            }
        })
    }

    /// Refuses a dormant table: its rules are all there and have no effect. Waking it is up to its owner, since others'
    /// rules would wake with ours. A missing table is not dormant.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] with what wakes it; [`Kind::Kernel`].
    pub fn reject_dormant(&mut self, table: Table) -> Result<(), Error> {
        let attributes = Attributes::default().text(1, table.name);
        let frames = self.ask(GET_TABLE, 0, table, &attributes, &format!("show the table {}", table.name))?;
        let tables = frames.iter().filter(|frame| frame.kind == kind(NEW_TABLE));
        let mut flags =
            tables.filter_map(|frame| attribute::number(attribute::find(attributes_of(frame), 2)?));
        if flags.all(|flags| flags & DORMANT == 0) {
            return Ok(());
        }
        let words = table.words();
        Err(Error::new(
            Kind::Mismatch,
            format!(
                "the table {words} of the packet filter is dormant, so its rules do nothing; \"nft add table {words}\" wakes it"
            ),
        ))
    }

    /// Refuses a base chain that was made with another type, hook, priority or policy than `hook` and accept: its rules
    /// would not see the packets they are for, or would decide about others. Removing it is up to its owner, whose rules
    /// are in it. A chain that does not exist is not refused.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] with the chain as it is and as it must be; [`Kind::Kernel`].
    pub fn hooked(&mut self, table: Table, name: &str, hook: Hook) -> Result<(), Error> {
        let Some(chain) = self.chain(table, name)? else { return Ok(()) };
        let Hook { kind, number, priority } = hook;
        let wanted = Base { kind: kind.to_owned(), number, priority, drops: false };
        if chain.base.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let found = chain.base.map_or_else(|| "without a hook".to_owned(), |base| base.words());
        let (words, wanted) = (table.words(), wanted.words());
        Err(Error::new(
            Kind::Mismatch,
            format!(
                "the chain {name} of the table {words} is {found}, and must be {wanted}; first reconfigure the \
                 program that added it, then remove it with \"nft delete chain {words} {name}\""
            ),
        ))
    }

    /// Refuses a base chain: no rule can lead to one. A chain that does not exist is not refused.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] with the chain as it is; [`Kind::Kernel`].
    pub fn unhooked(&mut self, table: Table, name: &str) -> Result<(), Error> {
        let Some(base) = self.chain(table, name)?.and_then(|chain| chain.base) else { return Ok(()) };
        let (words, found) = (table.words(), base.words());
        Err(Error::new(
            Kind::Mismatch,
            format!(
                "the chain {name} of the table {words} is {found}, and must be without a hook, since rules lead to it; \
                 first reconfigure the program that added it, then remove it with \"nft delete chain {words} {name}\""
            ),
        ))
    }

    /// The chain of a name; none when there is none.
    ///
    /// # Errors
    /// [`Kind::Kernel`].
    pub fn chain(&mut self, table: Table, name: &str) -> Result<Option<Chain>, Error> {
        let attributes = Attributes::default().text(1, table.name).text(3, name);
        let what = format!("show the chain {name} of the table {}", table.name);
        Ok(self.ask(GET_CHAIN, 0, table, &attributes, &what)?.iter().find_map(chain))
    }

    /// All chains of a table.
    ///
    /// # Errors
    /// [`Kind::Kernel`].
    pub fn chains(&mut self, table: Table) -> Result<Vec<Chain>, Error> {
        let what = format!("list the chains of the table {}", table.name);
        let frames = self.ask(GET_CHAIN, NLM_F_DUMP, table, &Attributes::default(), &what)?;
        // A dump is of the family's every table.
        let of_table = |frame: &&Frame| {
            attribute::find(attributes_of(frame), 1).is_some_and(|name| attribute::text(name) == table.name)
        };
        Ok(frames.iter().filter(of_table).filter_map(chain).collect())
    }

    /// The rule of a handle; none when there is none.
    ///
    /// # Errors
    /// [`Kind::Kernel`].
    pub fn rule(&mut self, table: Table, chain: &str, handle: u64) -> Result<Option<Rule>, Error> {
        let attributes = Attributes::default().text(1, table.name).text(2, chain).long(3, handle);
        let what = format!("show a rule of the chain {chain} of the table {}", table.name);
        Ok(self.ask(GET_RULE, 0, table, &attributes, &what)?.iter().find_map(rule))
    }

    /// All rules of a chain, in their order; none when there is no such chain.
    ///
    /// # Errors
    /// [`Kind::Kernel`].
    pub fn rules(&mut self, table: Table, chain: &str) -> Result<Vec<Rule>, Error> {
        let attributes = Attributes::default().text(1, table.name).text(2, chain);
        let what = format!("list the rules of the chain {chain} of the table {}", table.name);
        Ok(self.ask(GET_RULE, NLM_F_DUMP, table, &attributes, &what)?.iter().filter_map(rule).collect())
    }

    /// Chains that drop forwarded traffic, unless there is a rule about traffic through `link`: base chains of the hook with
    /// the policy to drop, and firewalld's, whose last rule does it.
    ///
    /// # Errors
    /// [`Kind::Kernel`].
    pub fn closed(&mut self, link: &str) -> Result<Vec<Closed>, Error> {
        // Of all families.
        let all = Table { family: 0, name: "" };
        let chains = self.ask(GET_CHAIN, NLM_F_DUMP, all, &Attributes::default(), "list the chains")?;
        let rules = self.ask(GET_RULE, NLM_F_DUMP, all, &Attributes::default(), "list the rules")?;
        let opened = |closed: &Closed| {
            rules.iter().any(|frame| {
                let text = |kind| attribute::find(attributes_of(frame), kind).map(attribute::text);
                let about = || rule(frame).and_then(|rule| rule.input).is_some_and(|input| input == link);
                // firewalld's rules about links are in chains below.
                let chain = closed.table == FIREWALLD || text(2).as_ref() == Some(&closed.chain);
                frame.body.first() == Some(&closed.family)
                    && text(1).as_ref() == Some(&closed.table)
                    && chain
                    && about()
            })
        };
        Ok(chains.iter().filter_map(closing).filter(|one| !opened(one)).collect())
    }

    /// All elements of a set; none when there is no such set.
    ///
    /// # Errors
    /// [`Kind::Kernel`].
    pub fn elements(&mut self, table: Table, set: Set) -> Result<Vec<Element>, Error> {
        let attributes = Attributes::default().text(1, table.name).text(2, set.name);
        let what = format!("list the set {} of the table {}", set.name, table.name);
        let frames = self.ask(GET_ELEMENTS, NLM_F_DUMP, table, &attributes, &what)?;
        let lists = frames.iter().filter(|frame| frame.kind == kind(NEW_ELEMENTS));
        let lists = lists.filter_map(|frame| attribute::find(attributes_of(frame), 3));
        Ok(lists.flat_map(attribute::read).filter_map(|(_, element)| Element::read(element)).collect())
    }

    /// The frames that answer a question; none when what was asked for is not there.
    fn ask(
        &mut self,
        kind_: u8,
        flags: u16,
        table: Table,
        attributes: &Attributes,
        what: &str,
    ) -> Result<Vec<Frame>, Error> {
        let Some(socket) = &mut self.socket else { return Ok(Vec::new()) };
        for _ in 0..DUMPS {
            let sequence = socket.next_sequence();
            let mut bytes = Vec::new();
            let flags = flags | if flags == NLM_F_DUMP { 0 } else { NLM_F_ACK };
            frame(&mut bytes, kind(kind_), flags, sequence, (table.family, 0), attributes);
            let mut frames = Vec::new();
            let mut again = false;
            for reply in socket.transact(&bytes, sequence)? {
                match reply {
                    Reply::Data(frame) => {
                        again |= frame.interrupted;
                        frames.push(frame);
                    }
                    Reply::Done { .. } => {}
                    // The latter where the kernel has netfilter's netlink family without nf_tables in it.
                    Reply::Refused { refusal, .. }
                        if matches!(refusal.errno, Errno::NOENT | Errno::INVAL) =>
                    {
                        return Ok(Vec::new());
                    }
                    Reply::Refused { refusal, .. } if refusal.errno == Errno::INTR => again = true,
                    Reply::Refused { refusal, .. } => return Err(refused(what, refusal)),
                }
            }
            if !again {
                return Ok(frames);
            }
        }
        Err(Error::new(Kind::TryLater, format!("the rules change too fast to {what}")))
    }
}

fn kind(message: u8) -> u16 {
    u16::from_be_bytes([SUBSYSTEM, message])
}

/// One frame: header, family and resource, attributes.
fn frame(
    bytes: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    (family, resource): (u8, u16),
    attributes: &Attributes,
) {
    let attributes = attributes.as_bytes();
    // A header has 16 bytes. A message has some hundred; far above, the kernel would refuse it.
    let length = attributes.len().saturating_add(16 + FAMILY_HEADER);
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
}

fn attributes_of(frame: &Frame) -> &[u8] {
    frame.body.get(FAMILY_HEADER..).unwrap_or_default()
}

fn chain(frame: &Frame) -> Option<Chain> {
    if frame.kind != kind(NEW_CHAIN) {
        return None;
    }
    let mut chain = Chain::default();
    for (kind, value) in attribute::read(attributes_of(frame)) {
        match kind {
            2 => chain.handle = attribute::long(value)?,
            3 => chain.name = attribute::text(value),
            6 => chain.uses = attribute::number(value)?,
            _ => {}
        }
    }
    chain.base = base(attributes_of(frame));
    Some(chain)
}

/// Where packets enter the chain that attributes describe.
fn base(attributes: &[u8]) -> Option<Base> {
    let place = attribute::find(attributes, 4)?;
    Some(Base {
        kind: attribute::find(attributes, 7).map(attribute::text).unwrap_or_default(),
        number: attribute::find(place, 1).and_then(attribute::number)?,
        priority: attribute::find(place, 2).and_then(attribute::number)?.cast_signed(),
        drops: attribute::find(attributes, 5).and_then(attribute::number) == Some(DROP),
    })
}

/// The chain of a frame, if it throws away what is forwarded.
fn closing(frame: &Frame) -> Option<Closed> {
    if frame.kind != kind(NEW_CHAIN) {
        return None;
    }
    let found = |kind| attribute::find(attributes_of(frame), kind);
    let family = *frame.body.first()?;
    let (table, chain) = (attribute::text(found(1)?), attribute::text(found(3)?));
    let hook = attribute::number(attribute::find(found(4)?, 1)?)?;
    let drops = found(5).and_then(attribute::number) == Some(DROP);
    let firewalld = table == FIREWALLD && chain == FIREWALLD_FORWARD;
    // The bridges' forward hook has the same number and another family.
    let routed = matches!(family, IPV4 | IPV6 | INET);
    (routed && hook == FORWARD && (drops || firewalld)).then_some(Closed { family, table, chain })
}

fn rule(frame: &Frame) -> Option<Rule> {
    if frame.kind != kind(NEW_RULE) {
        return None;
    }
    let mut rule = Rule::default();
    let mut remark = None;
    for (kind, value) in attribute::read(attributes_of(frame)) {
        match kind {
            3 => rule.handle = attribute::long(value)?,
            4 => {
                rule.input = expression::input(value);
                rule.target = expression::target(value);
                rule.diverts = expression::diverts(value);
                remark = expression::comment(value);
            }
            7 => (rule.comment, rule.tag) = remarks(value),
            _ => {}
        }
    }
    if let Some(remark) = remark.filter(|_| rule.comment.is_empty()) {
        rule.comment = remark;
    }
    Some(rule)
}
