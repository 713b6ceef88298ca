//! A transaction in the making: tables, chains and rules to add and to remove. All of it happens, or none.

use crate::nft::attribute::{self, Attributes};
use crate::nft::expression::Expression;

/// Message types of the subsystem, `linux/netfilter/nf_tables.h`.
pub(super) const NEW_TABLE: u8 = 0;
pub(super) const NEW_CHAIN: u8 = 3;
pub(super) const GET_CHAIN: u8 = 4;
const DELETE_CHAIN: u8 = 5;
pub(super) const NEW_RULE: u8 = 6;
pub(super) const GET_RULE: u8 = 7;
const DELETE_RULE: u8 = 8;

const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

/// What a rule's remark is called in its user data; `nft` shows it as `comment`.
const COMMENT: u8 = 0;
/// Our own kind of user data, which `nft` passes over.
const TAG: u8 = 0xf0;

/// A table: its family, `NFPROTO_…`, and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) family: u8,
    pub(super) name: &'static str,
}

pub(super) const INET: u8 = 1;
pub(super) const IPV4: u8 = 2;
pub(super) const BRIDGE: u8 = 7;
pub(super) const IPV6: u8 = 10;

/// Where packets come into a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hook {
    /// `filter` or `nat`.
    pub(super) kind: &'static str,
    pub(super) number: u32,
    pub(super) priority: i32,
}

/// A rule to be added at the end of its chain.
#[derive(Clone, Debug, Default)]
pub(super) struct NewRule {
    pub(super) expressions: Vec<Expression>,
    /// Empty for none; at most 128 bytes, as `nft` has it.
    pub(super) comment: String,
    /// Empty for none; at most 64 bytes.
    pub(super) tag: Vec<u8>,
}

/// One message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) flags: u16,
    pub(super) family: u8,
    pub(super) attributes: Attributes,
    /// What it is for, in words that end "the kernel did not …".
    pub(super) what: String,
}

/// Messages that are one transaction.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(super) messages: Vec<Message>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Moves all of another one to the end of this one.
    pub(super) fn append(&mut self, mut other: Batch) {
        self.messages.append(&mut other.messages);
    }

    fn push(&mut self, kind: u8, flags: u16, family: u8, attributes: Attributes, what: String) {
        self.messages.push(Message { kind, flags, family, attributes, what });
    }

    /// Makes a table unless it is there.
    pub(super) fn table(&mut self, table: Table, comment: &str) {
        let mut attributes = Attributes::default().text(1, table.name).number(2, 0);
        if !comment.is_empty() {
            attributes = attributes.bytes(6, &user_data(&[(COMMENT, &ended(comment))]));
        }
        let what = format!("make the table {}", table.name);
        self.push(NEW_TABLE, NLM_F_CREATE, table.family, attributes, what);
    }

    /// Makes a chain that packets come into by themselves, unless it is there. Its policy is to accept.
    pub(super) fn base_chain(&mut self, table: Table, name: &str, hook: Hook) {
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
    pub(super) fn chain(&mut self, table: Table, name: &str, comment: &str) {
        self.plain_chain(table, name, comment, NLM_F_CREATE);
    }

    /// Makes a chain that is jumped to and must not be there yet.
    pub(super) fn new_chain(&mut self, table: Table, name: &str) {
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

    /// Adds a rule.
    pub(super) fn rule(&mut self, table: Table, chain: &str, rule: &NewRule) {
        let list = rule.expressions.iter().fold(Attributes::default(), |list, one| one.encode(list));
        let mut attributes = Attributes::default().text(1, table.name).text(2, chain).nest(4, &list);
        let comment = ended(&rule.comment);
        let mut parts: Vec<(u8, &[u8])> = Vec::new();
        if !rule.comment.is_empty() {
            parts.push((COMMENT, &comment));
        }
        if !rule.tag.is_empty() {
            parts.push((TAG, &rule.tag));
        }
        if !parts.is_empty() {
            attributes = attributes.bytes(7, &user_data(&parts));
        }
        let what = format!("add a rule to the chain {chain} in the table {}", table.name);
        self.push(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, table.family, attributes, what);
    }

    /// Removes a rule.
    pub(super) fn delete_rule(&mut self, table: Table, chain: &str, handle: u64) {
        let attributes = Attributes::default().text(1, table.name).text(2, chain).long(3, handle);
        let what = format!("remove a rule of the chain {chain} in the table {}", table.name);
        self.push(DELETE_RULE, 0, table.family, attributes, what);
    }

    /// Removes all rules of a chain.
    pub(super) fn flush_chain(&mut self, table: Table, chain: &str) {
        let attributes = Attributes::default().text(1, table.name).text(2, chain);
        let what = format!("empty the chain {chain} in the table {}", table.name);
        self.push(DELETE_RULE, 0, table.family, attributes, what);
    }

    /// Removes a chain and its rules.
    pub(super) fn delete_chain(&mut self, table: Table, name: &str) {
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

/// Comment and tag in a rule's user data; empty for none.
pub(super) fn remarks(mut user_data: &[u8]) -> (String, Vec<u8>) {
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
