//! A transaction in the making: tables, chains, sets and rules to add and to remove. All of it happens, or none.

use crate::nft::attribute::{self, Attributes};
use crate::nft::expression::Expression;

/// Message types of the subsystem, `linux/netfilter/nf_tables.h`.
pub(super) const NEW_TABLE: u8 = 0;
pub(super) const GET_TABLE: u8 = 1;
pub(super) const NEW_CHAIN: u8 = 3;
pub(super) const GET_CHAIN: u8 = 4;
const DELETE_TABLE: u8 = 2;
const DELETE_CHAIN: u8 = 5;
pub(super) const NEW_RULE: u8 = 6;
pub(super) const GET_RULE: u8 = 7;
const DELETE_RULE: u8 = 8;
const NEW_SET: u8 = 9;
pub(super) const NEW_ELEMENTS: u8 = 12;
pub(super) const GET_ELEMENTS: u8 = 13;
const DELETE_ELEMENTS: u8 = 14;

const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

/// The type of a rule's remark in its user data; `nft` shows it as `comment`.
const COMMENT: u8 = 0;
/// Marks the keys of a set as being in host byte order, for `nft`.
const BYTE_ORDER: u8 = 0;
const HOST_ORDER: u32 = 1;
/// Types from here on are of several joined ones.
const JOINED: u32 = 1 << 6;
/// Our own kind of user data, which `nft` passes over.
const TAG: u8 = 0xf0;

/// A table: its family, `NFPROTO_…`, and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// `NFPROTO_…`.
    pub family: u8,
    /// Its name.
    pub name: &'static str,
}

impl Table {
    /// Family and name as `nft` has them.
    pub fn words(self) -> String {
        let family = match self.family {
            INET => "inet ",
            IPV4 => "ip ",
            BRIDGE => "bridge ",
            IPV6 => "ip6 ",
            _ => "",
        };
        format!("{family}{}", self.name)
    }
}

/// IPv4 and IPv6 together.
pub const INET: u8 = 1;
/// IPv4.
pub const IPV4: u8 = 2;
/// Frames that a bridge forwards.
pub const BRIDGE: u8 = 7;
/// IPv6.
pub const IPV6: u8 = 10;

/// Where packets come into a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// `filter` or `nat`.
    pub kind: &'static str,
    /// `NF_…` of the family.
    pub number: u32,
    /// Chains of lower ones come first.
    pub priority: i32,
}

/// A rule to be added to its chain.
#[derive(Clone, Debug, Default)]
pub struct NewRule {
    /// Its messages, one after the other.
    pub expressions: Vec<Expression>,
    /// Empty for none; at most 128 bytes, as `nft` has it.
    pub comment: String,
    /// Empty for none; at most 64 bytes.
    pub tag: Vec<u8>,
}

/// A set: its name, what `nft` calls the type of its keys, and their length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: &'static str,
    /// `TYPE_…` of nft.
    pub key_type: u32,
    /// In bytes.
    pub key_length: u32,
}

/// An element of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// As many bytes as the set's keys have.
    pub key: Vec<u8>,
    /// As of a rule.
    pub comment: String,
    /// As of a rule.
    pub tag: Vec<u8>,
}

impl Element {
    fn encode(&self) -> Attributes {
        let key = Attributes::default().bytes(1, &self.key);
        let element = Attributes::default().nest(1, &key);
        match remarked(&self.comment, &self.tag) {
            Some(remarks) => element.bytes(6, &remarks),
            None => element,
        }
    }

    /// Reads what [`Element::encode`] writes.
    pub fn read(attributes: &[u8]) -> Option<Self> {
        let key = attribute::find(attribute::find(attributes, 1)?, 1)?.to_vec();
        let (comment, tag) = attribute::find(attributes, 6).map(remarks).unwrap_or_default();
        Some(Self { key, comment, tag })
    }
}

/// One message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) flags: u16,
    pub(super) family: u8,
    pub(super) attributes: Attributes,
    /// Its purpose, in words that end "the kernel did not …".
    pub(super) what: String,
}

