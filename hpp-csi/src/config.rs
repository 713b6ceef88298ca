//! The driver's configuration: [`Config`], and the pools of the data-dir JSON.
//!
//! The JSON is upstream's, an array of `{name, path, snapshotPath, snapshotProvider, shared}`, with keys of ours that are
//! optional: `capacity`, `overcommit`, `reserve`, `enforce`, `copy`, `copyPublished`, `defragment`, `mounted`, `readWriteMany`. Unknown
//! keys are refused.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Component, Path, PathBuf};

use api::quantity;
use serde::Deserialize;
use serve::tls::Identity;

use crate::error::{Error, Kind, Result};
use crate::id::Id;

/// The pool of a StorageClass that names none.
pub(crate) const LEGACY_POOL: &str = "legacy";
/// Default directory of snapshots in a pool.
pub(crate) const SNAPSHOTS: &str = "snapshots";
/// The driver's own folder in a pool's folder.
pub(crate) const OWN_FOLDER: &str = ".hpp-csi";
/// Longest data-dir JSON in bytes.
const JSON_MAX: usize = 1 << 20;
/// Longest name of a pool: a label of DNS.
const POOL_NAME_MAX: usize = 63;
/// Longest name of a driver: CSI's limit.
const DRIVER_NAME_MAX: usize = 63;

/// Everything that was given, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The driver's name as kubelet and sidecars know it.
    pub driver: String,
    /// This node, the value of the topology key.
    pub node: Id,
    /// Version that GetPluginInfo reports.
    pub version: String,
    /// The socket to serve on.
    pub socket: PathBuf,
    /// Folder for what the driver must remember outside of its pools.
    pub state: PathBuf,
    /// The pools; the first one is that of inline volumes that name none.
    pub pools: Vec<PoolConfig>,
    /// No other node runs this driver: what is not here is nowhere.
    pub single_node: bool,
    /// The socket of the kubelet's plugin registration, and the driver's socket path as the kubelet sees it.
    pub registration: Option<Registration>,
    /// Where health is answered.
    pub health: Option<SocketAddr>,
    /// Where metrics are served.
    pub metrics: Option<Metrics>,
}

/// The kubelet's plugin registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Socket to serve the registration on.
    pub socket: PathBuf,
    /// Our CSI socket as the kubelet sees it.
    pub endpoint: String,
}

/// The metrics server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Address that it listens on.
    pub address: SocketAddr,
    /// Its certificate.
    pub identity: Identity,
}

/// Where a server listens, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen(pub(crate) Option<SocketAddr>);

impl std::str::FromStr for Listen {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        if text == "off" { Ok(Self(None)) } else { text.parse().map(|address| Self(Some(address))) }
    }
}

/// The meaning of a volume's capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Capacity {
    /// The requested size: reservations are summed and bounded.
    #[default]
    Request,
    /// The size of the whole filesystem, as upstream reports it; nothing is bounded.
    Filesystem,
}

/// How a mount volume is kept from growing over its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforce {
    /// Not at all.
    None,
    /// By project quota.
    Quota,
    /// By a filesystem of its own in a file.
    Loop,
}

impl Enforce {
    /// As it is written in the configuration.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Quota => "quota",
            Self::Loop => "loop",
        }
    }
}

/// Space that is kept free for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Thousandths of the filesystem's size.
    Thousandths(u64),
    /// Bytes.
    Bytes(u64),
}

impl Reserve {
    /// Bytes of a filesystem of `size` bytes.
    pub fn of(self, size: u64) -> u64 {
        match self {
            Self::Thousandths(part) => share(size, part),
            Self::Bytes(bytes) => bytes.min(size),
        }
    }
}

/// `thousandths` of `amount`, rounded down; the most a u64 holds when it is more.
pub(crate) fn share(amount: u64, thousandths: u64) -> u64 {
    u64::try_from(u128::from(amount) * u128::from(thousandths) / 1000).unwrap_or(u64::MAX)
}

