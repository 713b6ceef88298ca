//! The plugin's mark in the user data of rules and elements, which `nft` ignores: the owner, as two hashes.

use sha2::{Digest, Sha512};

/// The mark of an attachment to a network; `id` distinguishes attachments.
pub(super) fn of(network: &str, id: &str) -> Vec<u8> {
    [of_network(network), hash(&format!("{network}/{id}"))].concat()
}

/// The common prefix of the marks of all attachments to a network.
pub(super) fn of_network(network: &str) -> Vec<u8> {
    hash(network)
}

/// The first bytes of a SHA-512.
fn hash(text: &str) -> Vec<u8> {
    Sha512::digest(text.as_bytes()).iter().take(16).copied().collect()
}
