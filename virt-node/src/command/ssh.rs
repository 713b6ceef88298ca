//! `virt-node ssh` and `scp`: the local ssh and scp, which reach the guest by this program's `port-forward --stdio`.
//!
//! Not here: the flags and the command line of ssh ([`virt_client::ssh`]).

use std::convert::Infallible;
use std::io;
use std::path::Path;

use api::kind::Kind;
use virt_client::ssh::{self, Copy, Options, Way};

use super::Named;
use crate::error::{Error, Kind as ErrorKind};

/// A guest with the user to log in as.
pub(crate) type Login = ssh::Login<Named>;

/// How ssh reaches a guest of a state folder.
fn way(state: &Path, namespace: &str, named: &Named) -> Result<Way, Error> {
    match named.kind {
        None | Some(Kind::VirtualMachine | Kind::VirtualMachineInstance) => {}
        Some(_) => {
            return Err(Error::new(
                ErrorKind::Usage,
                "only a VirtualMachine or its instance can be logged in to: name it as vm/NAME",
            ));
        }
    }
    let unknown = |error| {
        Error::with(
            ErrorKind::System,
            "cannot determine the path of the state directory or of this program",
            error,
        )
    };
    let state = std::path::absolute(state).map_err(unknown)?;
    let words = vec!["--state".into(), state.into(), "--namespace".into(), namespace.into()];
    Way::new(words, "vmi", &named.name, namespace).map_err(unknown)
}

fn missing(program: &str, failed: io::Result<Infallible>) -> Result<(), Error> {
    let Err(error) = failed;
    let text = format!("{program} cannot be started; on Debian: apt install openssh-client");
    Err(Error::with(ErrorKind::System, text, error))
}

/// `virt-node ssh`: becomes ssh.
///
/// # Errors
/// There is no ssh, or the object is no guest.
pub(crate) fn ssh(
    state: &Path,
    namespace: &str,
    login: Login,
    options: Options,
    command: Option<String>,
) -> Result<(), Error> {
    let way = way(state, namespace, &login.guest)?;
    missing("ssh", ssh::ssh(&way, login.user, options, command))
}

/// `virt-node scp`: becomes scp.
///
/// # Errors
/// There is no scp, or not exactly one place is in a guest.
pub(crate) fn scp(state: &Path, namespace: &str, copy: &Copy, options: Options) -> Result<(), Error> {
    let wrong = |text| Error::new(ErrorKind::Usage, text);
    let route = copy.route::<Named>().map_err(wrong)?;
    let guest = route
        .guest()
        .ok_or_else(|| wrong("no argument names a path in a guest: write it as NAME:PATH".to_owned()))?;
    let way = way(state, namespace, &guest.guest)?;
    missing("scp", ssh::scp(&way, copy, route, options))
}
