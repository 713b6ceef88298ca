//! Decides what becomes of each name. Pure.

/// The present file of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// A file with this SHA-256, as hexadecimal digits.
    File(String),
    /// A symbolic link to this.
    Link(String),
    /// A folder, or stranger.
    Other,
}

/// The action for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The program is written there.
    Write,
    /// It is linked to its `cnv-` name.
    Link,
    /// It is what it should be.
    Keep,
    /// Another program's file, which stays.
    Leave,
    /// The file can be neither kept nor replaced.
    Refuse,
}

/// About `cnv-<plugin>`, ours in any case: what CNAO made there is replaced.
pub(super) fn ours(found: &Found, checksum: &str) -> Step {
    match found {
        Found::File(sum) if sum == checksum => Step::Keep,
        Found::Nothing | Found::File(_) | Found::Link(_) => Step::Write,
        Found::Other => Step::Refuse,
    }
}

/// About `<plugin>`: ours only where nothing is, or what we or CNAO put there. A link to the `cnv-` name, given from the
/// container's or the host's root, is that.
pub(super) fn plain(plugin: &str, found: &Found) -> Step {
    let own = format!("cnv-{plugin}");
    match found {
        Found::Nothing => Step::Link,
        Found::Link(target) if *target == own => Step::Keep,
        Found::Link(target) if target.ends_with(&format!("/{own}")) => Step::Link,
        Found::File(_) | Found::Link(_) | Found::Other => Step::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_files_are_kept_replaced_or_refused() {
        let file = || Found::File("other".to_owned());
        let link = |to: &str| Found::Link(to.to_owned());
        for (found, wanted) in [
            (Found::Nothing, Step::Write),
            (file(), Step::Write),
            (Found::File("sum".to_owned()), Step::Keep),
            (link("/opt/cni/bin/bridge"), Step::Write),
            (Found::Other, Step::Refuse),
        ] {
            assert_eq!(ours(&found, "sum"), wanted, "{found:?}");
        }
        for (found, wanted) in [
            (Found::Nothing, Step::Link),
            (file(), Step::Leave),
            (link("cnv-bridge"), Step::Keep),
            (link("/opt/cni/bin/cnv-bridge"), Step::Link),
            (link("/usr/lib/cni/bridge"), Step::Leave),
            (link("cnv-tuning"), Step::Leave),
            (Found::Other, Step::Leave),
        ] {
            assert_eq!(plain("bridge", &found), wanted, "{found:?}");
        }
    }
}
