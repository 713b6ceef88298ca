//! The plugin `host-local`: addresses out of ranges, kept on this node. Configuration, order and files are the
//! reference's; beyond it, GC and STATUS are answered, an attachment never gets a second address of a range set even
//! when it asks for one by name, and a failing ADD gives back only what it took itself.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::error::{Error, Kind};
use crate::ipam::range::{Candidate, Range, RangeSet};
use crate::ipam::store::{self, Contents, Owner, Store};
use crate::protocol::{
    Attachment, Call, Dns, IpConfig, Object, Outcome, Plugin, Route, Version, is_name, read_route,
};

/// The default of `dataDir`, which holds a directory per network.
const DATA_FOLDER: &str = "/var/lib/cni/networks";

/// The longest resolv.conf that is read, in bytes.
const RESOLVER_LIMIT: u64 = 64 << 10;

/// The plugin.
pub(crate) struct HostLocal;

/// The keys of `ipam`, and what was asked elsewhere.
struct Config {
    sets: Vec<RangeSet>,
    routes: Vec<Route>,
    dns: Dns,
    /// Addresses asked for by name.
    requested: Vec<IpAddr>,
}

impl Config {
    fn parse(call: &Call) -> Result<Self, Error> {
        let ipam = ipam(call)?;
        let mut sets = Vec::new();
        for list in call.config.object("runtimeConfig")?.list("ipRanges")? {
            sets.push(RangeSet::parse(list)?);
        }
        if let Some(range) = Range::parse(ipam)? {
            sets.push(RangeSet::of(vec![range])?);
        }
        for list in ipam.list("ranges")? {
            sets.push(RangeSet::parse(list)?);
        }
        if sets.is_empty() {
            return Err(Error::config("\"ipam\" has no \"ranges\""));
        }
        for (index, set) in sets.iter().enumerate() {
            if let Some(other) = sets.iter().skip(index + 1).find(|other| set.overlaps(other)) {
                return Err(Error::config(format!(
                    "the range sets {} and {} overlap",
                    set.words(),
                    other.words()
                )));
            }
        }
        one_per_family(sets.iter().map(RangeSet::is_ipv4), call.version)?;
        let mut routes = Vec::new();
        for route in ipam.objects("routes")? {
            routes.push(read_route(route)?);
        }
        let dns = match ipam.text("resolvConf")?.filter(|path| !path.is_empty()) {
            None => Dns::default(),
            Some(path) => resolver(path)?,
        };
        Ok(Self { sets, routes, dns, requested: requested(call)? })
    }
}

/// Before 0.3.0 a result has one address of each family.
pub(super) fn one_per_family(families: impl Iterator<Item = bool>, version: Version) -> Result<(), Error> {
    let (four, six): (Vec<bool>, Vec<bool>) = families.partition(|four| *four);
    if version >= Version::V0_3_0 || four.len() <= 1 && six.len() <= 1 {
        return Ok(());
    }
    let version = version.as_str();
    Err(Error::config(format!("CNI version {version} does not support more than 1 address per family")))
}

fn ipam(call: &Call) -> Result<&Object, Error> {
    if call.config.get("ipam").is_none() {
        return Err(Error::config("the configuration has no \"ipam\""));
    }
    call.config.object("ipam")
}

/// The folder of the network's reservations. All that DEL and GC need to know.
fn folder(call: &Call) -> Result<PathBuf, Error> {
    let data = ipam(call)?.text("dataDir")?.filter(|path| !path.is_empty()).unwrap_or(DATA_FOLDER);
    if !data.starts_with('/') {
        let data = data.escape_debug();
        return Err(Error::config(format!("\"dataDir\": \"{data}\" is not an absolute path")));
    }
    // The network's name was checked to be no path.
    debug_assert!(is_name(&call.network));
    Ok(PathBuf::from(data).join(&call.network))
}

/// `IP` of CNI_ARGS, `args.cni.ips` and `runtimeConfig.ips`, with or without a prefix, each once.
fn requested(call: &Call) -> Result<Vec<IpAddr>, Error> {
    call.arguments.only(&["IP", "GATEWAY", "MAC"])?;
    let mut texts: Vec<String> = call.arguments.get("IP").map(str::to_owned).into_iter().collect();
    texts.extend(call.config.object("args")?.object("cni")?.texts("ips")?);
    texts.extend(call.config.object("runtimeConfig")?.texts("ips")?);
    let mut requested = Vec::new();
    for text in texts.iter().filter(|text| !text.is_empty()) {
        let address = text.parse::<IpAddr>().or_else(|_| text.parse::<IpNet>().map(|network| network.addr()));
        let address = address.map_err(|_| {
            Error::config(format!("the requested address \"{}\" is not an IP address", text.escape_debug()))
        })?;
        let address = address.to_canonical();
        if !requested.contains(&address) {
            requested.push(address);
        }
    }
    Ok(requested)
}

