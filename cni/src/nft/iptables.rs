//! `ipMasq` by iptables, as the reference does it: a chain for each container in the table `nat`, of IPv4 and IPv6 each.
//!
//! Written by the program iptables-restore, and only when a configuration asks for it. Removed without any program where
//! iptables speaks to nf_tables, as all distributions' does by now; where the kernel has rules of the old kind, by the
//! program that made them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::process::Command;

use ipnet::IpNet;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use sha2::{Digest, Sha512};

use crate::error::{Error, Kind};
use crate::log_error;
use crate::nft::sys;
use crate::protocol::Attachment;
use link::nft::Filter;
use link::nft::batch::{Batch, Hook, IPV4, IPV6, Table};

/// The reference's limit of a chain's name.
const CHAIN_LENGTH: usize = 28;
const BASE: &str = "POSTROUTING";
/// NF_INET_POST_ROUTING, NF_IP_PRI_NAT_SRC.
const HOOK: Hook = Hook { kind: "nat", number: 4, priority: 100 };

/// Attempts when another process changes the rules between listing and change.
const TURNS: u8 = 5;

/// How many chains go in one transaction: it must fit into a socket's buffer.
const AT_ONCE: usize = 128;

/// One of the two kinds of IP as iptables has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Family {
    table: Table,
    restore: &'static str,
    program: &'static str,
    legacy: &'static str,
    /// Where the kernel names the tables of the old kind that it has.
    names: &'static str,
    multicast: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family {
        table: Table { family: IPV4, name: "nat" },
        restore: "iptables-restore",
        program: "iptables",
        legacy: "iptables-legacy",
        names: "/proc/net/ip_tables_names",
        multicast: "224.0.0.0/4",
    },
    Family {
        table: Table { family: IPV6, name: "nat" },
        restore: "ip6tables-restore",
        program: "ip6tables",
        legacy: "ip6tables-legacy",
        names: "/proc/net/ip6_tables_names",
        multicast: "ff00::/8",
    },
];

/// `CNI-` and as many digits of a hash as there is room for.
fn chain(network: &str, container: &str) -> String {
    let digest = Sha512::digest(format!("{network}{container}").as_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("CNI-{digits}").chars().take(CHAIN_LENGTH).collect()
}

/// Whether the program is there that writes the rules, for IPv4 at least.
///
/// # Errors
/// [`Kind::Unsupported`].
pub(super) fn offered() -> Result<(), Error> {
    let [family, _] = FAMILIES;
    let folders = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&folders).any(|folder| folder.join(family.restore).is_file()) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Unsupported,
        format!(
            "{} is not in PATH, which \"ipMasqBackend\": \"iptables\" needs; install iptables or use nftables",
            family.restore
        ),
    ))
}

