//! Network features of the kernel, reported by the program that uses them: `cni check-node` tests them in a namespace of its
//! own.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, io};

use serde::Deserialize;

use super::{Missing, Need, Tried};
use crate::network;
use guest::found as programs;

/// By which taps are opened.
const TUN: &str = "/dev/net/tun";

/// The used part of the output of `cni check-node --output json`.
#[derive(Deserialize)]
struct Answer {
    checks: Vec<Check>,
}

#[derive(Deserialize)]
struct Check {
    name: String,
    offered: bool,
    reason: Option<String>,
    remedy: Option<String>,
}

/// The checks: our name, the plugin's, the purpose. Guests' networks need each of them.
const ASKED: [(&str, &str, &str); 5] = [
    ("bridge", "bridge", "guests on one network"),
    ("veth", "veth", "guests' namespaces"),
    ("tun", "tun", "guests' network cards"),
    ("nft", "nft-masquerade", "guests behind the machine's address"),
    ("nft-bridge", "nft-bridge", "guests that cannot take each other's addresses"),
];

/// Everything about networks.
pub(super) fn all() -> Vec<Tried> {
    let answer = ask();
    let found = |name: &str| match &answer {
        Err(missing) => Err(missing.clone()),
        Ok(answer) => match answer.checks.iter().find(|check| check.name == name) {
            Some(check) if check.offered => Ok("works".to_owned()),
            Some(Check { reason, remedy, .. }) => {
                Err(Missing::new(reason.clone().unwrap_or_default(), remedy.clone().unwrap_or_default()))
            }
            None => Err(Missing::new("cni check-node does not report it", "install the cni of this release")),
        },
    };
    let mut tried: Vec<Tried> = ASKED
        .iter()
        .map(|&(name, plugin, purpose)| Tried { name, purpose, need: Need::Required, found: found(plugin) })
        .collect();
    if let Some(tun) = tried.iter_mut().find(|one| one.name == "tun" && one.found.is_ok())
        && let Err(missing) = open_to_guests()
    {
        tun.found = Err(missing);
    }
    tried.push(forwarding());
    tried
}

/// Whether QEMU, which is a user of no account, may open the device that taps are opened by.
fn open_to_guests() -> Result<(), Missing> {
    let gone =
        |error: io::Error| Missing::new(format!("{TUN}: {error}"), "the kernel's CONFIG_TUN (modprobe tun)");
    let facts = fs::metadata(TUN).map_err(gone)?;
    if facts.mode() & 0o6 == 0o6 {
        return Ok(());
    }
    let reason = format!("{TUN} has mode {:o}, which keeps the VMs' users out", facts.mode() & 0o777);
    Err(Missing::new(reason, format!("chmod 0666 {TUN}, as the kernel and udev have it")))
}

/// Checks for foreign packet filters that drop the guests' traffic beyond this machine.
fn forwarding() -> Tried {
    let found = match network::closed() {
        Err(error) => Err(Missing::new(error.chain(), "run as root")),
        Ok(closed) if closed.is_empty() => Ok("no rule blocks it".to_owned()),
        Ok(closed) => {
            let (said, commands): (Vec<String>, Vec<String>) = closed.into_iter().unzip();
            Err(Missing::new(said.join("; "), commands.join("; ")))
        }
    };
    let purpose = "traffic of guests beyond this machine";
    Tried { name: "forward", purpose, need: Need::Optional, found }
}

/// The program `cni`: next to ours, or along PATH.
fn program() -> Option<PathBuf> {
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.join("cni")));
    beside.filter(|file| file.is_file()).or_else(|| programs::find("cni"))
}

fn ask() -> Result<Answer, Missing> {
    let install = "install ferrovirt's cni next to virt-node or on the PATH";
    let program = program().ok_or_else(|| Missing::new("the program cni is missing", install))?;
    let shown = program.display();
    let output = Command::new(&program).args(["check-node", "--output", "json"]).output();
    let output = output.map_err(|error| Missing::new(format!("{shown}: {error}"), install))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("no answer");
        Missing::new(format!("{shown} check-node: {said}"), "run as root: networks are made by root")
    })
}