/// Messages that are one transaction.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) messages: Vec<Message>,
}

impl Batch {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Moves all of another one to the end of this one.
    pub fn append(&mut self, mut other: Batch) {
        self.messages.append(&mut other.messages);
    }

    fn push(&mut self, kind: u8, flags: u16, family: u8, attributes: Attributes, what: String) {
        self.messages.push(Message { kind, flags, family, attributes, what });
    }

    /// Makes a table unless it is there.
    pub fn table(&mut self, table: Table, comment: &str) {
        let mut attributes = Attributes::default().text(1, table.name).number(2, 0);
        if !comment.is_empty() {
            attributes = attributes.bytes(6, &user_data(&[(COMMENT, &ended(comment))]));
        }
        let what = format!("make the table {}", table.name);
        self.push(NEW_TABLE, NLM_F_CREATE, table.family, attributes, what);
    }

    /// Removes a table that must be there, with all that is in it.
    pub fn delete_table(&mut self, table: Table) {
        let attributes = Attributes::default().text(1, table.name);
        let what = format!("remove the table {}", table.name);
        self.push(DELETE_TABLE, 0, table.family, attributes, what);
    }

    /// Makes a chain that packets come into by themselves, unless it is there. Its policy is to accept.
    pub fn base_chain(&mut self, table: Table, name: &str, hook: Hook) {
        let place = Attributes::default().number(1, hook.number).number(2, hook.priority.cast_unsigned());
        let attributes = Attributes::default()
            .text(1, table.name)
            .text(3, name)
            .text(7, hook.kind)
            .number(5, 1)
            .nest(4, &place);
        let what = format!("make the chain {name} in the table {}", table.name);
        self.push(NEW_CHAIN, NLM_F_CREATE, table.family, attributes, what);
    }

    /// Makes a chain that is jumped to, unless it is there.
    pub fn chain(&mut self, table: Table, name: &str, comment: &str) {
        self.plain_chain(table, name, comment, NLM_F_CREATE);
    }

    /// Makes a chain that is jumped to and must not be there yet.
    pub fn new_chain(&mut self, table: Table, name: &str) {
        self.plain_chain(table, name, "", NLM_F_CREATE | NLM_F_EXCL);
    }

    fn plain_chain(&mut self, table: Table, name: &str, comment: &str, flags: u16) {
        let mut attributes = Attributes::default().text(1, table.name).text(3, name);
        if !comment.is_empty() {
            attributes = attributes.bytes(12, &user_data(&[(COMMENT, &ended(comment))]));
        }
        let what = format!("make the chain {name} in the table {}", table.name);
        self.push(NEW_CHAIN, flags, table.family, attributes, what);
    }

    /// Adds a rule at the end of its chain.
    pub fn rule(&mut self, table: Table, chain: &str, rule: &NewRule) {
        self.new_rule(table, chain, rule, NLM_F_APPEND);
    }

    /// Adds a rule before all others of its chain.
    pub fn first_rule(&mut self, table: Table, chain: &str, rule: &NewRule) {
        self.new_rule(table, chain, rule, 0);
    }

    fn new_rule(&mut self, table: Table, chain: &str, rule: &NewRule, place: u16) {
        let list = rule.expressions.iter().fold(Attributes::default(), |list, one| one.encode(list));
        let mut attributes = Attributes::default().text(1, table.name).text(2, chain).nest(4, &list);
        if let Some(remarks) = remarked(&rule.comment, &rule.tag) {
            attributes = attributes.bytes(7, &remarks);
        }
        let what = format!("add a rule to the chain {chain} in the table {}", table.name);
        self.push(NEW_RULE, NLM_F_CREATE | place, table.family, attributes, what);
    }

    /// Makes a set unless it is there.
    pub fn set(&mut self, table: Table, set: Set) {
        // The number distinguishes sets of one transaction for users without names.
        let mut attributes = Attributes::default()
            .text(1, table.name)
            .text(2, set.name)
            .number(4, set.key_type)
            .number(5, set.key_length)
            .number(10, 1);
        if set.key_type < JOINED {
            // Or `nft` shows a name backwards.
            attributes = attributes.bytes(13, &user_data(&[(BYTE_ORDER, &HOST_ORDER.to_ne_bytes())]));
        }
        let what = format!("make the set {} in the table {}", set.name, table.name);
        self.push(NEW_SET, NLM_F_CREATE, table.family, attributes, what);
    }

