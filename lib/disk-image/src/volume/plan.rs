//! Decisions without effects: sizes, modes, the treatment of images that are no disks or cannot be streamed. Pure; `inspect`
//! gathers the facts, `blank`, `unpack` and `disk` act.
//!
//! Sizes follow upstream (`pkg/util/util.go`, `pkg/importer/data-processor.go`), with one difference: what an earlier
//! try left behind is credited, it never counts against the space.

use super::config::{Contract, Holds};
use super::error::{Error, Kind};
use crate::detect::CONVERT_IMAGE;

/// How to handle an image that cannot be read in one pass.
pub const CONVERT: &str =
    "convert the image first (qemu-img convert -O qcow2 IN OUT writes its tables before its data)";

/// Disk sizes of files are multiples of this (direct I/O of a guest's disk needs it).
pub const ALIGNMENT: u64 = 1 << 20;

/// The content to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A disk in a file.
    File,
    /// A disk on a block device.
    Block,
    /// Files of an archive in a folder.
    Folder,
}

/// Kind of a target, by its content and whether it is a device.
///
/// # Errors
/// An archive cannot go onto a device.
pub fn mode(holds: Holds, device: bool) -> Result<Mode, Error> {
    match (holds, device) {
        (Holds::Disk, false) => Ok(Mode::File),
        (Holds::Disk, true) => Ok(Mode::Block),
        (Holds::Files | Holds::Clone, false) => Ok(Mode::Folder),
        (Holds::Files | Holds::Clone, true) => Err(Error::usage(
            "an archive can only be unpacked into a Filesystem volume, and the target is a block device",
        )),
    }
}

/// Bytes the disk may have: the target's capacity, at most what was requested.
///
/// The space for a disk. A user that names a sparse file and no size may exceed the free space: the disk is thin, as with
/// `qemu-img`. With reserved blocks, on a device, or under the environment contract capacity counts.
pub fn available(
    contract: Contract,
    mode: Mode,
    preallocate: bool,
    capacity: u64,
    request: Option<u64>,
) -> u64 {
    let thin = contract == Contract::CommandLine && mode == Mode::File && !preallocate;
    let capacity = if thin { u64::MAX } else { capacity };
    capacity.min(request.unwrap_or(u64::MAX))
}

/// Bytes of `available` that are left for the disk when a share of it is the filesystem's own:
/// `floor(available / (1 + overhead))`, rounded down to [`ALIGNMENT`].
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "upstream's own arithmetic, in double precision; the result is not negative and not above `available`"
)]
pub fn usable(available: u64, overhead: f64) -> u64 {
    let with_overhead = (available as f64 / (1.0 + overhead)).floor() as u64;
    let with_overhead = with_overhead.min(available);
    with_overhead - with_overhead % ALIGNMENT
}

/// Whether the disk fits.
///
/// # Errors
/// Upstream's sentence, on which controllers match.
pub fn fits(
    contract: Contract,
    virtual_size: u64,
    available: u64,
    request: Option<u64>,
) -> Result<(), Error> {
    if virtual_size <= available {
        return Ok(());
    }
    let advice = match (contract, request) {
        (Contract::Environment, _) => ". A larger PVC is required",
        (Contract::CommandLine, Some(request)) if request == available => {
            "; give a larger --size, or leave it out"
        }
        (Contract::CommandLine, _) => "; use a larger target, or free some room",
    };
    Err(Error::new(
        Kind::NoRoom,
        format!(
            "virtual image size {virtual_size} is larger than the reported available storage {available}{advice}"
        ),
    ))
}

/// The disk for a user's --size: a file's disk is a multiple of [`ALIGNMENT`], rounded up so that it is never smaller than
/// requested; with an overhead, `request` is the room, and the disk the [`usable`] part of it. On a device it is taken as it
/// is.
pub fn requested_size(mode: Mode, request: u64, overhead: f64) -> u64 {
    match mode {
        Mode::File if overhead > 0.0 => usable(request, overhead),
        Mode::File => request.checked_next_multiple_of(ALIGNMENT).unwrap_or(request),
        Mode::Block | Mode::Folder => request,
    }
}

