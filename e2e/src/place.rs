//! Where one cluster lives: a number that no other cluster on this machine has, and everything that follows from it.
//!
//! Addresses are out of 198.18.0.0/15, which RFC 2544 keeps for tests, and 10.244.0.0/15; each cluster has its own, so
//! that several stand side by side. Only routes over the cluster's own link are made on the host.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::process::Pid;

/// How many clusters can stand at once.
const PLACES: u8 = 16;

/// A file in the state folder with the process id of the supervisor, when a person has the cluster.
const KEPT: &str = "kept.pid";

/// Directory of files that outlive a build: `FERROVIRT_CACHE`, or `~/.cache/ferrovirt`.
///
/// # Errors
/// Without either variable.
pub fn cache() -> Result<PathBuf> {
    if let Some(cache) = std::env::var_os("FERROVIRT_CACHE") {
        return Ok(cache.into());
    }
    let home = std::env::var_os("HOME").context("HOME is not set")?;
    Ok(Path::new(&home).join(".cache/ferrovirt"))
}

/// One cluster's number and what follows from it.
#[derive(Clone, Debug)]
pub struct Place {
    number: u8,
    /// 1 for the node that every cluster has, 2 for the one that a test may add.
    node: u8,
    folder: PathBuf,
}

/// A place that is ours while this lives.
#[derive(Debug)]
pub struct Taken {
    /// The place.
    pub place: Place,
    _lock: File,
}

impl Place {
    /// Acquires a free place.
    ///
    /// # Errors
    /// When all are taken, or the folder of the places cannot be used.
    pub fn acquire() -> Result<Taken> {
        let parent = Self::parent()?;
        fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
        for place in Self::all()? {
            if let Some(taken) = place.try_acquire()? {
                return Ok(taken);
            }
        }
        bail!(
            "{PLACES} clusters are running on this machine; `make cluster-down` stops those started by hand"
        )
    }

    /// Acquires this place, unless it is in use.
    pub(crate) fn try_acquire(self) -> Result<Option<Taken>> {
        let lock = File::create(self.folder.with_added_extension("lock"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Taken { place: self, _lock: lock })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// The place with this number, in use or not.
    ///
    /// # Errors
    /// Without a cache folder.
    pub fn of(number: u8) -> Result<Self> {
        Ok(Self { number, node: 1, folder: Self::parent()?.join(number.to_string()) })
    }

    /// The same cluster's second node: a state folder, addresses and cgroups of its own.
    pub fn second(&self) -> Self {
        Self { number: self.number, node: 2, folder: self.folder.join("node2") }
    }

    /// Whether this is a cluster's second node, which has no control plane.
    pub fn is_second(&self) -> bool {
        self.node == 2
    }

    /// The node's name in the cluster.
    pub fn node_name(&self) -> String {
        format!("node{}", self.node)
    }

    /// The folder of the cluster's keys and certificates, the same for both nodes.
    pub(crate) fn pki(&self) -> PathBuf {
        let cluster =
            if self.is_second() { self.folder.parent().unwrap_or(&self.folder) } else { &self.folder };
        cluster.join("pki")
    }

    /// A kubeconfig file of this name, in the folder of the cluster.
    pub(crate) fn config(&self, name: &str) -> PathBuf {
        self.pki().with_file_name(format!("{name}.kubeconfig"))
    }

    /// All places, taken or not.
    ///
    /// # Errors
    /// Without a cache folder.
    pub fn all() -> Result<Vec<Self>> {
        (0..PLACES).map(Self::of).collect()
    }

    /// The places in use.
    ///
    /// # Errors
    /// When the folder of the places cannot be used.
    pub fn taken() -> Result<Vec<Self>> {
        let mut taken = Vec::new();
        for place in Self::all()? {
            let lock = match File::open(place.folder.with_added_extension("lock")) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => taken.push(place),
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
        }
        Ok(taken)
    }

    /// Writes down that this process keeps a cluster here for a person.
    pub(crate) fn set_kept(&self) -> Result<()> {
        Ok(fs::write(self.path(KEPT), std::process::id().to_string())?)
    }

    /// The supervisor of a cluster that a person has here.
    pub fn kept(&self) -> Option<Pid> {
        let pid: i32 = fs::read_to_string(self.path(KEPT)).ok()?.parse().ok()?;
        // The file may be older than the machine's last boot.
        let name = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        if name.ends_with("\0keep\0") { Pid::from_raw(pid) } else { None }
    }

    /// The file in which a supervisor writes why the cluster ended by itself: next to the state folder, so one for each
    /// place.
    pub(crate) fn report(&self) -> PathBuf {
        self.folder.with_added_extension("failed")
    }

    fn parent() -> Result<PathBuf> {
        Ok(cache()?.join("cluster"))
    }

    /// The number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The state folder: everything the cluster writes, removed with it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file or folder in the state folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.config("admin")
    }

    /// The containerd socket, reachable from the host.
    pub fn containerd(&self) -> PathBuf {
        self.path("containerd.sock")
    }

    /// Logs of the node's programs.
    pub fn logs(&self) -> PathBuf {
        self.path("log")
    }

    /// The host's end of the link to the node.
    pub fn host_link(&self) -> String {
        format!("fvnode{}", self.number)
    }

    /// The host's address on the link: where pods reach what a test serves.
    pub fn host_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 1)
    }

    /// The node's address.
    pub fn node_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, if self.is_second() { 19 } else { 18 }, self.number, 2)
    }

    /// The node's gateway: the host's end of the first node's link, the first node's end of the second's.
    pub(crate) fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, if self.is_second() { 19 } else { 18 }, self.number, 1)
    }

    /// The network of the link between the two nodes, routed from the host.
    pub(crate) fn nodes(&self) -> String {
        format!("198.19.{}.0/24", self.number)
    }

    /// The network of the node's pods, routed from the host.
    pub fn pods(&self) -> String {
        format!("10.244.{}.0/24", if self.is_second() { self.number + 128 } else { self.number })
    }

    /// The Services' network, routed from the host.
    pub fn services(&self) -> String {
        format!("10.245.{}.0/24", self.number)
    }

    /// The address of the Service `kubernetes`: the first of the Services' network.
    pub fn api_service(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 245, self.number, 1)
    }

    /// The cgroup under which all pods are, in every hierarchy.
    pub fn cgroup(&self) -> String {
        if self.is_second() {
            return format!("ferrovirt-node{}-2", self.number);
        }
        format!("ferrovirt-node{}", self.number)
    }
}
