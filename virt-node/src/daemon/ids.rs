//! Users and groups of VMs and transfers: each has one number of its own, which is a user and a group, out of a range that
//! belongs to ferrovirt (`sysusers.d/ferrovirt.conf`). A process that escapes from one VM, importer or upload server can
//! neither read nor signal what belongs to another.
//!
//! ```text
//! vm/UID      a VM, for all its runs         image/HASH   the import of a container image, and the group of its readers
//! claim/UID   the import or upload into a claim, and the group of VMs that share its disk; readers/UID: that only read it
//! ```
//!
//! Files that a VM leaves, such as a `hostDisk`, keep its number. So a number that was released is given out again only after
//! all others: the file `ids.last` holds the last one given out.
//!
//! A number of an account of the machine is never used: [`taken`]. Nor is one of another daemon on this machine
//! ([`super::registry`]), or of a process of an unknown daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use dir::Owner;

use super::process;
use super::registry::{self, Registry};
use crate::error::{Error, Kind};

/// The first number.
pub(crate) const FIRST: u32 = 1_900_000_000;
/// How many there are.
pub(crate) const COUNT: u32 = 65_536;
/// The last number.
pub(crate) const LAST: u32 = FIRST + COUNT - 1;
/// Names of accounts that are ferrovirt's own begin with this.
const OWN: &str = "ferrovirt-";
/// Longest file of accounts, and of numbers, in bytes.
const FILE_MAX: u64 = 16 << 20;

/// The name of a VM's number.
pub(super) fn vm(owner: &str) -> String {
    format!("vm/{owner}")
}

/// The name of the number of a claim's transfer, and of the group of writers of its disk.
pub(super) fn claim(uid: &str) -> String {
    format!("claim/{uid}")
}

/// The name of the group of readers of a claim's disk.
pub(super) fn readers(uid: &str) -> String {
    format!("readers/{uid}")
}

/// The name of the group of writers of a `hostDisk` that VMs share. It is kept: the file is the machine's, and stays.
pub(super) fn host_disk(path: &str) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(path);
    format!("host-disk/{}", digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Numbers that are given out, in a file.
#[derive(Debug)]
pub(super) struct Ids {
    path: PathBuf,
    registry: Registry,
    given: Mutex<AssignedNumbers>,
}

#[derive(Debug, Default)]
struct AssignedNumbers {
    /// By what they are for.
    numbers: BTreeMap<String, u32>,
    /// Numbers that the registry records for this daemon.
    held: BTreeSet<u32>,
    /// The last number given out, which may be released by now.
    last: Option<u32>,
}

/// The user of an import or an upload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer<'a> {
    ids: &'a Ids,
    /// Its user and group.
    pub(super) user: Owner,
}

impl Transfer<'_> {
    /// Kills every process of the transfer's user.
    pub(super) fn end(self) {
        self.ids.end_all_of(self.user.uid);
    }
}

/// An account of the machine with a number in ferrovirt's range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The number.
    pub(crate) id: u32,
    /// Its account, such as `group tss`.
    pub(crate) account: String,
}

/// Whether a number is ferrovirt's.
pub(super) fn in_range(id: u32) -> bool {
    id.checked_sub(FIRST).is_some_and(|index| index < COUNT)
}

/// Accounts in a file of the form of passwd(5) or group(5) with a number in the range.
fn accounts(text: &str, what: &str) -> Vec<Taken> {
    let account = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.starts_with(OWN))?;
        let id = fields.nth(1)?.parse().ok().filter(|id| in_range(*id))?;
        Some(Taken { id, account: format!("{what} {name}") })
    };
    text.lines().filter_map(account).collect()
}

/// Numbers of the range that belong to other accounts of the machine.
pub(crate) fn taken() -> Vec<Taken> {
    let read = |path: &str, what| {
        let text = dir::read(path, FILE_MAX).ok().flatten().unwrap_or_default();
        accounts(&String::from_utf8_lossy(&text), what)
    };
    let mut taken = read("/etc/passwd", "user");
    taken.extend(read("/etc/group", "group"));
    taken
}

/// The index of a state directory's first number, by the path of its file: daemons that do not see each other's records, such
/// as in containers, rarely share numbers.
fn start(path: &Path) -> u32 {
    let hash = path
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    // The upper half stays free of first numbers, so that counting on from one does not wrap.
    hash % (COUNT / 2)
}

/// The numbers in a file; none where there is no file.
fn read(path: &Path) -> Result<BTreeMap<String, u32>, Error> {
    let broken = |text: String| Error::new(Kind::Content, format!("{}: {text}", path.display()));
    let text = dir::read(path, FILE_MAX).map_err(|error| failed(path)(error.into()))?;
    let given: BTreeMap<String, u32> = match text {
        Some(text) => serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?,
        None => BTreeMap::new(),
    };
    let numbers: BTreeSet<u32> = given.values().copied().collect();
    if numbers.len() != given.len() || !numbers.iter().all(|id| in_range(*id)) {
        return Err(broken(format!(
            "a user ID is outside {FIRST} to {LAST}, or assigned twice; correct the file"
        )));
    }
    Ok(given)
}