/// Whether what was asked for can be had. A sparse file may be larger than what is free.
///
/// # Errors
/// [`Kind::NoRoom`], with what was asked, what there is, and what to do.
pub fn granted(mode: Mode, preallocate: bool, asked: u64, capacity: u64, shown: &str) -> Result<(), Error> {
    if asked <= capacity {
        return Ok(());
    }
    let what = match mode {
        Mode::Block => format!(
            "{asked} bytes are asked for with --size, and the device {shown} has {capacity}; give a smaller --size, leave it out, or use a larger device"
        ),
        Mode::File if preallocate => format!(
            "{asked} bytes are to be reserved with --size and --preallocate, and {capacity} are free for {shown}; free some room, give a smaller --size, or leave out --preallocate"
        ),
        Mode::File | Mode::Folder => return Ok(()),
    };
    Err(Error::new(Kind::NoRoom, what))
}

/// Warning when the disk's size differs from the request.
pub fn resized(contract: Contract, overhead: f64, request: Option<u64>, disk_size: u64) -> Option<String> {
    let request = request.filter(|&request| contract == Contract::CommandLine && request != disk_size)?;
    let why = match overhead > 0.0 {
        true => "less the share of --overhead, in whole MiB",
        false => "rounded up to whole MiB",
    };
    Some(format!("the disk has {disk_size} bytes: the {request} of --size, {why}"))
}

/// Where the zeroes end that follow an image on a device: at the device's end, since all of it is the guest's disk, or
/// where the user gives --size.
pub fn zeroed(contract: Contract, capacity: u64, request: Option<u64>) -> u64 {
    match (contract, request) {
        (Contract::CommandLine, Some(request)) => capacity.min(request),
        (Contract::CommandLine, None) | (Contract::Environment, _) => capacity,
    }
}

/// Final size of a file, never less than the disk. By the environment contract the request where it is usable; by
/// the command line, see [`requested_size`].
pub fn final_size(
    contract: Contract,
    virtual_size: u64,
    available: u64,
    overhead: f64,
    request: Option<u64>,
) -> u64 {
    match (contract, request) {
        (_, None) => virtual_size,
        (Contract::Environment, Some(request)) => virtual_size.max(request.min(usable(available, overhead))),
        // The image's own size, odd or not.
        (Contract::CommandLine, Some(request)) if request == virtual_size => virtual_size,
        (Contract::CommandLine, Some(request)) => {
            virtual_size.max(requested_size(Mode::File, request, overhead))
        }
    }
}

/// Size of a blank disk in a file.
///
/// # Errors
/// Without a request the size is unknown; too small a one leaves no whole [`ALIGNMENT`], and a disk without a byte is
/// useless (upstream #4024).
pub fn blank_size(
    contract: Contract,
    available: u64,
    overhead: f64,
    request: Option<u64>,
) -> Result<u64, Error> {
    match request {
        Some(asked) => match final_size(contract, 0, available, overhead, request) {
            0 => Err(Error::new(
                Kind::NoRoom,
                format!(
                    "no disk can be made of a size of {asked} bytes, of which {available} are available: with an overhead of {overhead}, in whole MiB, nothing is left; ask for 2Mi or more"
                ),
            )),
            size => Ok(size),
        },
        None => Err(Error::usage("an empty disk needs a size: give --size (or IMPORTER_IMAGE_SIZE)")),
    }
}

/// Bytes of a source of `size` that may be read before they are recorded, in addition to those in flight. Every sync costs
/// the disk time, so this is as much as the promise leaves: 64 MiB and a tenth of the image are fetched twice after a crash,
/// 24 MiB of them in flight. A local file costs no network traffic and is read again in no time.
pub fn reread(size: Option<u64>, local: bool) -> u64 {
    match local {
        true => 256 << 20,
        false => (32 << 20) + size.unwrap_or(0) / 10,
    }
}