/// Masquerades what comes from `addresses`.
///
/// # Errors
/// iptables' own error; [`Kind::Unsupported`] when it is not installed.
pub(super) fn set_up(network: &str, container: &str, addresses: &[IpNet]) -> Result<(), Error> {
    let chain = chain(network, container);
    // Network names and container ids hold nothing that would need escaping.
    let comment = format!(r#"-m comment --comment "name: \"{network}\" id: \"{container}\"""#);
    for family in FAMILIES {
        let ours: Vec<&IpNet> =
            addresses.iter().filter(|net| net.addr().is_ipv4() == (family.table.family == IPV4)).collect();
        if ours.is_empty() {
            continue;
        }
        let mut text = format!("*nat\n:{chain} - [0:0]\n");
        for net in &ours {
            text += &format!("-A {chain} -d {} -j ACCEPT {comment}\n", net.trunc());
        }
        text += &format!("-A {chain} ! -d {} -j MASQUERADE {comment}\n", family.multicast);
        for net in &ours {
            text += &format!("-A {BASE} -s {} -j {chain} {comment}\n", net.addr());
        }
        text += "COMMIT\n";
        run(Command::new(family.restore).args(["--noflush", "--wait"]), &text)?;
    }
    Ok(())
}

/// Rejects a table with rules that outgoing packets do not pass.
fn check_hooks(filter: &mut Filter, family: Family) -> Result<(), Error> {
    filter.reject_dormant(family.table)?;
    Ok(filter.hooked(family.table, BASE, HOOK)?)
}

/// Whether everything that comes from `addresses` leads into the container's chains, and these masquerade.
///
/// # Errors
/// [`Kind::Kernel`].
pub(super) fn is_set_up(
    filter: &mut Filter,
    network: &str,
    container: &str,
    addresses: &[IpNet],
) -> Result<bool, Error> {
    let chain = chain(network, container);
    for family in FAMILIES {
        let wanted = addresses.iter().filter(|net| net.addr().is_ipv4() == (family.table.family == IPV4));
        let wanted = wanted.count();
        if wanted == 0 {
            continue;
        }
        let rules = filter.rules(family.table, BASE)?;
        let leads = rules.iter().filter(|rule| rule.target.as_deref() == Some(&chain)).count();
        // In the chain, a rule for each address and the one that masquerades.
        let inside = filter.rules(family.table, &chain)?.len();
        let by_nf_tables = leads >= wanted && inside > wanted;
        let by_legacy = || Legacy::find(family).is_some_and(|legacy| legacy.is_set_up(&chain, wanted));
        if by_nf_tables {
            check_hooks(filter, family)?;
        } else if !by_legacy() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes a container's chains and the rules that lead there; nothing when there are none.
///
/// # Errors
/// Every failure, after all was tried.
pub(super) fn tear_down(filter: &mut Filter, network: &str, container: &str) -> Result<(), Error> {
    let chain = BTreeSet::from([chain(network, container)]);
    let mut errors = Vec::new();
    for family in FAMILIES {
        errors.extend(remove(filter, family.table, &chain).err());
        errors.extend(Legacy::find(family).and_then(|legacy| legacy.remove(&chain).err()));
    }
    Error::all(errors)
}

/// Removes the chains of `network` for containers without a `valid` attachment. The comments of a chain's rules identify its
/// owner, and its name proves it.
///
/// # Errors
/// Every failure, after all was tried.
pub(super) fn sweep(filter: &mut Filter, network: &str, valid: &BTreeSet<Attachment>) -> Result<(), Error> {
    let keep: BTreeSet<&str> = valid.iter().map(|one| one.container.as_str()).collect();
    let stale = |comment: &str, target: &str| {
        owner(comment).is_some_and(|(of, container)| {
            of == network && !keep.contains(container) && target == chain(network, container)
        })
    };
    let mut errors = Vec::new();
    for family in FAMILIES {
        match chains(filter, family.table) {
            Err(error) => errors.push(error),
            Ok(chains) => {
                let stale = chains.iter().filter(|(chain, comment)| stale(comment, chain));
                let stale: Vec<&String> = stale.map(|(chain, _)| chain).collect();
                for some in stale.chunks(AT_ONCE) {
                    let some = some.iter().map(|chain| (*chain).clone()).collect();
                    errors.extend(remove(filter, family.table, &some).err());
                }
            }
        }
        if let Some(legacy) = Legacy::find(family) {
            let rules = legacy.rules().filter(|rule| is_chain(rule.chain));
            let stale = rules.filter(|rule| stale(&rule.comment, rule.chain));
            let stale = stale.map(|rule| rule.chain.to_owned()).collect();
            errors.extend(legacy.remove(&stale).err());
        }
    }
    Error::all(errors)
}

/// Chains of containers, each with the comment of a rule in it.
fn chains(filter: &mut Filter, table: Table) -> Result<Vec<(String, String)>, Error> {
    let mut found = Vec::new();
    for chain in filter.chains(table)?.into_iter().filter(|chain| is_chain(&chain.name)) {
        let comment = filter.rules(table, &chain.name)?.into_iter().next().map(|rule| rule.comment);
        found.extend(comment.map(|comment| (chain.name, comment)));
    }
    Ok(found)
}

/// Whether a chain may be a container's: other plugins' begin alike.
fn is_chain(name: &str) -> bool {
    let digits = name.strip_prefix("CNI-").unwrap_or_default();
    name.len() == CHAIN_LENGTH && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Network and container in a comment, as both sides write it.
fn owner(comment: &str) -> Option<(&str, &str)> {
    comment.strip_prefix("name: \"")?.strip_suffix('"')?.split_once("\" id: \"")
}

fn remove(filter: &mut Filter, table: Table, chains: &BTreeSet<String>) -> Result<(), Error> {
    for turn in 1..=TURNS {
        let mut found = Vec::new();
        for chain in chains {
            found.extend(filter.chain(table, chain)?);
        }
        if found.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        for rule in filter.rules(table, BASE)? {
            if rule.target.is_some_and(|target| chains.contains(&target)) {
                batch.delete_rule(table, BASE, rule.handle);
            }
        }
        for chain in found {
            batch.delete_chain(table, &chain.name);
        }
        let committed = filter.commit(&batch)?;
        if !committed.because(Errno::NOENT) || turn == TURNS {
            return Ok(committed.done()?);
        }
    }
    Ok(())
}

/// Rules of the old kind, which only their program can read. There are nearly never any: the kernel names the tables it
/// has of them.
struct Legacy {
    restore: String,
    /// The table as its program lists it.
    listed: String,
}

/// A rule as its program lists it.
struct Listed<'a> {
    chain: &'a str,
    comment: String,
    target: &'a str,
    /// All of it but what adds it.
    text: &'a str,
}

impl Legacy {
    /// The table of a family, if the kernel has it.
    fn find(family: Family) -> Option<Self> {
        let names = std::fs::read_to_string(family.names).unwrap_or_default();
        if !names.lines().any(|name| name == "nat") {
            return None;
        }
        // Where there is no program of this name, the other one is of the old kind itself.
        for program in [family.legacy, family.program] {
            if let Ok(listed) = run(Command::new(program).args(["--wait", "-t", "nat", "-S"]), "") {
                return Some(Self { restore: format!("{program}-restore"), listed });
            }
        }
        // A container may use them. Chains of a plugin on this node were made by a program of this node.
        log_error(&format!(
            "{} lists a nat table, but {} cannot be run to read it: masquerading rules of removed attachments may stay",
            family.names, family.legacy
        ));
        None
    }

    fn rules(&self) -> impl Iterator<Item = Listed<'_>> {
        self.listed.lines().filter_map(|line| {
            let text = line.strip_prefix("-A ")?;
            let chain = text.split(' ').next()?;
            let target = text.split(' ').skip_while(|word| *word != "-j").nth(1)?;
            let comment = text.split_once("--comment \"").and_then(|(_, rest)| rest.rsplit_once("\" -j "));
            let comment = comment.map(|(comment, _)| comment.replace('\\', "")).unwrap_or_default();
            Some(Listed { chain, comment, target, text })
        })
    }

    fn is_set_up(&self, chain: &str, wanted: usize) -> bool {
        self.rules().filter(|rule| rule.chain == BASE && rule.target == chain).count() >= wanted
            && self.rules().filter(|rule| rule.chain == chain).count() > wanted
    }

    fn remove(&self, chains: &BTreeSet<String>) -> Result<(), Error> {
        let made = self.listed.lines().filter_map(|line| line.strip_prefix("-N "));
        let found: Vec<&str> = made.filter(|chain| chains.contains(*chain)).collect();
        if found.is_empty() {
            return Ok(());
        }
        let mut text = "*nat\n".to_owned();
        for rule in self.rules().filter(|rule| rule.chain == BASE && chains.contains(rule.target)) {
            text += &format!("-D {}\n", rule.text);
        }
        for chain in found {
            text += &format!("-F {chain}\n-X {chain}\n");
        }
        text += "COMMIT\n";
        run(Command::new(&self.restore).args(["--noflush", "--wait"]), &text).map(drop)
    }
}

/// Runs a program with `input`; its standard output. It is gone when this returns, and when this process is: what it had not
/// done by then would be done after a DEL had looked.
///
/// It reads and writes files in memory. At a pipe it would wait for us, and we for its end, if anything failed on our side in
/// between.
fn run(command: &mut Command, input: &str) -> Result<String, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| {
        Error::with(
            Kind::Unsupported,
            format!("{program} cannot be run, which \"ipMasq\" by iptables needs"),
            error,
        )
    };
    let files = || -> std::io::Result<[File; 3]> { Ok([in_memory()?, in_memory()?, in_memory()?]) };
    let [mut given, mut answer, mut complaint] = files().map_err(failed)?;
    given.write_all(input.as_bytes()).and_then(|()| given.rewind()).map_err(failed)?;
    command
        .stdin(given)
        .stdout(answer.try_clone().map_err(failed)?)
        .stderr(complaint.try_clone().map_err(failed)?);
    let mut child = sys::ends_with_us(command).spawn().map_err(failed)?;
    let process = Pid::from_child(&child);
    let status = child.wait().map_err(|error| {
        // The child was not reaped, so the number is still its own.
        let _ =
            kill_process(process, Signal::KILL).and_then(|()| waitpid(Some(process), WaitOptions::empty()));
        failed(error)
    })?;
    let read = |file: &mut File| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(failed)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    if status.success() {
        return read(&mut answer);
    }
    let said = read(&mut complaint)?.trim().to_owned();
    Err(Error::with(Kind::Kernel, format!("{program} failed ({status})"), said))
}

/// A file that goes with its last user.
fn in_memory() -> std::io::Result<File> {
    Ok(memfd_create("iptables", MemfdFlags::CLOEXEC)?.into())
}