/// A pool: a directory that holds one directory per volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name in StorageClasses.
    pub name: String,
    /// Its data folder.
    pub path: PathBuf,
    /// Its snapshots' folder.
    pub snapshots: PathBuf,
    /// Whether all nodes see the same files.
    pub shared: bool,
    /// The meaning of a volume's capacity.
    pub capacity: Capacity,
    /// How much may be promised, in thousandths of what there is.
    pub overcommit: u64,
    /// Space that stays free.
    pub reserve: Reserve,
    /// How capacity is enforced; `None`: by quota where the filesystem has it.
    pub enforce: Option<Enforce>,
    /// Whether a StorageClass may ask for copies where files cannot share blocks.
    pub copy: bool,
    /// Whether a volume is copied while it is published: another program prevents writes to it, and a change that the driver
    /// detects during the copy fails it.
    pub copy_published: bool,
    /// Extents above which the disk of a volume that is not in use is defragmented; `None`: none is.
    pub defragment: Option<NonZeroU64>,
    /// Whether the pool's path is a mount point that another program mounts: the pool is not ready before.
    pub mounted: bool,
    /// Whether a volume may have writers on several nodes: by default in a shared pool only.
    pub read_write_many: bool,
}

/// A pool as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenPool {
    name: String,
    path: PathBuf,
    snapshot_path: Option<PathBuf>,
    snapshot_provider: Option<String>,
    #[serde(default)]
    shared: bool,
    #[serde(default)]
    capacity: Capacity,
    overcommit: Option<serde_json::Number>,
    reserve: Option<String>,
    enforce: Option<Enforce>,
    #[serde(default)]
    copy: bool,
    #[serde(default)]
    copy_published: bool,
    defragment: Option<NonZeroU64>,
    #[serde(default)]
    mounted: bool,
    read_write_many: Option<bool>,
}

/// The pools of a data-dir JSON.
///
/// # Errors
/// [`Kind::Invalid`] for JSON that differs from the description at the top of this module.
pub fn pools(json: &str) -> Result<Vec<PoolConfig>> {
    if json.len() > JSON_MAX {
        return Err(invalid("the JSON of --datadir is longer than 1 MiB"));
    }
    let written: Vec<WrittenPool> = serde_json::from_str(json)
        .map_err(|error| invalid(format!("--datadir is not a JSON list of pools: {error}")))?;
    let pools = written.into_iter().map(PoolConfig::try_from).collect::<Result<Vec<_>>>()?;
    if pools.is_empty() {
        return Err(invalid("--datadir names no pool"));
    }
    let mut seen = HashSet::new();
    for pool in &pools {
        if !seen.insert(pool.name.clone()) {
            return Err(invalid(format!("--datadir gives two pools the name {:?}", pool.name)));
        }
    }
    check_disjoint(&pools)?;
    Ok(pools)
}

/// Checks that no directory of volumes or snapshots lies in another one: deleting what has its name would delete the other.
///
/// # Errors
/// [`Kind::Invalid`] when one does.
pub(crate) fn check_disjoint(pools: &[PoolConfig]) -> Result<()> {
    for (at, pool) in pools.iter().enumerate() {
        let PoolConfig { name, path, snapshots, .. } = pool;
        let (shown, shown_snapshots) = (path.display(), snapshots.display());
        let dots = |path: &Path| path.components().any(|part| part == Component::ParentDir);
        if dots(path) || dots(snapshots) {
            return Err(invalid(format!("pool {name}: a path with .. in it")));
        }
        if path.starts_with(snapshots) {
            return Err(invalid(format!(
                "pool {name}: snapshotPath {shown_snapshots} holds the pool's path {shown}: deleting a snapshot would \
                 delete volumes"
            )));
        }
        if let Ok(below) = snapshots.strip_prefix(path) {
            let own = Path::new(OWN_FOLDER);
            let volume = below.to_str().is_none_or(|text| Id::read(text).is_some());
            if below.components().count() != 1 || below == own || volume {
                return Err(invalid(format!(
                    "pool {name}: snapshotPath {shown_snapshots} is where a volume is or may be; in {shown} it can be \
                     {SNAPSHOTS} only"
                )));
            }
        }
        for other in pools.iter().skip(at + 1) {
            let theirs = [&other.path, &other.snapshots];
            for (ours, theirs) in
                [path, snapshots].into_iter().flat_map(|ours| theirs.map(|theirs| (ours, theirs)))
            {
                if ours == theirs {
                    return Err(invalid(format!(
                        "two pools, {name} and {}, are at {}",
                        other.name,
                        ours.display()
                    )));
                }
                if ours.starts_with(theirs) || theirs.starts_with(ours) {
                    return Err(invalid(format!(
                        "pools {name} and {}: one path of {} and {} contains the other",
                        other.name,
                        ours.display(),
                        theirs.display()
                    )));
                }
            }
        }
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, message)
}