/// How to handle bytes that look like another kind of file than a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// A disk, as far as one can see.
    No,
    /// Taken as a raw disk, with this warning.
    Warn(String),
}

/// Whether content that is known to be no disk, or none that is read here ("HTML", "zip", "a tar archive", "a QED
/// image"), is taken as raw all the same.
///
/// # Errors
/// By command line, unless the format was given.
pub fn foreign(contract: Contract, format_given: bool, seen: Option<&str>) -> Result<Foreign, Error> {
    let Some(seen) = seen else { return Ok(Foreign::No) };
    match contract {
        // Its trailer is beyond doubt, and no guest starts from it.
        Contract::Environment if seen == DMG => Err(Error::new(
            Kind::Refused,
            format!("the content looks like {seen}, not like a disk image that can be read; {CONVERT_IMAGE}"),
        )),
        Contract::Environment => Ok(Foreign::Warn(format!(
            "the content looks like {seen}, not like a disk image that can be read; it was taken as a raw disk"
        ))),
        Contract::CommandLine if format_given => Ok(Foreign::No),
        Contract::CommandLine => Err(Error::new(
            Kind::Refused,
            format!(
                "the content looks like {seen}, not like a disk image that can be read; {}",
                advice(seen)
            ),
        )),
    }
}

/// The name of a DMG by [`crate::detect::foreign_by_end`].
const DMG: &str = "a DMG image";

/// Advice for the command line.
fn advice(seen: &str) -> &'static str {
    match seen {
        "HTML" | "XML" | "JSON" => {
            "the server probably answered with a page instead of the file: check the address and the credentials (--format raw imports it as it is)"
        }
        "a tar archive" => {
            "unpack it (an OVA holds a VMDK) and import the disk inside, or give --archive to unpack it into a folder (--format raw imports it as it is)"
        }
        seen if seen.starts_with("a LUKS container") => {
            "--format raw keeps it as it is, for a guest that unlocks it itself; or decrypt it and import the result"
        }
        seen if seen.ends_with(" image") => {
            "convert it (qemu-img convert -O qcow2 IMAGE NEW) and import the result (--format raw imports it as it is)"
        }
        _ => "unpack it and import the disk inside (--format raw imports it as it is)",
    }
}

/// Whether a source without a single byte, as it is or decompressed, is taken as a raw disk of no length. It is an
/// interrupted copy, a pipe whose writer failed or a server's bad answer, which upstream refuses as well
/// (`pkg/importer/format-readers.go` wants a whole header).
///
/// # Errors
/// Unless the format was given. `name` is the source's.
pub fn empty(contract: Contract, format_given: bool, name: Option<&str>) -> Result<(), Error> {
    if format_given {
        return Ok(());
    }
    let name = name.unwrap_or("it");
    // Only an interactive user can confirm it.
    let advice = match contract {
        Contract::CommandLine => " (--format raw makes an empty disk of it)",
        Contract::Environment => "",
    };
    let what = format!(
        "the source is empty: {name} gave no byte; check the file, server or program that supplies the image{advice}"
    );
    Err(Error::new(Kind::Refused, what))
}

/// A warning about a raw image that does not end where a sector of a disk does: it may be a part of one, or no disk.
pub fn odd(format: &str, virtual_size: u64) -> Option<String> {
    let raw = format.split('.').next() == Some(crate::Format::Raw.name());
    let odd = raw && !virtual_size.is_multiple_of(512);
    odd.then(|| {
        format!(
            "the image has {virtual_size} bytes, not whole sectors of 512 bytes: it may be incomplete; compare it with the original"
        )
    })
}

/// What to do when the image's tables come after its data, the source can be read once only, and there was no room
/// to keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstreamable {
    /// Ask the controller for a scratch volume.
    AskForScratch,
    /// Fail and name the command that converts the image.
    Fail,
}

