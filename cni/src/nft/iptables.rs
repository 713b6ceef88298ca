//! `ipMasq` by iptables, as the reference does it: a chain for each container in the table `nat`, of IPv4 and IPv6 each.
//!
//! Written by the program iptables-restore, and only when a configuration asks for it. Removed without any program where
//! iptables speaks to nf_tables, as all distributions' does by now; where the kernel has rules of the old kind, by the
//! program that made them.

use std::io::Write;
use std::process::{Command, Stdio};

use ipnet::IpNet;
use rustix::io::Errno;
use sha2::{Digest, Sha512};

use crate::error::{Error, Kind};
use crate::nft::batch::{Batch, IPV4, IPV6, Table};
use crate::nft::filter::Filter;

/// The reference's limit of a chain's name.
const CHAIN_LENGTH: usize = 28;
const BASE: &str = "POSTROUTING";

/// How often what was just listed may have been changed by somebody else.
const TURNS: u8 = 5;

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

/// Masquerades what comes from `addresses`.
///
/// # Errors
/// What iptables says; [`Kind::Unsupported`] when there is none.
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

/// Removes a container's chains and the rules that lead there; nothing when there are none.
///
/// # Errors
/// Every failure, after all was tried.
pub(super) fn tear_down(filter: &mut Filter, network: &str, container: &str) -> Result<(), Error> {
    let chain = chain(network, container);
    let mut errors = Vec::new();
    for family in FAMILIES {
        errors.extend(remove(filter, family.table, &chain).err());
        errors.extend(remove_legacy(family, &chain).err());
    }
    Error::all(errors)
}

fn remove(filter: &mut Filter, table: Table, chain: &str) -> Result<(), Error> {
    for turn in 1..=TURNS {
        if filter.chain(table, chain)?.is_none() {
            return Ok(());
        }
        let mut batch = Batch::new();
        for rule in filter.rules(table, BASE)? {
            if rule.target.as_deref() == Some(chain) {
                batch.delete_rule(table, BASE, rule.handle);
            }
        }
        batch.delete_chain(table, chain);
        let committed = filter.commit(&batch)?;
        if !committed.because(Errno::NOENT) || turn == TURNS {
            return committed.done();
        }
    }
    Ok(())
}

/// The same with rules of the old kind, which only their program can read. Nearly never: the kernel names the tables it
/// has of them.
fn remove_legacy(family: Family, chain: &str) -> Result<(), Error> {
    let names = std::fs::read_to_string(family.names).unwrap_or_default();
    if !names.lines().any(|name| name == "nat") {
        return Ok(());
    }
    // Where there is no program of this name, the other one is of the old kind itself.
    let listed = [family.legacy, family.program].into_iter().find_map(|program| {
        let listed = run(Command::new(program).args(["--wait", "-t", "nat", "-S"]), "").ok()?;
        Some((program, listed))
    });
    let Some((program, listed)) = listed else {
        let message = format!("{} has rules, and no {} to remove them is there", family.names, family.legacy);
        return Err(Error::new(Kind::Unsupported, message));
    };
    if !listed.lines().any(|line| line.split_whitespace().eq(["-N", chain])) {
        return Ok(());
    }
    let mut text = "*nat\n".to_owned();
    for line in listed.lines() {
        let leads_there = line.split_whitespace().any(|word| word == chain);
        if let Some(rule) = line.strip_prefix("-A ").filter(|rule| leads_there && rule.starts_with(BASE)) {
            text += &format!("-D {rule}\n");
        }
    }
    text += &format!("-F {chain}\n-X {chain}\nCOMMIT\n");
    let restore = program.strip_suffix("-legacy").map(|name| format!("{name}-legacy-restore"));
    let restore = restore.unwrap_or_else(|| family.restore.to_owned());
    run(Command::new(restore).args(["--noflush", "--wait"]), &text).map(drop)
}

/// Runs a program with `input`; its standard output.
fn run(command: &mut Command, input: &str) -> Result<String, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| {
        Error::with(
            Kind::Unsupported,
            format!("{program} cannot be run, which \"ipMasq\" by iptables needs"),
            error,
        )
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut pipe) = child.stdin.take() {
        // A program that refuses early does not read; what it says comes below.
        let _ = pipe.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::with(Kind::Kernel, format!("{program} failed ({})", output.status), said))
}