impl TryFrom<WrittenPool> for PoolConfig {
    type Error = Error;

    fn try_from(written: WrittenPool) -> Result<Self> {
        let WrittenPool {
            name,
            path,
            snapshot_path,
            snapshot_provider,
            shared,
            capacity,
            overcommit,
            reserve,
            enforce,
            copy,
            copy_published,
            defragment,
            mounted,
            read_write_many,
        } = written;
        if !is_pool_name(&name) {
            return Err(invalid(format!(
                "a pool cannot be called {name:?}: give 1 to {POOL_NAME_MAX} small letters, digits and dashes, with a \
                 letter or digit at both ends"
            )));
        }
        let wrong = |what: String| invalid(format!("pool {name}: {what}"));
        let snapshots = snapshot_path.unwrap_or_else(|| path.join(SNAPSHOTS));
        for path in [&path, &snapshots] {
            if path.to_str().is_none_or(|text| text.contains(char::is_control)) {
                return Err(wrong(format!("the path {path:?} has control characters in it")));
            }
        }
        if !path.is_absolute() {
            return Err(wrong(format!("{} is not an absolute path", path.display())));
        }
        // Normalised, so that no spelling of the root passes.
        if path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::CurDir | Component::ParentDir))
        {
            return Err(wrong(
                "its path is the root of the filesystem; give a directory for the pool alone".to_owned(),
            ));
        }
        if let Some(provider) = snapshot_provider.filter(|provider| provider != "reflink") {
            return Err(wrong(format!("there is no snapshotProvider {provider:?}, only \"reflink\"")));
        }
        if !snapshots.is_absolute() {
            return Err(wrong(format!("snapshotPath {} is not absolute", snapshots.display())));
        }
        let overcommit = match overcommit {
            None => 1000,
            Some(number) => thousandths(&number.to_string())
                .filter(|factor| (1..=1_000_000).contains(factor))
                .ok_or_else(|| wrong(format!("overcommit {number} is not a number from 0.001 to 1000")))?,
        };
        let reserve = match reserve {
            None => Reserve::Thousandths(50),
            Some(text) => read_reserve(&text)
                .ok_or_else(|| wrong(format!("reserve {text:?} is neither like 5% nor like 10Gi")))?,
        };
        if copy_published && !copy {
            return Err(wrong("copyPublished is of use with \"copy\": true only".to_owned()));
        }
        if defragment.is_some() && shared {
            return Err(wrong(
                "defragment is for pools of one node: whether other nodes use a volume of a shared pool is not known"
                    .to_owned(),
            ));
        }
        Ok(Self {
            name,
            path,
            snapshots,
            shared,
            capacity,
            overcommit,
            reserve,
            enforce,
            copy,
            copy_published,
            defragment,
            mounted,
            read_write_many: read_write_many.unwrap_or(shared),
        })
    }
}

/// Whether `name` is a label of DNS: it is in StorageClasses, labels of metrics and messages.
fn is_pool_name(name: &str) -> bool {
    let inner = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    inner && (1..=POOL_NAME_MAX).contains(&name.len()) && !name.starts_with('-') && !name.ends_with('-')
}

/// Thousandths of a plain decimal number like 1, 1.5 or 0.25; finer digits are cut off.
fn thousandths(number: &str) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.bytes().any(|byte| !byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000".chars()).take(3).collect();
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(digits.parse().ok()?)
}

