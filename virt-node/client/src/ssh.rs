//! `ssh` and `scp`: the local ssh and scp, which reach the guest by a ProxyCommand, a `port-forward --stdio` of ours.
//!
//! Not here: keys, known hosts, terminals: those are ssh's.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;

/// A user and the guest to log in to: `[USER@]GUEST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login<T> {
    /// The part before the `@`.
    pub user: Option<String>,
    /// The guest.
    pub guest: T,
}

impl<T: FromStr<Err = String>> FromStr for Login<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, guest) = match text.rsplit_once('@') {
            Some(("", _)) => return Err("the user before the @ is missing".to_owned()),
            Some((user, guest)) => (Some(user.to_owned()), guest),
            None => (None, text),
        };
        Ok(Self { user, guest: guest.parse()? })
    }
}

/// virtctl's flags.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// User to log in as
    #[arg(short = 'l', long, value_name = "USER")]
    username: Option<String>,
    /// File with the private key
    #[arg(short, long, value_name = "FILE")]
    identity_file: Option<PathBuf>,
    /// File with host keys of guests, instead of ssh's own
    #[arg(long, value_name = "FILE")]
    known_hosts: Option<PathBuf>,
    /// Port of the guest
    #[arg(short, long, default_value_t = 22, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Argument for the local ssh or scp; may be repeated
    #[arg(short = 't', long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    local_ssh_opts: Vec<OsString>,
    /// No effect: the local ssh is always used
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    local_ssh: Option<bool>,
}

/// How ssh reaches a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The command that connects its standard input and output to the guest; the port is added.
    pub proxy: Vec<OsString>,
    /// The name under which ssh remembers the guest's key.
    pub host: String,
}

impl Way {
    /// The command for `KIND/NAME` of a namespace: this program's own `port-forward --stdio`.
    ///
    /// # Errors
    /// The program's path is not known.
    pub fn new(words: Vec<OsString>, kind: &str, name: &str, namespace: &str) -> io::Result<Self> {
        let mut proxy = vec![std::env::current_exe()?.into_os_string()];
        proxy.extend(words);
        proxy.extend(["port-forward".into(), "--stdio=true".into(), format!("{kind}/{name}").into()]);
        Ok(Self { proxy, host: format!("{kind}.{name}.{namespace}") })
    }

    /// Arguments that ssh and scp share.
    fn arguments(&self, options: Options) -> Vec<OsString> {
        let Options { username: _, identity_file, known_hosts, port, local_ssh_opts, local_ssh: _ } = options;
        let mut proxy = OsString::from("ProxyCommand=");
        for word in &self.proxy {
            proxy.push(quoted(word));
            proxy.push(" ");
        }
        proxy.push(port.to_string());
        let mut all: Vec<OsString> = vec!["-o".into(), proxy];
        if let Some(file) = identity_file {
            all.extend(["-i".into(), file.into()]);
        }
        if let Some(file) = known_hosts {
            let mut option = OsString::from("UserKnownHostsFile=");
            option.push(file);
            all.extend(["-o".into(), option]);
        }
        all.extend(local_ssh_opts);
        all
    }

    fn ssh(&self, user: Option<String>, options: Options, command: Option<String>) -> Vec<OsString> {
        let user = options.username.clone().or(user);
        let mut all = self.arguments(options);
        if let Some(user) = user {
            all.extend(["-l".into(), user.into()]);
        }
        all.extend(["--".into(), self.host.clone().into()]);
        all.extend(command.map(OsString::from));
        all
    }

    fn scp<T>(&self, user: Option<String>, route: Route<T>, flags: Flags, options: Options) -> Vec<OsString> {
        let user = options.username.clone().or(user);
        let mut all = self.arguments(options);
        let Flags { recursive, preserve } = flags;
        all.extend([("-r", recursive), ("-p", preserve)].iter().filter(|one| one.1).map(|one| one.0.into()));
        all.push("--".into());
        for place in [route.from, route.to] {
            all.push(match place {
                Place::Here(path) => path.into(),
                Place::Guest(_, path) => {
                    let user = user.as_ref().map_or(String::new(), |user| format!("{user}@"));
                    format!("{user}{}:{path}", self.host).into()
                }
            });
        }
        all
    }
}

/// Becomes ssh; returns only when that fails.
///
/// # Errors
/// There is no ssh on this machine.
pub fn ssh(
    way: &Way,
    user: Option<String>,
    options: Options,
    command: Option<String>,
) -> io::Result<Infallible> {
    Err(Command::new("ssh").args(way.ssh(user, options, command)).exec())
}

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place<T> {
    /// On this machine.
    Here(String),
    /// In a guest.
    Guest(Login<T>, String),
}

impl<T: FromStr<Err = String>> FromStr for Place<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            // As in scp, a text that begins like a path is one.
            Some((login, path)) if !text.starts_with(['/', '.']) => {
                Ok(Self::Guest(login.parse()?, path.to_owned()))
            }
            Some(_) | None => Ok(Self::Here(text.to_owned())),
        }
    }
}