/// See [`Unstreamable`]. With scratch there already, asking again would never end.
pub fn unstreamable(contract: Contract, scratch_mounted: bool) -> Unstreamable {
    match (contract, scratch_mounted) {
        (Contract::Environment, false) => Unstreamable::AskForScratch,
        (Contract::Environment, true) | (Contract::CommandLine, _) => Unstreamable::Fail,
    }
}

/// Space next to the disk that may hold early bytes of a stream: free space when the disk is as large as it can get.
pub fn spare(capacity: u64, final_size: u64) -> u64 {
    let spare = capacity.saturating_sub(final_size);
    // Leave the filesystem a little for its own tables and the journal.
    spare.saturating_sub(spare / 16).saturating_sub(ALIGNMENT)
}

/// Whether an import can go on where an earlier one ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// The journal is ours and of this image: go on.
    Continue,
    /// Ours, but of another image, or one that cannot be distinguished from another: from the start.
    Restart,
    /// Nothing there.
    Fresh,
}

/// Facts about an existing target file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Existing {
    /// It has bytes.
    pub content: bool,
    /// A journal of ours names this very file.
    pub ours: bool,
    /// The journal is of this very image.
    pub same_image: bool,
}

/// Whether an existing file is resumed, overwritten, or left alone.
///
/// # Errors
/// By command line, for a file with content that is no unfinished import, without `force`.
pub fn existing(
    contract: Contract,
    force: bool,
    file: Option<Existing>,
    shown: &str,
) -> Result<Resume, Error> {
    match (file, contract) {
        (None, _) => Ok(Resume::Fresh),
        (Some(Existing { ours: true, same_image: true, .. }), _) => Ok(Resume::Continue),
        (Some(Existing { ours: true, same_image: false, .. }), _) => Ok(Resume::Restart),
        (Some(Existing { content: true, ours: false, .. }), Contract::CommandLine) if !force => {
            Err(Error::new(
                Kind::Target,
                format!(
                    "{shown} exists and is no unfinished import; give --force to overwrite it, or another name"
                ),
            ))
        }
        (Some(Existing { ours: false, .. }), _) => Ok(Resume::Restart),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn modes() {
        for (content, device, expected) in [
            (Holds::Disk, false, Some(Mode::File)),
            (Holds::Disk, true, Some(Mode::Block)),
            (Holds::Files, false, Some(Mode::Folder)),
            (Holds::Files, true, None),
            (Holds::Clone, false, Some(Mode::Folder)),
            (Holds::Clone, true, None),
        ] {
            assert_eq!(mode(content, device).ok(), expected, "{content:?} {device}");
        }
    }

    #[test]
    fn usable_is_upstreams_arithmetic() {
        for (available, overhead, expected) in [
            (10 * GIB, 0.0, 10 * GIB),
            (10 * GIB + 1, 0.0, 10 * GIB),
            (10 * GIB, 0.055, 9706 * MIB),
            (10 * GIB, 0.06, 9660 * MIB),
            (GIB, 0.06, 966 * MIB),
            (1000 * GIB, 0.1, 930_909 * MIB),
            (MIB, 0.06, 0),
            (0, 0.06, 0),
            (GIB, 1.0, 512 * MIB),
            (u64::MAX, 0.0, u64::MAX - (MIB - 1)),
        ] {
            assert_eq!(usable(available, overhead), expected, "{available} {overhead}");
        }
    }

    #[test]
    fn available_is_capacity_and_request() {
        use Contract::{CommandLine, Environment};
        for (contract, mode, preallocate, request, expected) in [
            (Environment, Mode::File, false, None, 100),
            (Environment, Mode::File, false, Some(60), 60),
            (Environment, Mode::File, false, Some(160), 100),
            (Environment, Mode::Block, false, Some(60), 60),
            (CommandLine, Mode::File, false, None, u64::MAX),
            (CommandLine, Mode::File, false, Some(160), 160),
            (CommandLine, Mode::File, true, Some(160), 100),
            (CommandLine, Mode::Block, false, None, 100),
            (CommandLine, Mode::Block, false, Some(160), 100),
        ] {
            assert_eq!(
                available(contract, mode, preallocate, 100, request),
                expected,
                "{contract:?} {mode:?} {preallocate} {request:?}"
            );
        }
    }

    #[test]
    fn too_large_uses_upstreams_message() {
        fits(Contract::Environment, 10, 10, None).unwrap();
        let start = "virtual image size 8232370176 is larger than the reported available storage 6541017088";
        for (contract, request, advice) in [
            (Contract::Environment, Some(6_541_017_088), ". A larger PVC is required"),
            (Contract::CommandLine, Some(6_541_017_088), "; give a larger --size, or leave it out"),
            (Contract::CommandLine, Some(9_000_000_000), "; use a larger target, or free some room"),
            (Contract::CommandLine, None, "; use a larger target, or free some room"),
        ] {
            assert_eq!(
                fits(contract, 8_232_370_176, 6_541_017_088, request).unwrap_err().to_string(),
                format!("{start}{advice}")
            );
        }
    }

    #[test]
    fn final_sizes() {
        for (virtual_size, available, overhead, request, expected) in [
            (GIB, 10 * GIB, 0.0, None, GIB),
            (GIB, 10 * GIB, 0.0, Some(10 * GIB), 10 * GIB),
            (GIB, 10 * GIB, 0.06, Some(10 * GIB), 9660 * MIB),
            (GIB, 20 * GIB, 0.06, Some(10 * GIB), 10 * GIB),
            (10 * GIB, 10 * GIB, 0.06, Some(10 * GIB), 10 * GIB),
            (513, 10 * GIB, 0.0, Some(MIB), MIB),
            (513, MIB, 0.06, Some(MIB), 513),
        ] {
            assert_eq!(
                final_size(Contract::Environment, virtual_size, available, overhead, request),
                expected,
                "{virtual_size} {available} {overhead} {request:?}"
            );
        }
        let blank = |available, request| blank_size(Contract::Environment, available, 0.06, request);
        assert_eq!(blank(10 * GIB, Some(10 * GIB)).unwrap(), 9660 * MIB);
        assert_eq!(blank(u64::MAX, None).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn a_person_gets_the_size_that_was_asked_for() {
        use Contract::CommandLine;
        for (virtual_size, overhead, request, expected, told) in [
            (513, 0.0, None, 513, false),
            (513, 0.0, Some(513), 513, false),
            (513, 0.0, Some(MIB), MIB, false),
            (513, 0.0, Some(MIB + 1), 2 * MIB, true),
            (513, 0.0, Some(600), MIB, true),
            (0, 0.0, Some(GIB + 1), GIB + MIB, true),
            (GIB, 0.06, Some(10 * GIB), 9660 * MIB, true),
            (GIB, 0.0, Some(u64::MAX), u64::MAX, false),
        ] {
            let size = final_size(CommandLine, virtual_size, 0, overhead, request);
            assert_eq!(size, expected, "{virtual_size} {overhead} {request:?}");
            let said = resized(CommandLine, overhead, request, size);
            assert_eq!(said.is_some(), told, "{said:?}");
            assert_eq!(resized(Contract::Environment, overhead, request, size), None);
        }
        for (mode, preallocate, asked, fine) in [
            (Mode::File, false, 101, true),
            (Mode::File, true, 100, true),
            (Mode::File, true, 101, false),
            (Mode::Block, false, 100, true),
            (Mode::Block, false, 101, false),
        ] {
            let answer = granted(mode, preallocate, asked, 100, "/dev/x");
            assert_eq!(answer.is_ok(), fine, "{mode:?} {preallocate} {asked}");
            if let Err(error) = answer {
                let text = error.to_string();
                assert_eq!(error.kind(), Kind::NoRoom);
                assert!(text.contains("101") && text.contains("100") && text.contains("/dev/x"), "{text}");
            }
        }
        assert_eq!(zeroed(CommandLine, 100, Some(60)), 60);
        assert_eq!(zeroed(CommandLine, 100, None), 100);
        assert_eq!(zeroed(Contract::Environment, 100, Some(60)), 100);
    }

    #[test]
    fn unrecognized_content_is_planned_by_its_policy() {
        use Contract::{CommandLine, Environment};
        assert_eq!(foreign(Environment, false, None).unwrap(), Foreign::No);
        assert!(
            matches!(foreign(Environment, false, Some("HTML")).unwrap(), Foreign::Warn(w) if w.contains("HTML"))
        );
        assert_eq!(foreign(CommandLine, true, Some("zip")).unwrap(), Foreign::No);
        for seen in ["HTML", "zip", "a tar archive", "a LUKS container (encrypted)", "a QED image"] {
            let error = foreign(CommandLine, false, Some(seen)).unwrap_err();
            assert_eq!(error.kind(), Kind::Refused);
            assert!(
                error.to_string().contains(seen) && error.to_string().contains("--format raw"),
                "{error}"
            );
        }
    }

    #[test]
    fn refusals_of_the_contract_name_no_options() {
        let error = foreign(Contract::Environment, false, Some(DMG)).unwrap_err().to_string();
        assert!(error.contains("qemu-img convert") && !error.contains("--format"), "{error}");
    }

    #[test]
    fn empty_sources_are_refused_unless_the_format_is_given() {
        use Contract::{CommandLine, Environment};
        for (contract, advised) in [(CommandLine, true), (Environment, false)] {
            assert!(empty(contract, true, Some("/a/b")).is_ok());
            let error = empty(contract, false, Some("/a/b")).unwrap_err();
            assert_eq!(error.kind(), Kind::Refused);
            let error = error.to_string();
            assert!(error.starts_with("the source is empty: /a/b gave no byte"), "{error}");
            assert_eq!(error.contains("--"), advised, "{error}");
            let error = empty(contract, false, None).unwrap_err().to_string();
            assert!(error.starts_with("the source is empty: it gave no byte"), "{error}");
        }
    }

    #[test]
    fn unstreamable_images_need_scratch_space() {
        use Contract::{CommandLine, Environment};
        assert_eq!(unstreamable(Environment, false), Unstreamable::AskForScratch);
        assert_eq!(unstreamable(Environment, true), Unstreamable::Fail);
        assert_eq!(unstreamable(CommandLine, false), Unstreamable::Fail);
        assert_eq!(unstreamable(CommandLine, true), Unstreamable::Fail);
        assert_eq!(spare(GIB, 2 * GIB), 0);
        assert_eq!(spare(GIB + MIB, GIB), 0);
        assert_eq!(spare(2 * GIB, GIB), GIB - GIB / 16 - MIB);
    }

    #[test]
    fn existing_files() {
        use Contract::{CommandLine, Environment};
        let file = |content, ours, same_image| Some(Existing { content, ours, same_image });
        for (contract, force, found, expected) in [
            (Environment, false, None, Some(Resume::Fresh)),
            (Environment, false, file(true, false, false), Some(Resume::Restart)),
            (Environment, false, file(true, true, true), Some(Resume::Continue)),
            (Environment, false, file(true, true, false), Some(Resume::Restart)),
            (CommandLine, false, None, Some(Resume::Fresh)),
            (CommandLine, false, file(false, false, false), Some(Resume::Restart)),
            (CommandLine, false, file(true, false, false), None),
            (CommandLine, true, file(true, false, false), Some(Resume::Restart)),
            (CommandLine, false, file(true, true, true), Some(Resume::Continue)),
            (CommandLine, false, file(true, true, false), Some(Resume::Restart)),
        ] {
            assert_eq!(
                existing(contract, force, found, "disk").ok(),
                expected,
                "{contract:?} {force} {found:?}"
            );
        }
    }
}