fn read_reserve(text: &str) -> Option<Reserve> {
    match text.strip_suffix('%') {
        Some(percent) => {
            let part = thousandths(percent.trim())? / 100 * 100;
            // Thousandths of a percent come in; ten thousandths of the whole are a percent.
            (part <= 100_000).then_some(Reserve::Thousandths(part / 100))
        }
        None => quantity::bytes(text).ok().map(Reserve::Bytes),
    }
}

/// The Unix socket in `--endpoint`: `unix:///path`, `unix:/path` or a plain path.
///
/// # Errors
/// [`Kind::Invalid`] for anything else.
pub(crate) fn socket(endpoint: &str) -> Result<PathBuf> {
    let path =
        endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    let path = Path::new(path);
    if !path.is_absolute() || path.file_name().is_none() {
        return Err(invalid(format!("--endpoint {endpoint:?} is not like unix:///csi/csi.sock")));
    }
    Ok(path.to_path_buf())
}

/// `name` as a driver's name: 1 to 63 letters, digits, dots and dashes, letters or digits at both ends.
///
/// # Errors
/// [`Kind::Invalid`] for anything else.
pub(crate) fn driver_name(name: String) -> Result<String> {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let inner = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    if !inner || !ends(name.bytes().next()) || !ends(name.bytes().last()) || name.len() > DRIVER_NAME_MAX {
        return Err(invalid(format!("--drivername {name:?} is not a domain name of at most 63 letters")));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_json_is_understood() {
        let json = r#"[{"name":"legacy","path":"/csi-data-dir","shared":false},
            {"name":"fast","path":"/fast-data-dir","snapshotPath":"/fast-data-dir/snapshots","snapshotProvider":"reflink","shared":true}]"#;
        let pools = pools(json).unwrap();
        assert_eq!(pools[0].name, "legacy");
        assert_eq!(pools[0].snapshots, Path::new("/csi-data-dir/snapshots"));
        assert_eq!(pools[0].capacity, Capacity::Request);
        assert_eq!(pools[0].overcommit, 1000);
        assert_eq!(pools[0].reserve.of(1000), 50);
        assert_eq!(pools[0].enforce, None);
        assert!(pools[1].shared && !pools[0].shared);
    }

    #[test]
    fn our_keys_are_understood() {
        let json = r#"[{"name":"a","path":"/a","capacity":"filesystem","overcommit":1.25,"reserve":"2.5%","enforce":"loop","copy":true},
            {"name":"b","path":"/b","overcommit":3,"reserve":"1Gi","enforce":"none","defragment":16384}]"#;
        let pools = pools(json).unwrap();
        assert_eq!((pools[0].overcommit, pools[0].reserve), (1250, Reserve::Thousandths(25)));
        assert_eq!((pools[0].capacity, pools[0].enforce), (Capacity::Filesystem, Some(Enforce::Loop)));
        assert!(pools[0].copy && !pools[0].copy_published);
        assert_eq!((pools[1].overcommit, pools[1].reserve), (3000, Reserve::Bytes(1 << 30)));
        assert_eq!((pools[0].defragment, pools[1].defragment), (None, NonZeroU64::new(16384)));
    }

    #[test]
    fn rejects_invalid_pool_configurations() {
        for (json, why) in [
            ("", "not a JSON list of pools"),
            ("[]", "no pool"),
            (r#"[{"name":"a"}]"#, "path"),
            (r#"[{"name":"a","path":"a"}]"#, "absolute"),
            (r#"[{"name":"a","path":"/"}]"#, "root of the filesystem"),
            (r#"[{"name":"a","path":"/./"}]"#, "root of the filesystem"),
            (r#"[{"name":"","path":"/a"}]"#, "1 to 63"),
            (r#"[{"name":"a\nb","path":"/a"}]"#, r"a\nb"),
            (r#"[{"name":"-a","path":"/a"}]"#, "both ends"),
            (r#"[{"name":"A","path":"/a"}]"#, "small letters"),
            (r#"[{"name":"a","path":"/a\nlevel=INFO"}]"#, r"/a\nlevel=INFO"),
            (r#"[{"name":"a","path":"/a","snapshotPath":"/s\u0007"}]"#, "control characters"),
            (r#"[{"name":"a","path":"/a","enforse":"loop"}]"#, "enforse"),
            (r#"[{"name":"a","path":"/a","enforce":"disk"}]"#, "disk"),
            (r#"[{"name":"a","path":"/a","snapshotProvider":"lvm"}]"#, "lvm"),
            (r#"[{"name":"a","path":"/a","overcommit":0}]"#, "overcommit"),
            (r#"[{"name":"a","path":"/a","overcommit":-1}]"#, "overcommit"),
            (r#"[{"name":"a","path":"/a","overcommit":1e9}]"#, "overcommit"),
            (r#"[{"name":"a","path":"/a","reserve":"101%"}]"#, "reserve"),
            (r#"[{"name":"a","path":"/a","reserve":"much"}]"#, "reserve"),
            (r#"[{"name":"a","path":"/a","copyPublished":true}]"#, "copyPublished"),
            (r#"[{"name":"a","path":"/a","defragment":0}]"#, "nonzero"),
            (r#"[{"name":"a","path":"/a","defragment":true}]"#, "boolean"),
            (r#"[{"name":"a","path":"/a","defragment":9,"shared":true}]"#, "pools of one node"),
            (r#"[{"name":"a","path":"/a"},{"name":"a","path":"/b"}]"#, "two pools"),
            (r#"[{"name":"a","path":"/a"},{"name":"b","path":"/a"}]"#, "two pools"),
            (r#"[{"name":"a","path":"/a"},{"name":"b","path":"/a/"}]"#, "two pools"),
            (r#"[{"name":"a","path":"/a","snapshotPath":"/a"}]"#, "would delete volumes"),
            (r#"[{"name":"a","path":"/a/b","snapshotPath":"/a"}]"#, "would delete volumes"),
            (r#"[{"name":"a","path":"/a","snapshotPath":"/a/b/c"}]"#, "a volume is or may be"),
            (r#"[{"name":"a","path":"/a","snapshotPath":"/a/pvc-1"}]"#, "a volume is or may be"),
            (r#"[{"name":"a","path":"/a","snapshotPath":"/a/.hpp-csi"}]"#, "a volume is or may be"),
            (r#"[{"name":"a","path":"/a","snapshotPath":"/a/../a"}]"#, ".."),
            (r#"[{"name":"a","path":"/a"},{"name":"b","path":"/a/b"}]"#, "contains the other"),
            (r#"[{"name":"a","path":"/a/b/c"},{"name":"b","path":"/a"}]"#, "contains the other"),
            (
                r#"[{"name":"a","path":"/a"},{"name":"b","path":"/b","snapshotPath":"/a/snapshots"}]"#,
                "contains the other",
            ),
            (
                r#"[{"name":"a","path":"/a"},{"name":"b","path":"/b","snapshotPath":"/a/s"}]"#,
                "contains the other",
            ),
            (
                r#"[{"name":"a","path":"/a","snapshotPath":"/s"},{"name":"b","path":"/s/b"}]"#,
                "contains the other",
            ),
        ] {
            let error = pools(json).unwrap_err();
            assert!(error.to_string().contains(why), "{json}: {error}");
        }
    }

    #[test]
    fn endpoints_are_sockets() {
        for endpoint in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(socket(endpoint).unwrap(), Path::new("/csi/csi.sock"));
        }
        for endpoint in ["", "tcp://127.0.0.1:1", "csi.sock", "unix://csi.sock", "/"] {
            assert!(socket(endpoint).is_err(), "{endpoint}");
        }
    }

    #[test]
    fn a_reserve_is_never_more_than_there_is() {
        assert_eq!(Reserve::Bytes(10).of(3), 3);
        assert_eq!(Reserve::Thousandths(1000).of(u64::MAX), u64::MAX);
        assert_eq!(share(u64::MAX, 1_000_000), u64::MAX);
    }
}
