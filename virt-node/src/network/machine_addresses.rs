//! Addresses of the pod network that the daemons of this machine give to guests. All have one bridge, and each has records
//! in its own state directory; here each learns of the others', so that no two VMs are given one address.
//!
//! ```text
//! /run/ferrovirt/addresses/NETNS/lock     held while an address is taken
//! /run/ferrovirt/addresses/NETNS/NUMBER   where a daemon's records of addresses are
//! ```
//!
//! `NETNS` is the machine's network namespace, which has the bridge. A file whose records are gone is removed. Not here: the
//! records themselves, which are the plugin `host-local`'s.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use rustix::fs::{FlockOperation, flock};

use super::pod;
use crate::error::{Error, Kind};

/// Where daemons learn of each other, until the machine restarts.
const PLACE: &str = "/run/ferrovirt/addresses";
/// The lock's name.
const LOCK: &str = "lock";

/// The addresses of this machine's guests, while no other daemon takes one.
#[derive(Debug)]
pub(super) struct MachineAddresses {
    /// Those that any daemon has given.
    taken: BTreeSet<IpAddr>,
    /// Whether another daemon has given some, which `host-local` of this one does not know.
    shared: bool,
    _lock: File,
}

impl MachineAddresses {
    /// Waits until no other daemon takes an address, and reads which are taken. `records`: where this daemon's are.
    ///
    /// # Errors
    /// A file or directory cannot be read or made.
    pub(super) fn lock(records: &Path) -> Result<Self, Error> {
        let locked = || -> io::Result<Self> {
            fs::create_dir_all(PLACE)?;
            // A process that can open the lock can hold it.
            fs::set_permissions(PLACE, Permissions::from_mode(0o700))?;
            let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
            Self::lock_in(&Path::new(PLACE).join(namespace.to_string()), records)
        };
        locked().map_err(|error| {
            let text = format!("cannot lock the list of guests' addresses in {PLACE}");
            Error::with(Kind::System, text, error)
        })
    }

    fn lock_in(place: &Path, records: &Path) -> io::Result<Self> {
        fs::create_dir_all(place)?;
        let lock = File::create(place.join(LOCK))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let mut taken = others(place, records)?;
        let shared = !taken.is_empty();
        taken.extend(given(records)?);
        Ok(Self { taken, shared, _lock: lock })
    }

    /// The addresses to ask for, at most one of each subnet: the previous one, unless it is taken. For a subnet without one,
    /// any will do.
    ///
    /// # Errors
    /// A subnet has no free address.
    pub(super) fn choose<'a>(
        &self,
        subnets: impl Iterator<Item = &'a str>,
        previous: &[String],
    ) -> Result<Vec<String>, Error> {
        let address = |text: &String| text.parse().or_else(|_| text.parse::<IpNet>().map(|net| net.addr()));
        let previous: Vec<IpAddr> = previous.iter().flat_map(address).collect();
        let is_free = |address: &IpAddr| !self.taken.contains(address);
        let mut chosen = Vec::new();
        for subnet in subnets.flat_map(str::parse::<IpNet>) {
            let again = previous.iter().copied().find(|one| subnet.contains(one) && is_free(one));
            if again.is_none() && !self.shared {
                continue;
            }
            // The bridge has the first address.
            let mut hosts = subnet.hosts().filter(|host| *host != subnet.network()).skip(1);
            let address = again.or_else(|| hosts.find(is_free)).ok_or_else(|| {
                Error::new(Kind::System, format!("guests have all addresses of the subnet {subnet}"))
            })?;
            chosen.push(address.to_string());
        }
        Ok(chosen)
    }
}

/// Addresses in the records of other daemons; this one's are listed for them.
fn others(place: &Path, records: &Path) -> io::Result<BTreeSet<IpAddr>> {
    let mut addresses = BTreeSet::new();
    let (mut listed, mut last) = (false, 0);
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok()) else {
            continue;
        };
        last = last.max(number);
        let path = PathBuf::from(OsString::from_vec(fs::read(entry.path())?));
        if path == records {
            listed = true;
        } else if path.exists() {
            addresses.extend(given(&path)?);
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    if !listed {
        fs::write(place.join((last + 1).to_string()), records.as_os_str().as_bytes())?;
    }
    Ok(addresses)
}

/// The addresses in records of `host-local`: the names of files.
fn given(records: &Path) -> io::Result<BTreeSet<IpAddr>> {
    let entries = match fs::read_dir(records.join(pod::NAME)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let mut addresses = BTreeSet::new();
    for entry in entries {
        addresses.extend(entry?.file_name().to_str().and_then(|name| name.parse::<IpAddr>().ok()));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_another_daemon_has_given_is_not_given_again() {
        let folder = tempfile::tempdir().unwrap();
        let [place, mine, other] = ["place", "mine", "other"].map(|name| folder.path().join(name));
        for (records, address) in [(&mine, "10.0.0.2"), (&other, "10.0.0.3"), (&other, "fd00::2")] {
            fs::create_dir_all(records.join(pod::NAME)).unwrap();
            fs::write(records.join(pod::NAME).join(address), "").unwrap();
        }
        let chosen = |records: &Path, subnets: &[&str], previous: &[&str]| {
            let previous: Vec<String> = previous.iter().map(|text| (*text).to_owned()).collect();
            let machine = MachineAddresses::lock_in(&place, records).unwrap();
            machine.choose(subnets.iter().copied(), &previous)
        };
        let both = ["10.0.0.0/24", "fd00::/64"];
        assert_eq!(chosen(&other, &both, &[]).unwrap(), [""; 0], "alone: any will do");
        let mine = |previous: &[&str]| chosen(&mine, &both, previous).unwrap();
        assert_eq!(mine(&[]), ["10.0.0.4", "fd00::3"]);
        assert_eq!(mine(&["10.0.0.9/24", "fd00::9"]), ["10.0.0.9", "fd00::9"], "as before");
        assert_eq!(mine(&["10.0.0.2"]), ["10.0.0.4", "fd00::3"], "another guest's");
        assert_eq!(mine(&["10.0.0.3"]), ["10.0.0.4", "fd00::3"], "another daemon's");
        assert_eq!(mine(&["192.0.2.1"]), ["10.0.0.4", "fd00::3"], "of an earlier subnet");
        let full = chosen(&other, &["10.0.0.0/30"], &[]).unwrap_err().to_string();
        assert!(full.contains("10.0.0.0/30"), "{full}");
        // A state directory that is gone holds nothing.
        fs::remove_dir_all(&other).unwrap();
        assert_eq!(mine(&["10.0.0.3"]), ["10.0.0.3"], "alone again");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 2, "the lock, and one directory");
    }
}
