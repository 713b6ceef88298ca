//! `virt-node ssh` and `scp`: the system's ssh and scp, which reach the guest by our `port-forward --stdio`.
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
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Who logs in.
    #[arg(short = 'l', long, value_name = "USER")]
    username: Option<String>,
    /// File with the private key.
    #[arg(short, long, value_name = "FILE")]
    identity_file: Option<PathBuf>,
    /// File with keys of guests, in place of ssh's own.
    #[arg(long, value_name = "FILE")]
    known_hosts: Option<PathBuf>,
    /// The guest's port.
    #[arg(short, long, default_value_t = 22, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// One more argument for ssh or scp; may be given several times.
    #[arg(short = 't', long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    local_ssh_opts: Vec<OsString>,
}

/// How it is reached.
struct Way {
    own: PathBuf,
    state: PathBuf,
    namespace: String,
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::with(ErrorKind::System, what, error)
}

impl Way {
    fn new(state: &Path, namespace: &str) -> Result<Self, Error> {
        Ok(Self {
            own: std::env::current_exe().map_err(failed("this program"))?,
            state: std::path::absolute(state).map_err(failed("the state folder"))?,
            namespace: namespace.to_owned(),
        })
    }

    /// What ssh and scp are both told.
    fn arguments(&self, named: &Named, options: Options) -> Vec<OsString> {
        let Options { username: _, identity_file, known_hosts, port, local_ssh_opts } = options;
        let mut proxy = OsString::from("ProxyCommand=");
        let vmi = format!("vmi/{}", named.name);
        let words = [
            self.own.as_os_str(),
            OsStr::new("--state"),
            self.state.as_os_str(),
            OsStr::new("--namespace"),
            OsStr::new(&self.namespace),
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

    /// By this name ssh remembers its key.
    fn host(&self, named: &Named) -> String {
        format!("vmi.{}.{}", named.name, self.namespace)
    }

    /// What ssh is told.
    fn ssh(&self, login: Login, options: Options, command: Option<String>) -> Vec<OsString> {
        let user = options.username.clone().or(login.user);
        let mut all = self.arguments(&login.named, options);
        if let Some(user) = user {
            all.extend(["-l".into(), user.into()]);
        }
        all.extend(["--".into(), self.host(&login.named).into()]);
        all.extend(command.map(OsString::from));
        all
    }

    /// What scp is told; `None`: not exactly one of both places is a guest's.
    fn scp(&self, copy: Copy, options: Options) -> Option<Vec<OsString>> {
        let Copy { from, to, recursive, preserve } = copy;
        let guest = match (&from, &to) {
            (Place::Guest(login, _), Place::Here(_)) | (Place::Here(_), Place::Guest(login, _)) => {
                login.clone()
            }
            (Place::Here(_), Place::Here(_)) | (Place::Guest(..), Place::Guest(..)) => return None,
        };
        let user = options.username.clone().or(guest.user);
        let mut all = self.arguments(&guest.named, options);
        all.extend([("-r", recursive), ("-p", preserve)].iter().filter(|one| one.1).map(|one| one.0.into()));
        all.push("--".into());
        for place in [from, to] {
            all.push(match place {
                Place::Here(path) => path.into(),
                Place::Guest(_, path) => {
                    let user = user.as_ref().map_or(String::new(), |user| format!("{user}@"));
                    format!("{user}{}:{path}", self.host(&guest.named)).into()
                }
            });
        }
        Some(all)
    }
}

fn is_machine(login: &Login) -> Result<(), Error> {
    match login.named.kind {
        None | Some(Kind::VirtualMachine | Kind::VirtualMachineInstance) => Ok(()),
        Some(_) => Err(Error::new(ErrorKind::Usage, "only a machine can be logged in to")),
    }
}

/// `virt-node ssh`: becomes ssh.
///
/// # Errors
/// There is no ssh, or it cannot be a guest.
pub(crate) fn ssh(
    state: &Path,
    namespace: &str,
    login: Login,
    options: Options,
    command: Option<String>,
) -> Result<(), Error> {
    is_machine(&login)?;
    let arguments = Way::new(state, namespace)?.ssh(login, options, command);
    let error = Command::new("ssh").args(arguments).exec();
    Err(failed("ssh cannot be run; on Debian: apt install openssh-client")(error))
}

/// Where a file is or is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this machine.
    Here(String),
    /// In a guest.
    Guest(Login, String),
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            // As with scp, a path that begins so is one, whatever it holds.
            Some((login, path)) if !text.starts_with(['/', '.']) => {
                Ok(Self::Guest(login.parse()?, path.to_owned()))
            }
            Some(_) | None => Ok(Self::Here(text.to_owned())),
        }
    }
}

