//! Name and versions of the group of subresources. Not here: what it serves ([`super::discovery`]).

/// The group.
pub(super) const GROUP: &str = "subresources.kubevirt.io";
/// Its versions, the preferred one first.
pub(super) const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];