/// Source and destination of a copy.
#[derive(Clone, Debug, clap::Args)]
pub struct Copy {
    /// Path on this machine, or [USER@][KIND/]NAME:PATH in a guest
    from: String,
    /// The same; exactly one of both is in a guest
    to: String,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Flags {
    /// Copy directories with their contents
    #[arg(short, long)]
    recursive: bool,
    /// Keep times and permissions
    #[arg(long)]
    preserve: bool,
}

/// A copy with exactly one place in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<T> {
    from: Place<T>,
    to: Place<T>,
}

impl Copy {
    /// Reads both places.
    ///
    /// # Errors
    /// Not exactly one of them is in a guest, as a text for people.
    pub fn route<T: FromStr<Err = String>>(&self) -> Result<Route<T>, String> {
        let route = Route { from: self.from.parse()?, to: self.to.parse()? };
        match (&route.from, &route.to) {
            (Place::Guest(..), Place::Here(_)) | (Place::Here(_), Place::Guest(..)) => Ok(route),
            _ => Err("exactly one of source and target must be in a guest: write it as NAME:PATH".to_owned()),
        }
    }
}

impl<T> Route<T> {
    /// The guest, with the user to log in as.
    pub fn guest(&self) -> Option<&Login<T>> {
        match (&self.from, &self.to) {
            (Place::Guest(login, _), _) | (_, Place::Guest(login, _)) => Some(login),
            (Place::Here(_), Place::Here(_)) => None,
        }
    }
}

/// Becomes scp; returns only when that fails.
///
/// # Errors
/// There is no scp on this machine.
pub fn scp<T: Clone>(way: &Way, copy: &Copy, route: Route<T>, options: Options) -> io::Result<Infallible> {
    let user = route.guest().and_then(|login| login.user.clone());
    Err(Command::new("scp").args(way.scp(user, route, copy.flags, options)).exec())
}

/// A word as the shell that ssh starts reads it back; ssh itself looks for words after %.
fn quoted(word: &OsStr) -> OsString {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(br"'\''"),
            b'%' => quoted.extend(b"%%"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    OsString::from_vec(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    fn way() -> Way {
        let proxy = ["/v n", "--namespace", "n%", "port-forward", "--stdio=true", "vmi/mine"];
        Way { proxy: proxy.map(OsString::from).to_vec(), host: "vmi.mine.ns".to_owned() }
    }

    fn options() -> Options {
        Options {
            username: None,
            identity_file: None,
            known_hosts: None,
            port: 22,
            local_ssh_opts: Vec::new(),
            local_ssh: None,
        }
    }

    fn all() -> Options {
        Options {
            username: Some("you".to_owned()),
            identity_file: Some("key".into()),
            known_hosts: Some("hosts".into()),
            port: 2222,
            local_ssh_opts: vec!["-v".into()],
            local_ssh: Some(true),
        }
    }

    const PROXY: &str = "ProxyCommand='/v n' '--namespace' 'n%%' 'port-forward' '--stdio=true' 'vmi/mine' ";

    #[test]
    fn ssh_gets_the_command_that_reaches_the_guest() {
        let proxy = format!("{PROXY}22");
        assert_eq!(way().ssh(None, options(), None), ["-o", &proxy, "--", "vmi.mine.ns"]);
        let user = || Some("me".to_owned());
        assert_eq!(way().ssh(user(), options(), None), ["-o", &proxy, "-l", "me", "--", "vmi.mine.ns"]);
        let proxy = format!("{PROXY}2222");
        let flags = ["-o", &proxy, "-i", "key", "-o", "UserKnownHostsFile=hosts", "-v"];
        let rest = ["-l", "you", "--", "vmi.mine.ns", "ls -l"];
        assert_eq!(way().ssh(user(), all(), Some("ls -l".to_owned())), [&flags[..], &rest].concat());
    }

    #[test]
    fn scp_needs_exactly_one_place_in_a_guest() {
        let copy = |from: &str, to: &str, both| Copy {
            from: from.to_owned(),
            to: to.to_owned(),
            flags: Flags { recursive: both, preserve: both },
        };
        let told = |from: &str, to: &str, both| {
            let copy = copy(from, to, both);
            let route = copy.route::<Target>()?;
            let user = route.guest().and_then(|login| login.user.clone());
            Ok::<_, String>(way().scp(user, route, copy.flags, options()))
        };
        let proxy = format!("{PROXY}22");
        assert!(told("a:b", "me@vm/mine:/c d", false).is_err(), "two guests");
        assert!(told("a", "b", false).is_err(), "no guest");
        assert!(told("@mine:a", "b", false).is_err(), "no user");
        assert_eq!(
            told("./a:b", "me@vm/mine:/c d", false).unwrap(),
            ["-o", &proxy, "--", "./a:b", "me@vmi.mine.ns:/c d"]
        );
        assert_eq!(told("mine:", ".", true).unwrap(), ["-o", &proxy, "-r", "-p", "--", "vmi.mine.ns:", "."]);
    }

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted(OsStr::new("it's 5%")), r"'it'\''s 5%%'");
        assert!("me@pod/mine".parse::<Login<Target>>().is_err());
    }
}
