//! The node's list of sysctls that a configuration may change: regular expressions, one per line, in the reference's file.
//! A node without the file allows all of the network's.

use std::io::ErrorKind;
use std::path::Path;

use regex_lite::Regex;

use crate::error::{Error, Kind};

const FILE: &str = "/etc/cni/tuning/allowlist.conf";

/// The expressions.
pub(super) struct AllowList(Vec<Regex>);

impl AllowList {
    /// Reads the node's; none if there is none.
    ///
    /// # Errors
    /// [`Kind::Io`] when it cannot be read, [`Kind::Config`] when a line is no regular expression: a list that is not
    /// understood allows nothing.
    pub(super) fn read() -> Result<Option<Self>, Error> {
        match std::fs::read_to_string(Path::new(FILE)) {
            Ok(text) => Self::parse(&text).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("{FILE} cannot be read"), error)),
        }
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let compiled = lines.map(|line| {
            let message = || format!("{FILE}: \"{}\" is not a regular expression", line.escape_debug());
            Regex::new(line).map_err(|error| Error::with(Kind::Config, message(), error))
        });
        compiled.collect::<Result<_, _>>().map(Self)
    }

    /// Whether one of the expressions is found anywhere in `key`, which is as the configuration wrote it.
    ///
    /// # Errors
    /// [`Kind::Config`] when none is.
    pub(super) fn check(&self, key: &str) -> Result<(), Error> {
        if self.0.iter().any(|expression| expression.is_match(key)) {
            return Ok(());
        }
        let key = key.escape_debug();
        Err(Error::config(format!("{FILE} does not allow the sysctl \"{key}\"")))
    }
}

#[cfg(test)]
mod tests {
    use super::AllowList;

    #[test]
    fn the_documented_list_allows_its_entries() {
        let list = "^net.ipv4.conf.IFNAME.[a-z_]*$\n\n  ^net/ipv6/.*_ra$ \n";
        let list = AllowList::parse(list).unwrap();
        list.check("net.ipv4.conf.IFNAME.arp_filter").unwrap();
        list.check("net/ipv6/conf/all/accept_ra").unwrap();
        for key in ["net.ipv4.ip_forward", "net.ipv4.conf.IFNAME.a.b", "net.ipv4.conf.eth0.arp_filter", ""] {
            assert!(list.check(key).is_err(), "{key}");
        }
        assert!(AllowList::parse("").unwrap().check("net.x").is_err(), "an empty list allows nothing");
        assert!(AllowList::parse("(").is_err());
    }
}
