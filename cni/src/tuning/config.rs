//! The keys of a `tuning` configuration. Those of `args.cni` win over the configuration's own; an Ethernet address has
//! two more sources.

use std::path::PathBuf;

use crate::error::Error;
use crate::protocol::{Call, Json, Mac, Object};
use crate::tuning::allow_list::AllowList;

/// The default of `dataDir`, which holds the values before an ADD.
const DEFAULT_FOLDER: &str = "/run/cni/tuning";

/// The requested attributes of an interface; `None` leaves one as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// `sysctl`, in the order they were written.
    pub(crate) sysctls: Vec<Sysctl>,
    pub(crate) mac: Option<Mac>,
    /// `promisc`; false leaves it as it is too.
    pub(crate) promiscuous: bool,
    /// In bytes.
    pub(crate) mtu: Option<u32>,
    pub(crate) all_multicast: Option<bool>,
    /// `txQLen`, in frames.
    pub(crate) transmit_queue: Option<u32>,
    /// `dataDir`: where the values before are kept.
    pub(crate) folder: PathBuf,
}

/// One sysctl of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sysctl {
    /// As it was written.
    pub(crate) key: String,
    /// Its file below /proc/sys/net.
    pub(crate) file: PathBuf,
    pub(crate) value: String,
}

impl Config {
    /// Reads and checks all keys, and asks the node's list of what is allowed.
    ///
    /// # Errors
    /// [`crate::Kind::Config`], naming the key.
    pub(crate) fn parse(call: &Call) -> Result<Self, Error> {
        let keys = &call.config;
        let args = keys.object("args")?.object("cni")?;
        // The later one of two sources counts, if it has the key at all.
        let source = |key: &str| if args.get(key).is_some() { args } else { keys };
        let config = Self {
            sysctls: sysctls(&[keys, args], &call.attachment.interface)?,
            mac: mac(call, args)?,
            promiscuous: source("promisc").boolean("promisc")?,
            mtu: number(source("mtu"), "mtu")?.filter(|mtu| *mtu > 0),
            all_multicast: match source("allmulti").get("allmulti") {
                None => None,
                Some(_) => Some(source("allmulti").boolean("allmulti")?),
            },
            transmit_queue: number(source("txQLen"), "txQLen")?,
            folder: folder(keys)?,
        };
        if !config.sysctls.is_empty()
            && let Some(allowed) = AllowList::read()?
        {
            config.sysctls.iter().try_for_each(|sysctl| allowed.check(&sysctl.key))?;
        }
        Ok(config)
    }

    /// Whether anything but sysctls changes.
    pub(crate) fn changes_the_link(&self) -> bool {
        self.mac.is_some()
            || self.promiscuous
            || self.mtu.is_some()
            || self.all_multicast.is_some()
            || self.transmit_queue.is_some()
    }
}

/// `dataDir`.
pub(super) fn folder(keys: &Object) -> Result<PathBuf, Error> {
    let folder = keys.text("dataDir")?.filter(|folder| !folder.is_empty()).unwrap_or(DEFAULT_FOLDER);
    let path = PathBuf::from(folder);
    if !path.is_absolute() || folder.contains('\0') {
        let folder = folder.escape_debug();
        return Err(Error::config(format!("\"dataDir\" must be an absolute path, not \"{folder}\"")));
    }
    Ok(path)
}

/// `MAC` of CNI_ARGS wins over `mac`, `runtimeConfig.mac` over that, `args.cni.mac` over all: the reference's order.
fn mac(call: &Call, args: &Object) -> Result<Option<Mac>, Error> {
    call.arguments.only(&["MAC"])?;
    let candidates = [
        args.text("mac")?,
        call.config.object("runtimeConfig")?.text("mac")?,
        call.arguments.get("MAC"),
        call.config.text("mac")?,
    ];
    Ok(candidates.into_iter().flatten().find(|text| !text.is_empty()).map(link::interface_mac).transpose()?)
}

fn number(keys: &Object, key: &str) -> Result<Option<u32>, Error> {
    let refused =
        |number| Error::config(format!("\"{key}\" must be between 0 and {}, not {number}", i32::MAX));
    keys.integer(key)?
        .map(|number| {
            i32::try_from(number)
                .ok()
                .and_then(|small| u32::try_from(small).ok())
                .ok_or_else(|| refused(number))
        })
        .transpose()
}

/// `sysctl` of both sources. A key that is written twice in one is refused, as by the reference: which one counts could
/// only be guessed.
fn sysctls(sources: &[&Object], interface: &str) -> Result<Vec<Sysctl>, Error> {
    let mut all: Vec<Sysctl> = Vec::new();
    for source in sources {
        let mut seen = std::collections::BTreeSet::new();
        for (key, value) in source.object("sysctl")?.members() {
            let Json::Text(value) = value else {
                return Err(Error::config(format!(
                    "the value of sysctl \"{}\" must be a string",
                    key.escape_debug()
                )));
            };
            if !seen.insert(key) {
                return Err(Error::config(format!("the sysctl \"{}\" is given twice", key.escape_debug())));
            }
            let sysctl = Sysctl { key: key.to_owned(), file: file(key, interface)?, value: value.clone() };
            match all.iter_mut().find(|other| other.key == key) {
                Some(other) => *other = sysctl,
                None => all.push(sysctl),
            }
        }
    }
    Ok(all)
}

/// The file of a key: dots become slashes, and the first `IFNAME` becomes the interface, which keeps its own dots.
fn file(key: &str, interface: &str) -> Result<PathBuf, Error> {
    let refused = || {
        let key = key.escape_debug();
        Error::config(format!(
            "\"{key}\" is not a sysctl of the network: only those that begin with net can be set"
        ))
    };
    // Two dots would have become slashes; what is left of them is empty.
    let slashed = key.replace('.', "/").replacen("IFNAME", interface, 1);
    let parts: Vec<&str> = slashed.split('/').filter(|part| !part.is_empty()).collect();
    let odd = |part: &&str| part.contains('\0') || *part == "." || *part == "..";
    if parts.first() != Some(&"net") || parts.len() < 2 || parts.iter().any(odd) {
        return Err(refused());
    }
    Ok(parts.into_iter().fold(PathBuf::from("/proc/sys"), |path, part| path.join(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_their_files() {
        for (key, wanted) in [
            ("net.ipv4.ip_forward", "net/ipv4/ip_forward"),
            ("net/ipv4/conf/IFNAME/arp_filter", "net/ipv4/conf/eth0.5/arp_filter"),
            ("net.ipv4.conf.IFNAME.IFNAME", "net/ipv4/conf/eth0.5/IFNAME"),
            ("net.ipv4..x", "net/ipv4/x"),
        ] {
            assert_eq!(file(key, "eth0.5").unwrap(), PathBuf::from("/proc/sys").join(wanted), "{key}");
        }
        for key in ["", "net", "net.", "kernel.panic", "network.x", "net.\0", "IFNAME.x", "IFNAME"] {
            assert!(file(key, "eth0").is_err(), "{key}");
        }
        // Dots of a key cannot climb; an interface is never called so.
        assert_eq!(file("net/../../x/y", "eth0").unwrap(), PathBuf::from("/proc/sys/net/x/y"));
        assert!(file("IFNAME", "net").is_err());
    }
}
