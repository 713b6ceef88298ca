//! `virt-node ssh`: the system's ssh, which reaches the guest by our `port-forward --stdio`.
//!
//! Not here: keys, known hosts, terminals, all of which are ssh's.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use api::kind::Kind;

use super::Named;
use crate::error::{Error, Kind as ErrorKind};

/// Who is wanted to log in where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    /// `USER@`, where it was typed there.
    user: Option<String>,
    named: Named,
}

impl std::str::FromStr for Login {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, named) = match text.rsplit_once('@') {
            Some(("", _)) => return Err("there is no user before the @".to_owned()),
            Some((user, named)) => (Some(user.to_owned()), named),
            None => (None, text),
        };
        Ok(Self { user, named: named.parse()? })
    }
}

/// Virtctl's flags.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) username: Option<String>,
    pub(crate) identity_file: Option<PathBuf>,
    pub(crate) known_hosts: Option<PathBuf>,
    pub(crate) port: u16,
    pub(crate) command: Option<String>,
    pub(crate) local_ssh_opts: Vec<OsString>,
}

/// `virt-node ssh`: becomes ssh.
///
/// # Errors
/// There is no ssh, or it cannot be a guest.
pub(crate) fn ssh(state: &Path, namespace: &str, login: &Login, options: Options) -> Result<(), Error> {
    let failed = |what: &'static str| move |error| Error::with(ErrorKind::System, what, error);
    if !matches!(login.named.kind, None | Some(Kind::VirtualMachine | Kind::VirtualMachineInstance)) {
        return Err(Error::new(ErrorKind::Usage, "only a machine can be logged in to"));
    }
    let state = std::path::absolute(state).map_err(failed("the state folder"))?;
    let own = std::env::current_exe().map_err(failed("this program"))?;
    let error = Command::new("ssh").args(arguments(&own, &state, namespace, login, options)).exec();
    Err(failed("ssh cannot be run; on Debian: apt install openssh-client")(error))
}

/// What ssh is told.
fn arguments(own: &Path, state: &Path, namespace: &str, login: &Login, options: Options) -> Vec<OsString> {
    let Options { username, identity_file, known_hosts, port, command, local_ssh_opts } = options;
    let name = &login.named.name;
    let mut proxy = OsString::from("ProxyCommand=");
    let vmi = format!("vmi/{name}");
    let words = [
        own.as_os_str(),
        OsStr::new("--state"),
        state.as_os_str(),
        OsStr::new("--namespace"),
        OsStr::new(namespace),
        OsStr::new("port-forward"),
        OsStr::new("--stdio=true"),
        OsStr::new(&vmi),
    ];
    for word in words {
        proxy.push(quoted(word));
        proxy.push(" ");
    }
    proxy.push(port.to_string());
    let mut all: Vec<OsString> = vec!["-o".into(), proxy];
    if let Some(user) = username.or_else(|| login.user.clone()) {
        all.extend(["-l".into(), user.into()]);
    }
    if let Some(file) = identity_file {
        all.extend(["-i".into(), file.into()]);
    }
    if let Some(file) = known_hosts {
        let mut option = OsString::from("UserKnownHostsFile=");
        option.push(file);
        all.extend(["-o".into(), option]);
    }
    all.extend(local_ssh_opts);
    // By this name ssh remembers its key.
    all.extend(["--".into(), format!("vmi.{name}.{namespace}").into()]);
    all.extend(command.map(OsString::from));
    all
}

/// A word as the shell that ssh starts reads it back; ssh itself looks for words after %.
fn quoted(word: &OsStr) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
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

    fn options() -> Options {
        Options {
            username: None,
            identity_file: None,
            known_hosts: None,
            port: 22,
            command: None,
            local_ssh_opts: Vec::new(),
        }
    }

    fn told(login: &str, options: Options) -> Vec<String> {
        let all = arguments(Path::new("/v n"), Path::new("/s%"), "ns", &login.parse().unwrap(), options);
        all.into_iter().map(|one| one.into_string().unwrap()).collect()
    }

    const PROXY: &str =
        "ProxyCommand='/v n' '--state' '/s%%' '--namespace' 'ns' 'port-forward' '--stdio=true' 'vmi/mine' ";

    #[test]
    fn ssh_is_told_how_to_reach_the_guest() {
        let proxy = format!("{PROXY}22");
        assert_eq!(told("vm/mine", options()), ["-o", &proxy, "--", "vmi.mine.ns"]);
        assert_eq!(told("me@mine", options()), ["-o", &proxy, "-l", "me", "--", "vmi.mine.ns"]);
        let all = Options {
            username: Some("you".to_owned()),
            identity_file: Some("key".into()),
            known_hosts: Some("hosts".into()),
            port: 2222,
            command: Some("ls -l".to_owned()),
            local_ssh_opts: vec!["-v".into()],
        };
        let proxy = format!("{PROXY}2222");
        assert_eq!(
            told("me@mine", all),
            [
                "-o",
                &proxy,
                "-l",
                "you",
                "-i",
                "key",
                "-o",
                "UserKnownHostsFile=hosts",
                "-v",
                "--",
                "vmi.mine.ns",
                "ls -l"
            ]
        );
    }

    #[test]
    fn words_survive_the_shell_and_who_is_none_is_refused() {
        assert_eq!(quoted(OsStr::new("it's 5%")), r"'it'\''s 5%%'");
        assert!("@mine".parse::<Login>().is_err());
        assert!("me@pod/mine".parse::<Login>().is_err());
    }
}
