//! Decides what becomes of each name. Pure.

/// The present file of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PresentFile {
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
pub(super) fn ours(found: &PresentFile, checksum: &str) -> Step {
    match found {
        PresentFile::File(sum) if sum == checksum => Step::Keep,
        PresentFile::Nothing | PresentFile::File(_) | PresentFile::Link(_) => Step::Write,
        PresentFile::Other => Step::Refuse,
    }
}

/// About `<plugin>`: ours only where nothing is, or what we or CNAO put there. A link to the `cnv-` name, given from the
/// container's or the host's root, is that.
pub(super) fn plain(plugin: &str, found: &PresentFile) -> Step {
    let own = format!("cnv-{plugin}");
    match found {
        PresentFile::Nothing => Step::Link,
        PresentFile::Link(target) if *target == own => Step::Keep,
        PresentFile::Link(target) if target.ends_with(&format!("/{own}")) => Step::Link,
        PresentFile::File(_) | PresentFile::Link(_) | PresentFile::Other => Step::Leave,
    }
}

/// Whether `cnv-<plugin>` is removed: only this program.
pub(super) fn is_own(found: &PresentFile, checksum: &str) -> bool {
    *found == PresentFile::File(checksum.to_owned())
}

/// Whether `<plugin>` is removed: a link to the `cnv-` name, unless another program has that.
pub(super) fn is_own_link(plugin: &str, found: &PresentFile, own: &PresentFile, checksum: &str) -> bool {
    let linked = matches!(plain(plugin, found), Step::Keep | Step::Link) && *found != PresentFile::Nothing;
    linked && (is_own(own, checksum) || *own == PresentFile::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_files_are_kept_replaced_or_refused() {
        let file = || PresentFile::File("other".to_owned());
        let link = |to: &str| PresentFile::Link(to.to_owned());
        for (found, wanted) in [
            (PresentFile::Nothing, Step::Write),
            (file(), Step::Write),
            (PresentFile::File("sum".to_owned()), Step::Keep),
            (link("/opt/cni/bin/bridge"), Step::Write),
            (PresentFile::Other, Step::Refuse),
        ] {
            assert_eq!(ours(&found, "sum"), wanted, "{found:?}");
        }
        for (found, wanted) in [
            (PresentFile::Nothing, Step::Link),
            (file(), Step::Leave),
            (link("cnv-bridge"), Step::Keep),
            (link("/opt/cni/bin/cnv-bridge"), Step::Link),
            (link("/usr/lib/cni/bridge"), Step::Leave),
            (link("cnv-tuning"), Step::Leave),
            (PresentFile::Other, Step::Leave),
        ] {
            assert_eq!(plain("bridge", &found), wanted, "{found:?}");
        }
    }

    #[test]
    fn only_this_program_and_links_to_it_are_removed() {
        let file = |sum: &str| PresentFile::File(sum.to_owned());
        let link = |to: &str| PresentFile::Link(to.to_owned());
        assert!(is_own(&file("sum"), "sum"));
        for own in [file("other"), link("bridge"), PresentFile::Nothing, PresentFile::Other] {
            assert!(!is_own(&own, "sum"), "{own:?}");
        }
        for (found, own, wanted) in [
            (link("cnv-bridge"), file("sum"), true),
            (link("/opt/cni/bin/cnv-bridge"), file("sum"), true),
            (link("cnv-bridge"), PresentFile::Nothing, true),
            (link("cnv-bridge"), file("other"), false),
            (link("/usr/lib/cni/bridge"), file("sum"), false),
            (file("sum"), file("sum"), false),
            (PresentFile::Nothing, file("sum"), false),
        ] {
            assert_eq!(is_own_link("bridge", &found, &own, "sum"), wanted, "{found:?} and {own:?}");
        }
    }
}
