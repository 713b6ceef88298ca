//! The error of a CHECK for a rule of another program in a chain of ours.

use crate::error::Error;
use link::nft::Rule;
use link::nft::batch::Table;

/// `effect`: what the rule may do to frames before ours see them.
pub(super) fn foreign_rule(table: Table, chain: &str, rule: &Rule, effect: &str) -> Error {
    let (table, handle) = (table.words(), rule.handle);
    Error::mismatch(format!(
        "a rule of another program may {effect}; first reconfigure the program that added it, then remove it with \
         \"nft delete rule {table} {chain} handle {handle}\""
    ))
}