/// The content of a file in the format of resolv.conf(5).
fn resolver(path: &str) -> Result<Dns, Error> {
    let failed = |error| Error::io(format!("\"resolvConf\": {path} cannot be read"), error);
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    std::io::Read::read_to_string(&mut std::io::Read::take(file, RESOLVER_LIMIT), &mut text)
        .map_err(failed)?;
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace().map(str::to_owned);
        match (words.next().as_deref(), words.next()) {
            (Some("nameserver"), Some(server)) => dns.nameservers.push(server),
            (Some("domain"), Some(domain)) => dns.domain = domain,
            (Some("search"), Some(first)) => dns.search.extend(std::iter::once(first).chain(words)),
            (Some("options"), Some(first)) => dns.options.extend(std::iter::once(first).chain(words)),
            _ => {}
        }
    }
    Ok(dns)
}

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn add(&self, call: &Call) -> Result<Outcome, Error> {
        let config = Config::parse(call)?;
        let store = Store::make(&folder(call)?)?;
        let Choice { chosen, marked } = choose(&config, &call.attachment, &store)?;
        for (set, candidate) in chosen.iter().enumerate() {
            if let Err(error) = store.reserve(candidate.address.addr(), &call.attachment, set, marked) {
                let before: Vec<IpAddr> = chosen.iter().take(set).map(|one| one.address.addr()).collect();
                let undone = store.free(&before, &call.attachment);
                let errors = [Some(error), undone.err()].into_iter().flatten().collect();
                return Error::all(errors).map(|()| Outcome::default());
            }
        }
        Ok(Outcome {
            ips: chosen.iter().map(answered).collect(),
            routes: config.routes,
            dns: config.dns,
            ..Outcome::default()
        })
    }

    fn delete(&self, call: &Call) -> Result<(), Error> {
        // A folder that no ADD would take holds nothing.
        let Ok(folder) = folder(call) else { return Ok(()) };
        let Some(store) = Store::open(&folder)? else { return Ok(()) };
        store.free(&store.find(&call.attachment)?, &call.attachment)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let folder = folder(call)?;
        let found = match Store::open(&folder)? {
            None => Vec::new(),
            Some(store) => store.find(&call.attachment)?,
        };
        let (interface, container) = (&call.attachment.interface, &call.attachment.container);
        if found.is_empty() {
            let folder = folder.display();
            return Err(Error::mismatch(format!(
                "no address is reserved for {interface} of container {container} in {folder}"
            )));
        }
        // An address that another plugin of the chain gave is none of ours.
        let Some(previous) = Outcome::previous(&call.config, call.version)? else { return Ok(()) };
        let sets = Config::parse(call)?.sets;
        let lost = previous
            .ips
            .iter()
            .map(|ip| ip.address.addr())
            .find(|address| sets.iter().any(|set| set.contains(*address)) && !found.contains(address));
        match lost {
            None => Ok(()),
            Some(address) => Err(Error::mismatch(format!(
                "{address} is not reserved for {interface} of container {container}"
            ))),
        }
    }

    fn collect(&self, call: &Call) -> Result<(), Error> {
        let valid = call.valid_attachments()?;
        let Some(store) = Store::open(&folder(call)?)? else { return Ok(()) };
        // Files without a container's name are left alone.
        let keep = |owner: &Owner| !is_name(&owner.container) || valid.iter().any(|one| owner.is(one));
        store.sweep(&store.list()?, keep)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::parse(call)?;
        let folder = folder(call)?;
        store::writable(&folder)?;
        let Some(store) = Store::open(&folder)? else { return Ok(()) };
        let contents = store.list()?;
        for set in &config.sets {
            let taken = contents.addresses().filter(|address| set.gives(*address)).count();
            if u128::try_from(taken).unwrap_or(u128::MAX) >= set.size()
                && free(set, &store, &contents)?.is_none()
            {
                let network = &call.network;
                let message =
                    format!("no IP addresses available in range set: {} of network {network}", set.words());
                return Err(Error::new(Kind::Unavailable, message));
            }
        }
        Ok(())
    }
}

/// The result of an ADD without the addresses, which depend on the reservations: gateways, and prefixes.
///
/// # Errors
/// As of an ADD.
pub(super) fn predicted(call: &Call) -> Result<Vec<IpConfig>, Error> {
    let config = Config::parse(call)?;
    let predicted = config.sets.iter().filter_map(RangeSet::predicted);
    Ok(predicted.map(|one| answered(&one)).collect())
}

