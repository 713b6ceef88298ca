//! The keys of a `tap` configuration.

use std::path::Path;

use crate::error::{Error, Kind};
use crate::ipam::Ipam;
use crate::protocol::{Call, Dns, Mac, Object, is_interface_name};

/// Present where SELinux is on.
const SELINUX: &str = "/sys/fs/selinux/enforce";

/// The requested device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// `multiQueue`.
    pub(crate) many_queues: bool,
    /// In bytes; the kernel's choice if none.
    pub(crate) mtu: Option<u32>,
    pub(crate) mac: Option<Mac>,
    /// The user allowed to open it, other than root.
    pub(crate) owner: Option<u32>,
    /// The group allowed to open it.
    pub(crate) group: Option<u32>,
    /// The bridge it becomes a port of.
    pub(crate) bridge: Option<String>,
    /// The IPAM plugin, if any.
    pub(crate) ipam: Option<Ipam>,
    pub(crate) dns: Dns,
}

impl Config {
    /// Reads and checks all keys.
    ///
    /// # Errors
    /// [`Kind::Config`], naming the key. [`Kind::Unsupported`] for `selinuxContext` where SELinux is on.
    pub(crate) fn parse(call: &Call) -> Result<Self, Error> {
        let keys = &call.config;
        let bridge = keys.text("bridge")?.filter(|name| !name.is_empty()).map(str::to_owned);
        if let Some(odd) = bridge.as_deref().filter(|name| !is_interface_name(name)) {
            return Err(Error::config(format!(
                "\"bridge\": \"{}\" is not the name of a link",
                odd.escape_debug()
            )));
        }
        refuse_a_context_that_counts(keys)?;
        Ok(Self {
            many_queues: keys.boolean("multiQueue")?,
            mtu: mtu(keys)?,
            mac: mac(call)?,
            owner: number(keys, "owner")?,
            group: number(keys, "group")?,
            bridge,
            ipam: Ipam::parse(keys)?,
            dns: Dns::parse(keys)?,
        })
    }
}

/// The label of a tap device is that of the process that makes it, and ours cannot change. Without SELinux there are no
/// labels and the key has no effect; with it the guest could not open its device later, so it is rejected now.
fn refuse_a_context_that_counts(keys: &Object) -> Result<(), Error> {
    let asked = keys.text("selinuxContext")?.is_some_and(|context| !context.is_empty());
    if asked && Path::new(SELINUX).exists() {
        let message =
            "\"selinuxContext\" is not supported on a node with SELinux: the reference plugin tap does it";
        return Err(Error::new(Kind::Unsupported, message));
    }
    Ok(())
}

fn mtu(keys: &Object) -> Result<Option<u32>, Error> {
    let refused = |mtu| Error::config(format!("\"mtu\" must be between 68 and 65521, not {mtu}"));
    match keys.integer("mtu")? {
        None | Some(0) => Ok(None),
        // The kernel's own bounds of a tap device.
        Some(mtu) => u32::try_from(mtu)
            .ok()
            .filter(|mtu| (68..=65_521).contains(mtu))
            .map(Some)
            .ok_or_else(|| refused(mtu)),
    }
}

fn number(keys: &Object, key: &str) -> Result<Option<u32>, Error> {
    let refused =
        |number| Error::config(format!("\"{key}\" must be a user's or group's number, not {number}"));
    keys.integer(key)?.map(|number| u32::try_from(number).map_err(|_| refused(number))).transpose()
}

/// `runtimeConfig.mac`, else `MAC` of CNI_ARGS, else `mac`.
fn mac(call: &Call) -> Result<Option<Mac>, Error> {
    call.arguments.only(&["MAC"])?;
    let candidates = [
        call.config.object("runtimeConfig")?.text("mac")?,
        call.arguments.get("MAC"),
        call.config.text("mac")?,
    ];
    Ok(candidates.into_iter().flatten().find(|text| !text.is_empty()).map(link::interface_mac).transpose()?)
}
