//! Delegates to the IPAM plugin as the specification requires: the same variables, the same complete configuration. The
//! program's own IPAM plugins are called in the same process.

mod host_local;
mod process;
mod range;
mod static_;
mod store;

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Error, Kind};
use crate::protocol::{Attachment, Call, Object, Outcome, Plugin, Verb};

pub(crate) use host_local::HostLocal;
pub(crate) use range::first_host;
pub(crate) use static_::Fixed;

/// Plugins that would take the configuration for their own, and ask for addresses in turn without end.
const NOT_IPAM: [&str; 5] = ["bandwidth", "bridge", "tuning", "loopback", "tap"];

/// The `ipam` of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ipam {
    /// `type`: the file name of the plugin.
    plugin: String,
}

impl Ipam {
    /// Reads `ipam`; none when it names no plugin.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] when `type` is no file name.
    pub(crate) fn parse(keys: &Object) -> Result<Option<Self>, Error> {
        let Some(plugin) = keys.object("ipam")?.text("type")?.filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        if plugin.contains(['/', '\0']) || plugin == "." || plugin == ".." {
            let plugin = plugin.escape_debug();
            return Err(Error::config(format!("\"type\" of \"ipam\": \"{plugin}\" is no file name")));
        }
        if NOT_IPAM.contains(&plugin.strip_prefix("cnv-").unwrap_or(plugin)) {
            return Err(Error::config(format!("\"type\" of \"ipam\": {plugin} gives no addresses")));
        }
        Ok(Some(Self { plugin: plugin.to_owned() }))
    }

    /// Whether the plugin is there at all, to be asked before anything is done.
    ///
    /// # Errors
    /// [`Kind::Config`] when it is not.
    pub(crate) fn locate(&self, call: &Call) -> Result<(), Error> {
        process::locate(&self.plugin, call).map(drop)
    }

    /// Whether the plugin must find the pod's interface when it is asked for addresses, as the specification promises it:
    /// `dhcp` asks through it. Ours do not care, and are asked before there is anything to undo.
    pub(crate) fn wants_the_link(&self, call: &Call) -> bool {
        self.ours(call).is_none()
    }

    /// ADD: takes addresses. The outcome has at least one. A process that failed is asked to clean up, as the
    /// specification wants it.
    ///
    /// # Errors
    /// The plugin's error, with its code.
    pub(crate) fn lease(&self, call: &Call) -> Result<Outcome, Error> {
        if let Some(plugin) = self.ours(call) {
            return plugin.add(call).and_then(|outcome| self.with_addresses(outcome));
        }
        let given = process::run(&self.plugin, Verb::Add, call).and_then(|answer| {
            let answer = Object::parse(&answer, "the IPAM plugin's answer")?;
            self.with_addresses(Outcome::parse(&answer, call.version)?)
        });
        given.or_else(|error| {
            let errors = [Some(error), self.release(call).err()].into_iter().flatten().collect();
            Error::all(errors).map(|()| Outcome::default())
        })
    }

    fn with_addresses(&self, outcome: Outcome) -> Result<Outcome, Error> {
        if !outcome.ips.is_empty() {
            return Ok(outcome);
        }
        Err(Error::new(Kind::Internal, format!("the IPAM plugin {} gave no address", self.plugin)))
    }

    /// DEL: gives the addresses back. Also what undoes [`Ipam::lease`].
    ///
    /// # Errors
    /// The plugin's error, with its code.
    pub(crate) fn release(&self, call: &Call) -> Result<(), Error> {
        match self.ours(call) {
            Some(plugin) => plugin.delete(call),
            None => process::run(&self.plugin, Verb::Delete, call).map(drop),
        }
    }

    /// CHECK.
    ///
    /// # Errors
    /// The plugin's error, with its code.
    pub(crate) fn check(&self, call: &Call) -> Result<(), Error> {
        match self.ours(call) {
            Some(plugin) => plugin.check(call),
            None => process::run(&self.plugin, Verb::Check, call).map(drop),
        }
    }