fn answered(one: &Candidate) -> IpConfig {
    IpConfig { interface: None, address: one.address, gateway: Some(one.gateway) }
}

/// How many addresses are tried one by one before the folder is read.
const TRIES: usize = 16;

/// The addresses chosen for an attachment.
struct Choice {
    /// An address of every range set, none of them reserved yet.
    chosen: Vec<Candidate>,
    /// Whether all reservations there are have their second name.
    marked: bool,
}

fn choose(config: &Config, attachment: &Attachment, store: &Store) -> Result<Choice, Error> {
    let mut contents = None;
    let (owned, marked) = if store.is_marked(config.sets.len()) {
        (store.marked(attachment)?, true)
    } else {
        let contents = contents.insert(store.list()?);
        (store.search(attachment, contents)?, store.mark_all(contents)?)
    };
    let mut requested = config.requested.clone();
    let mut chosen = Vec::new();
    for (index, set) in config.sets.iter().enumerate() {
        if let Some(address) = owned.iter().find(|address| set.contains(**address)) {
            let Attachment { container, interface } = attachment;
            return Err(Error::mismatch(format!(
                "{address} has been allocated to {interface} of {container}, duplicate allocation is not allowed"
            )));
        }
        let wanted = requested.iter().position(|address| set.contains(*address));
        let candidate = match wanted.map(|position| requested.remove(position)) {
            Some(address) => {
                let candidate = set.requested(address)?.ok_or_else(|| outside(&[address]))?;
                if store.owner(address)?.is_some() {
                    let message = format!(
                        "requested IP address {address} is not available in range set {}",
                        set.words()
                    );
                    return Err(Error::mismatch(message));
                }
                candidate
            }
            None => next(set, store.last(index), store, &mut contents)?,
        };
        chosen.push(candidate);
    }
    if !requested.is_empty() {
        return Err(outside(&requested));
    }
    for candidate in &chosen {
        // If it is there it has no owner, or it would not have been chosen.
        let address = candidate.address.addr();
        if store.has(address)? {
            store.clear(address)?;
        }
    }
    Ok(Choice { chosen, marked })
}

/// The address of a set that comes after the last one.
fn next(
    set: &RangeSet,
    last: Option<IpAddr>,
    store: &Store,
    contents: &mut Option<Contents>,
) -> Result<Candidate, Error> {
    for candidate in set.candidates(last).take(TRIES) {
        if !store.has(candidate.address.addr())? {
            return Ok(candidate);
        }
    }
    let contents = match contents {
        Some(contents) => contents,
        None => contents.insert(store.list()?),
    };
    match set.candidates(last).find(|candidate| !contents.has(candidate.address.addr())) {
        Some(candidate) => Ok(candidate),
        None => free(set, store, contents)?.ok_or_else(|| {
            let message = format!("no IP addresses available in range set: {}", set.words());
            Error::new(Kind::TryLater, message)
        }),
    }
}

/// An address with an empty reservation, which an interrupted write left.
fn free(set: &RangeSet, store: &Store, contents: &Contents) -> Result<Option<Candidate>, Error> {
    for address in contents.addresses().filter(|address| set.gives(*address)) {
        if store.owner(address)?.is_none() {
            return set.requested(address);
        }
    }
    Ok(None)
}

fn outside(addresses: &[IpAddr]) -> Error {
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    Error::config(format!("failed to allocate all requested IPs: {}", addresses.join(" ")))
}

/// The addresses that this network's files give to attachments, `call` being of the network.
///
/// # Errors
/// [`Kind::Io`] when they cannot be read.
pub(super) fn reservations(call: &Call) -> Result<Vec<(IpAddr, Attachment)>, Error> {
    let Some(store) = Store::open(&folder(call)?)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for address in store.list()?.addresses() {
        if let Some(Owner { container, interface }) = store.owner(address)? {
            all.push((address, Attachment { container, interface }));
        }
    }
    Ok(all)
}

/// Whether the files of another network in the same data folder have the address.
///
/// # Errors
/// [`Kind::Io`] when the folder cannot be read.
pub(super) fn is_reserved_elsewhere(address: IpAddr, call: &Call) -> Result<bool, Error> {
    let folder = folder(call)?;
    let Some(data) = folder.parent() else { return Ok(false) };
    let failed = |error| Error::io(format!("the folder {} cannot be read", data.display()), error);
    for entry in std::fs::read_dir(data).map_err(failed)? {
        let network = entry.map_err(failed)?.path();
        if network != folder && network.join(address.to_string()).exists() {
            return Ok(true);
        }
    }
    Ok(false)
}