    /// Adds elements that may be there.
    pub fn add_elements(&mut self, table: Table, set: Set, elements: &[Element]) {
        let what = format!("add to the set {} in the table {}", set.name, table.name);
        self.elements(NEW_ELEMENTS, NLM_F_CREATE, table, set, elements, what);
    }

    /// Removes elements that must be there.
    pub fn delete_elements(&mut self, table: Table, set: Set, elements: &[Element]) {
        let what = format!("remove from the set {} in the table {}", set.name, table.name);
        self.elements(DELETE_ELEMENTS, 0, table, set, elements, what);
    }

    fn elements(&mut self, kind: u8, flags: u16, table: Table, set: Set, elements: &[Element], what: String) {
        let list = elements.iter().fold(Attributes::default(), |list, one| list.nest(1, &one.encode()));
        let attributes = Attributes::default().text(1, table.name).text(2, set.name).nest(3, &list);
        self.push(kind, flags, table.family, attributes, what);
    }

    /// Removes a rule.
    pub fn delete_rule(&mut self, table: Table, chain: &str, handle: u64) {
        let attributes = Attributes::default().text(1, table.name).text(2, chain).long(3, handle);
        let what = format!("remove a rule of the chain {chain} in the table {}", table.name);
        self.push(DELETE_RULE, 0, table.family, attributes, what);
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, table: Table, chain: &str) {
        let attributes = Attributes::default().text(1, table.name).text(2, chain);
        let what = format!("empty the chain {chain} in the table {}", table.name);
        self.push(DELETE_RULE, 0, table.family, attributes, what);
    }

    /// Removes a chain and its rules.
    pub fn delete_chain(&mut self, table: Table, name: &str) {
        // Emptied first: old kernels do not remove a chain that has rules.
        self.flush_chain(table, name);
        let attributes = Attributes::default().text(1, table.name).text(3, name);
        let what = format!("remove the chain {name} in the table {}", table.name);
        self.push(DELETE_CHAIN, 0, table.family, attributes, what);
    }
}

fn ended(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// User data: kind, length and value of each part.
fn user_data(parts: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, value) in parts {
        bytes.push(*kind);
        bytes.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
        bytes.extend(value.iter().take(usize::from(u8::MAX)));
    }
    bytes
}

/// Comment and tag as user data, if there is any of them.
fn remarked(comment: &str, tag: &[u8]) -> Option<Vec<u8>> {
    let text = ended(comment);
    let mut parts: Vec<(u8, &[u8])> = Vec::new();
    if !comment.is_empty() {
        parts.push((COMMENT, &text));
    }
    if !tag.is_empty() {
        parts.push((TAG, tag));
    }
    (!parts.is_empty()).then(|| user_data(&parts))
}

/// Comment and tag in user data; empty for none.
pub fn remarks(mut user_data: &[u8]) -> (String, Vec<u8>) {
    let (mut comment, mut tag) = (String::new(), Vec::new());
    while let [kind, length, rest @ ..] = user_data {
        let length = usize::from(*length).min(rest.len());
        let (value, next) = rest.split_at(length);
        match *kind {
            COMMENT => comment = attribute::text(value),
            TAG => tag = value.to_vec(),
            _ => {}
        }
        user_data = next;
    }
    (comment, tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_are_read_back() {
        let bytes = user_data(&[(COMMENT, &ended("a comment")), (9, b"other"), (TAG, b"tag")]);
        assert_eq!(remarks(&bytes), ("a comment".to_owned(), b"tag".to_vec()));
        assert_eq!(remarks(&bytes[..5]), ("a c".to_owned(), Vec::new()));
        assert_eq!(remarks(&[]), (String::new(), Vec::new()));
    }
}