/// The file of the last number given out, next to the file of numbers.
fn last_file(path: &Path) -> PathBuf {
    path.with_extension("last")
}

/// The last number given out; `None` where no release that records it gave one.
fn read_last(path: &Path) -> Result<Option<u32>, Error> {
    let path = last_file(path);
    let Some(text) = dir::read(&path, FILE_MAX).map_err(|error| failed(&path)(error.into()))? else {
        return Ok(None);
    };
    let number = String::from_utf8_lossy(&text).trim().parse().ok().filter(|id| in_range(*id));
    let broken = || {
        let text = format!("it holds no user ID from {FIRST} to {LAST}; remove the file");
        Error::new(Kind::Content, format!("{}: {text}", path.display()))
    };
    number.map(Some).ok_or_else(broken)
}

/// Whether a file of numbers lists one; a file that cannot be read may.
fn lists(path: &Path, id: u32) -> bool {
    read(path).map_or(true, |given| given.values().any(|one| *one == id))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| {
        let text = format!("cannot read or write {}, the user IDs of VMs", path.display());
        Error::with(Kind::System, text, error)
    }
}

impl Ids {
    /// Reads what was given out.
    ///
    /// # Errors
    /// The file cannot be read, or two have one number.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        Self::open_with(path, Registry::new(registry::PLACE))
    }

    fn open_with(path: &Path, registry: Registry) -> Result<Self, Error> {
        let given = AssignedNumbers { numbers: read(path)?, held: BTreeSet::new(), last: read_last(path)? };
        Ok(Self { path: path.to_owned(), registry, given: Mutex::new(given) })
    }

    /// The number of `whose`, allocated now if it has none, or if another account or daemon has it by now.
    ///
    /// # Errors
    /// None is free, or it cannot be recorded.
    pub(super) fn of(&self, whose: &str) -> Result<Owner, Error> {
        let taken: BTreeSet<u32> = taken().into_iter().map(|one| one.id).collect();
        self.choose(whose, &taken).map(Owner::same)
    }

    /// The same as the user of a transfer.
    ///
    /// # Errors
    /// As [`Ids::of`].
    pub(super) fn transfer(&self, whose: &str) -> Result<Transfer<'_>, Error> {
        Ok(Transfer { ids: self, user: self.of(whose)? })
    }

    fn choose(&self, whose: &str, taken: &BTreeSet<u32>) -> Result<u32, Error> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let before = given.numbers.get(whose).copied().filter(|id| !taken.contains(id));
        if let Some(id) = before.filter(|id| given.held.contains(id)) {
            return Ok(id);
        }
        let registry = self.registry.lock().map_err(failed(self.registry.place()))?;
        if let Some(id) = before
            && registry.claim(id, &self.path, lists).map_err(failed(self.registry.place()))?
        {
            given.held.insert(id);
            return Ok(id);
        }
        let used: BTreeSet<u32> = given.numbers.values().copied().collect();
        let running = process::users(in_range);
        // The one after the last, so that a number rests before it is used again.
        let last = given.last.or(used.last().copied());
        let begin = last.map_or_else(|| start(&self.path), |last| last - FIRST + 1);
        let free = (0..COUNT).map(|step| FIRST + (begin + step) % COUNT);
        let free = free.filter(|id| !used.contains(id) && !taken.contains(id) && !running.contains(id));
        for id in free {
            if registry.claim(id, &self.path, lists).map_err(failed(self.registry.place()))? {
                let file = last_file(&self.path);
                dir::replace_durably(&file, id.to_string().as_bytes(), 0o600)
                    .map_err(|error| failed(&file)(error.into()))?;
                given.last = Some(id);
                let mut next = given.numbers.clone();
                next.insert(whose.to_owned(), id);
                self.keep(&next)?;
                given.numbers = next;
                given.held.insert(id);
                return Ok(id);
            }
        }
        Err(Error::new(Kind::System, format!("all {COUNT} users of VMs and transfers are in use")))
    }

    /// Releases a number; no resource of its owner is left.
    ///
    /// # Errors
    /// It cannot be recorded that it is free.
    pub(super) fn free(&self, whose: &str) -> Result<(), Error> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(id) = given.numbers.get(whose).copied() else { return Ok(()) };
        let registry = self.registry.lock().map_err(failed(self.registry.place()))?;
        let mut next = given.numbers.clone();
        next.remove(whose);
        self.keep(&next)?;
        given.numbers = next;
        given.held.remove(&id);
        registry.give_back(id, &self.path).map_err(failed(self.registry.place()))
    }

    /// Kills every process of a user that this daemon gave a number. Answers how many there were; `None`: the number is
    /// another daemon's or free, and no process was killed.
    pub(super) fn end_all_of(&self, user: u32) -> Option<usize> {
        // Above all root's processes are not ours.
        if !in_range(user) {
            return None;
        }
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if !given.numbers.values().any(|id| *id == user) {
            return None;
        }
        if !given.held.contains(&user) {
            if !self.registry.lock().ok()?.claim(user, &self.path, lists).ok()? {
                return None;
            }
            given.held.insert(user);
        }
        drop(given);
        Some(process::end_all_of(user))
    }

    fn keep(&self, given: &BTreeMap<String, u32>) -> Result<(), Error> {
        let json = serde_json::to_vec(given).map_err(|error| failed(&self.path)(error.into()))?;
        dir::replace_durably(&self.path, &json, 0o600).map_err(|error| failed(&self.path)(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> BTreeSet<u32> {
        BTreeSet::new()
    }

    /// The numbers of a state directory at `name`, on the machine at `place`.
    fn open(place: &tempfile::TempDir, name: &str) -> Result<Ids, Error> {
        let path = place.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Ids::open_with(&path.join("ids"), Registry::new(place.path().join("registry")))
    }

    #[test]
    fn each_has_a_number_of_its_own_that_lasts() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("state/ids");
        let ids = open(&place, "state").unwrap();
        let (a, b) = (ids.choose("vm/a", &none()).unwrap(), ids.choose("vm/b", &none()).unwrap());
        assert!(a != b && in_range(a) && in_range(b));
        let again = open(&place, "state").unwrap();
        assert_eq!(again.choose("vm/a", &none()).unwrap(), a);
        again.free("vm/a").unwrap();
        again.free("vm/b").unwrap();
        let c = again.choose("vm/c", &none()).unwrap();
        assert!(c != a && c != b, "a number rests before it is used again");
        again.free("vm/c").unwrap();
        let d = open(&place, "state").unwrap().choose("vm/d", &none()).unwrap();
        assert!(![a, b, c].contains(&d), "also after a restart of the daemon");
        std::fs::write(&path, format!("{{\"vm/a\": {FIRST}, \"vm/b\": {FIRST}}}")).unwrap();
        open(&place, "state").unwrap_err();
        std::fs::write(&path, "{\"vm/a\": 107}").unwrap();
        open(&place, "state").unwrap_err();
    }

    #[test]
    fn a_number_of_another_account_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let ids = open(&place, "state").unwrap();
        let first = ids.choose("vm/a", &none()).unwrap();
        let taken = BTreeSet::from([first, first + 1]);
        assert_eq!(ids.choose("vm/a", &taken).unwrap(), first + 2, "it gets another one");
        assert_eq!(ids.choose("vm/b", &taken).unwrap(), first + 3);
    }

    /// Two daemons gave two VMs one number, and each ended the other's.
    #[test]
    fn two_daemons_give_no_number_twice_and_end_no_process_of_the_other() {
        use std::os::unix::process::CommandExt;
        let place = tempfile::tempdir().unwrap();
        let ids = open(&place, "state").unwrap();
        let number = ids.choose("vm/a", &none()).unwrap();
        let mut child =
            std::process::Command::new("sleep").arg("60").uid(number).gid(number).spawn().unwrap();
        // As if the second one's first number were the same, and written there by an earlier release.
        std::fs::create_dir(place.path().join("other")).unwrap();
        std::fs::copy(place.path().join("state/ids"), place.path().join("other/ids")).unwrap();
        let other = open(&place, "other").unwrap();
        assert_eq!(other.end_all_of(number), None);
        assert!(child.try_wait().unwrap().is_none());
        assert_ne!(other.choose("vm/a", &none()).unwrap(), number);
        assert_eq!(other.end_all_of(FIRST), None, "nobody has it");
        // The state directory was removed, and its VM goes on: its number is not given out again.
        std::fs::remove_dir_all(place.path().join("state")).unwrap();
        let third = open(&place, "third").unwrap();
        let numbers: Vec<u32> = (0..8).map(|n| third.choose(&format!("vm/{n}"), &none()).unwrap()).collect();
        assert!(!numbers.contains(&number));
        child.kill().unwrap();
        child.wait().unwrap();
        let ids = open(&place, "state").unwrap();
        let mut child =
            std::process::Command::new("sleep").arg("60").uid(number).gid(number).spawn().unwrap();
        std::fs::write(place.path().join("state/ids"), format!("{{\"vm/a\": {number}}}")).unwrap();
        assert_eq!(ids.end_all_of(number), None, "it was not given out by this one");
        assert_eq!(open(&place, "state").unwrap().end_all_of(number), Some(1));
        child.wait().unwrap();
    }

    #[test]
    fn accounts_in_the_range_are_named_and_our_own_are_not() {
        let text = format!("root:x:0:0::/:\nmysql:x:{FIRST}:5:\nferrovirt-first:x:{FIRST}:{FIRST}:\nbad\n");
        let found = accounts(&text, "user");
        assert_eq!(found, [Taken { id: FIRST, account: "user mysql".to_owned() }]);
    }
}