/// What is copied.
#[derive(Debug, clap::Args)]
pub(crate) struct Copy {
    /// A path here, or [USER@]NAME:PATH, vm/NAME:PATH or vmi/NAME:PATH in a guest.
    from: Place,
    /// The same: one of both is a guest's.
    to: Place,
    /// Folders with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// Keep times and rights.
    #[arg(long)]
    preserve: bool,
}

/// `virt-node scp`: becomes scp.
///
/// # Errors
/// There is no scp, or not exactly one place is in a guest.
pub(crate) fn scp(state: &Path, namespace: &str, copy: Copy, options: Options) -> Result<(), Error> {
    for place in [&copy.from, &copy.to] {
        if let Place::Guest(login, _) = place {
            is_machine(login)?;
        }
    }
    let arguments = Way::new(state, namespace)?.scp(copy, options);
    let one = || {
        Error::new(
            ErrorKind::Usage,
            "one of both places is a guest's, as in NAME:PATH, the other a path here",
        )
    };
    let error = Command::new("scp").args(arguments.ok_or_else(one)?).exec();
    Err(failed("scp cannot be run; on Debian: apt install openssh-client")(error))
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

    fn way() -> Way {
        Way { own: "/v n".into(), state: "/s%".into(), namespace: "ns".to_owned() }
    }

    fn options() -> Options {
        Options {
            username: None,
            identity_file: None,
            known_hosts: None,
            port: 22,
            local_ssh_opts: Vec::new(),
        }
    }

    fn all() -> Options {
        Options {
            username: Some("you".to_owned()),
            identity_file: Some("key".into()),
            known_hosts: Some("hosts".into()),
            port: 2222,
            local_ssh_opts: vec!["-v".into()],
        }
    }

    const PROXY: &str =
        "ProxyCommand='/v n' '--state' '/s%%' '--namespace' 'ns' 'port-forward' '--stdio=true' 'vmi/mine' ";

    #[test]
    fn ssh_is_told_how_to_reach_the_guest() {
        let told = |login: &str, options, command| way().ssh(login.parse().unwrap(), options, command);
        let proxy = format!("{PROXY}22");
        assert_eq!(told("vm/mine", options(), None), ["-o", &proxy, "--", "vmi.mine.ns"]);
        assert_eq!(told("me@mine", options(), None), ["-o", &proxy, "-l", "me", "--", "vmi.mine.ns"]);
        let proxy = format!("{PROXY}2222");
        let flags = ["-o", &proxy, "-i", "key", "-o", "UserKnownHostsFile=hosts", "-v"];
        let rest = ["-l", "you", "--", "vmi.mine.ns", "ls -l"];
        assert_eq!(told("me@mine", all(), Some("ls -l".to_owned())), [&flags[..], &rest].concat());
    }

    #[test]
    fn scp_is_told_one_place_in_a_guest() {
        let told = |from: &str, to: &str, recursive| {
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            way().scp(Copy { from, to, recursive, preserve: recursive }, options())
        };
        let proxy = format!("{PROXY}22");
        assert_eq!(told("a:b", "me@vm/mine:/c d", false), None, "two guests");
        assert_eq!(
            told("./a:b", "me@vm/mine:/c d", false).unwrap(),
            ["-o", &proxy, "--", "./a:b", "me@vmi.mine.ns:/c d"]
        );
        assert_eq!(told("mine:", ".", true).unwrap(), ["-o", &proxy, "-r", "-p", "--", "vmi.mine.ns:", "."]);
        assert_eq!(told("a", "b", false), None);
        assert!("@mine:a".parse::<Place>().is_err());
    }

    #[test]
    fn words_survive_the_shell_and_who_is_none_is_refused() {
        assert_eq!(quoted(OsStr::new("it's 5%")), r"'it'\''s 5%%'");
        assert!("@mine".parse::<Login>().is_err());
        assert!("me@pod/mine".parse::<Login>().is_err());
    }
}
