//! Addresses are given by another plugin, called as the specification says: the same variables, the same configuration,
//! the whole of it. Where that plugin is one of ours, it is called right here instead of as a process.

mod process;

use crate::error::Error;
use crate::protocol::{Call, Object, Outcome, Verb};

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
        Ok(Some(Self { plugin: plugin.to_owned() }))
    }

    /// Whether the plugin is there at all, to be asked before anything is done.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] when it is not.
    pub(crate) fn locate(&self, call: &Call) -> Result<(), Error> {
        process::locate(&self.plugin, call).map(drop)
    }

    /// ADD: takes addresses. The outcome has at least one.
    ///
    /// # Errors
    /// What the plugin says, with its code.
    #[expect(dead_code, reason = "addresses come next")]
    pub(crate) fn lease(&self, call: &Call) -> Result<Outcome, Error> {
        let answer = process::run(&self.plugin, Verb::Add, call)?;
        let outcome = Outcome::parse(&Object::parse(&answer, "the IPAM plugin's answer")?, call.version)?;
        if outcome.ips.is_empty() {
            let message = format!("the IPAM plugin {} gave no address", self.plugin);
            return Err(Error::new(crate::error::Kind::Internal, message));
        }
        Ok(outcome)
    }

    /// DEL: gives the addresses back. Also what undoes [`Ipam::lease`].
    ///
    /// # Errors
    /// What the plugin says, with its code.
    pub(crate) fn release(&self, call: &Call) -> Result<(), Error> {
        process::run(&self.plugin, Verb::Delete, call).map(drop)
    }

    /// CHECK.
    ///
    /// # Errors
    /// What the plugin says, with its code.
    pub(crate) fn check(&self, call: &Call) -> Result<(), Error> {
        process::run(&self.plugin, Verb::Check, call).map(drop)
    }

    /// GC.
    ///
    /// # Errors
    /// What the plugin says, with its code.
    pub(crate) fn collect(&self, call: &Call) -> Result<(), Error> {
        process::run(&self.plugin, Verb::Collect, call).map(drop)
    }

    /// STATUS.
    ///
    /// # Errors
    /// What the plugin says, with its code.
    pub(crate) fn status(&self, call: &Call) -> Result<(), Error> {
        process::run(&self.plugin, Verb::Status, call).map(drop)
    }
}