    /// GC.
    ///
    /// # Errors
    /// The plugin's error, with its code.
    pub(crate) fn collect(&self, call: &Call) -> Result<(), Error> {
        match self.ours(call) {
            Some(plugin) => plugin.collect(call),
            None => process::run(&self.plugin, Verb::Collect, call).map(drop),
        }
    }

    /// STATUS.
    ///
    /// # Errors
    /// The plugin's error, with its code.
    pub(crate) fn status(&self, call: &Call) -> Result<(), Error> {
        match self.ours(call) {
            Some(plugin) => plugin.status(call),
            None => process::run(&self.plugin, Verb::Status, call).map(drop),
        }
    }

    /// The result of an ADD as far as it can be predicted: addresses of the right networks, with their gateways. Empty for
    /// plugins of other programs.
    ///
    /// # Errors
    /// As of an ADD.
    pub(crate) fn predicted(&self, call: &Call) -> Result<Outcome, Error> {
        let ips = match self.plugin.strip_prefix("cnv-").unwrap_or(&self.plugin) {
            "host-local" if self.ours(call).is_some() => host_local::predicted(call)?,
            "static" if self.ours(call).is_some() => static_::addresses(call)?,
            _ => Vec::new(),
        };
        Ok(Outcome { ips, ..Outcome::default() })
    }

    /// The addresses reserved on this node for attachments of the network, by ours or the reference's `host-local`: their
    /// files have one format. Empty for every other plugin.
    ///
    /// # Errors
    /// [`Kind::Io`] when the files cannot be read.
    pub(crate) fn reservations(&self, call: &Call) -> Result<Vec<(IpAddr, Attachment)>, Error> {
        match self.plugin.strip_prefix("cnv-").unwrap_or(&self.plugin) {
            "host-local" => host_local::reservations(call),
            _ => Ok(Vec::new()),
        }
    }

    /// Whether another network's files note the address too, as far as they are in the same folder.
    ///
    /// # Errors
    /// [`Kind::Io`] when the folder cannot be read.
    pub(crate) fn is_reserved_elsewhere(&self, address: IpAddr, call: &Call) -> Result<bool, Error> {
        match self.plugin.strip_prefix("cnv-").unwrap_or(&self.plugin) {
            "host-local" => host_local::is_reserved_elsewhere(address, call),
            _ => Ok(false),
        }
    }

    /// The plugin when it is one of ours and what CNI_PATH has under its name is this very program.
    fn ours(&self, call: &Call) -> Option<Box<dyn Plugin>> {
        let plugin: Box<dyn Plugin> = match self.plugin.strip_prefix("cnv-").unwrap_or(&self.plugin) {
            "host-local" => Box::new(HostLocal),
            "static" => Box::new(Fixed),
            _ => return None,
        };
        let found = process::locate(&self.plugin, call).ok()?;
        let identity = |path: &Path| std::fs::metadata(path).ok().map(|facts| (facts.dev(), facts.ino()));
        (identity(&found)? == identity(Path::new("/proc/self/exe"))?).then_some(plugin)
    }
}

/// Gives a call's addresses back; nothing when its configuration names no plugin.
///
/// # Errors
/// As [`Ipam::parse`] and [`Ipam::release`].
pub(crate) fn release(call: &Call) -> Result<(), Error> {
    Ipam::parse(&call.config)?.map_or(Ok(()), |ipam| ipam.release(call))
}

/// Gives back the addresses that no valid attachment of a GC has; nothing when its configuration names no plugin.
///
/// # Errors
/// As [`Ipam::parse`] and [`Ipam::collect`].
pub(crate) fn collect(call: &Call) -> Result<(), Error> {
    Ipam::parse(&call.config)?.map_or(Ok(()), |ipam| ipam.collect(call))
}
