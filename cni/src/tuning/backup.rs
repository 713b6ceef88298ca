//! The file that keeps an interface's attributes as they were before: `<folder>/<container>_<interface>.json`, in the
//! reference's form to the byte.

use std::fmt::Write as _;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::netlink::Link;
use crate::protocol::{Attachment, Mac, Object};
use crate::tuning::config::Config;

/// Attributes as they were; none for one that was not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Backup {
    pub(super) mac: Option<Mac>,
    pub(super) promiscuous: Option<bool>,
    pub(super) mtu: Option<u32>,
    pub(super) all_multicast: Option<bool>,
    pub(super) transmit_queue: Option<u32>,
}

impl Backup {
    /// The present values of the attributes of `link` that `config` changes.
    pub(super) fn of(link: &Link, config: &Config) -> Self {
        Self {
            mac: config.mac.and(link.mac),
            promiscuous: config.promiscuous.then_some(link.promiscuous_flag),
            mtu: config.mtu.map(|_| link.mtu),
            all_multicast: config.all_multicast.map(|_| link.all_multicast),
            transmit_queue: config.transmit_queue.map(|_| link.transmit_queue),
        }
    }

    fn render(&self) -> String {
        let mut members = Vec::new();
        members.extend(self.mac.map(|mac| format!("\"mac\": \"{mac}\"")));
        members.extend(self.promiscuous.map(|on| format!("\"promisc\": {on}")));
        members.extend(self.mtu.map(|mtu| format!("\"mtu\": {mtu}")));
        members.extend(self.all_multicast.map(|on| format!("\"allmulti\": {on}")));
        members.extend(self.transmit_queue.map(|length| format!("\"txQLen\": {length}")));
        let mut text = "{".to_owned();
        for (index, member) in members.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // Writing to a string does not fail.
            let _ = write!(text, "{comma}\n {member}");
        }
        text.push_str(if members.is_empty() { "}" } else { "\n}" });
        text
    }

    /// Reads a file's content as far as it makes sense, and whether all of it does.
    fn parse(text: &[u8]) -> (Self, bool) {
        let Ok(keys) = Object::parse(text, "the file") else { return (Self::default(), false) };
        let number = |key| {
            let odd = |_| Error::config(format!("\"{key}\" is not a number of 32 bits"));
            keys.integer(key)?.map(u32::try_from).transpose().map_err(odd)
        };
        let switch = |key| keys.get(key).map(|_| keys.boolean(key)).transpose();
        let mac = |key| {
            let text = keys.text(key)?.filter(|text| !text.is_empty());
            Ok::<_, Error>(text.map(link::interface_mac).transpose()?)
        };
        let (mac, promiscuous, mtu) = (mac("mac"), switch("promisc"), number("mtu"));
        let (all_multicast, transmit_queue) = (switch("allmulti"), number("txQLen"));
        let whole = mac.is_ok()
            && promiscuous.is_ok()
            && mtu.is_ok()
            && all_multicast.is_ok()
            && transmit_queue.is_ok();
        let backup = Self {
            mac: mac.ok().flatten(),
            promiscuous: promiscuous.ok().flatten(),
            mtu: mtu.ok().flatten().filter(|mtu| *mtu > 0),
            all_multicast: all_multicast.ok().flatten(),
            transmit_queue: transmit_queue.ok().flatten(),
        };
        (backup, whole)
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// [`crate::Kind::Io`].
    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |error| Error::io(format!("{} cannot be written", path.display()), error);
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        }
        let temporary = temporary(path);
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| file.write_all(self.render().as_bytes()))
            .and_then(|()| std::fs::rename(&temporary, path));
        written.map_err(|error| {
            let _ = std::fs::remove_file(&temporary);
            failed(error)
        })
    }

    /// Reads the file as far as it makes sense, and whether all of it does; none if there is none.
    ///
    /// # Errors
    /// [`crate::Kind::Io`] when it is there and cannot be read.
    pub(super) fn read(path: &Path) -> Result<Option<(Self, bool)>, Error> {
        match std::fs::read(path) {
            Ok(text) => Ok(Some(Self::parse(&text))),
            Err(error) if absent(&error) => Ok(None),
            Err(error) => Err(Error::io(format!("{} cannot be read", path.display()), error)),
        }
    }
}

/// The file of an attachment.
pub(super) fn path(folder: &Path, attachment: &Attachment) -> PathBuf {
    folder.join(format!("{}_{}.json", attachment.container, attachment.interface))
}

/// Removes the file, and what a killed ADD may have left of it.
///
/// # Errors
/// [`crate::Kind::Io`].
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    for path in [path, &temporary(path)] {
        match std::fs::remove_file(path) {
            Err(error) if !absent(&error) => {
                return Err(Error::io(format!("{} cannot be removed", path.display()), error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Keeps an invalid file for inspection, where no DEL reads it again: `<container>_<interface>.broken`.
///
/// # Errors
/// [`crate::Kind::Io`].
pub(super) fn set_aside(path: &Path) -> Result<PathBuf, Error> {
    let kept = path.with_extension("broken");
    std::fs::rename(path, &kept).map_err(|error| {
        Error::io(format!("{} cannot be renamed to {}", path.display(), kept.display()), error)
    })?;
    remove(path).map(|()| kept)
}

fn temporary(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// A name that is too long was never written, either.
fn absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_survives_a_round_trip() {
        let backup = Backup {
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            promiscuous: Some(false),
            mtu: Some(1500),
            all_multicast: Some(true),
            transmit_queue: Some(0),
        };
        let text = backup.render();
        assert_eq!(
            text,
            "{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": true,\n \"txQLen\": 0\n}"
        );
        assert_eq!(Backup::parse(text.as_bytes()), (backup, true));
        assert_eq!(Backup::default().render(), "{}");
        assert_eq!(Backup::parse(b"{}"), (Backup::default(), true));
        assert_eq!(Backup::parse(br#"{"mac": "", "mtu": 0, "promisc": null}"#), (Backup::default(), true));
        for nonsense in ["", "[]", "{\"mac\": 7, \"mtu\": -1, \"promisc\": \"x\"}", "{\"txQLen\": 77"] {
            assert_eq!(Backup::parse(nonsense.as_bytes()), (Backup::default(), false));
        }
        let half = Backup { mtu: Some(1500), ..Backup::default() };
        assert_eq!(Backup::parse(br#"{"mac": "x", "mtu": 1500}"#), (half, false));
    }
}
