//! CNI's runtime: ADD along a list of plugins, DEL back, CHECK, STATUS, GC (specification 1.1.0, section 3), with what was
//! answered kept in between.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::cache::{self, Entry};
use super::process::{self, Call, execute};
use super::{Binding, CniResult, Interface, Places, WantedNetworks};
use crate::error::{Error, Kind};
use api::cni::Configuration;

/// Where a guest's namespace is.
pub fn namespace(places: &Places, container: &str) -> PathBuf {
    places.namespaces.join(container)
}

/// The owner of an attachment, passed to plugins in CNI_ARGS.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// CNI_CONTAINERID.
    pub container: &'a str,
    /// Namespace of its object.
    pub namespace: &'a str,
    /// Name of its object.
    pub name: &'a str,
    /// UID of its pod; empty: there is no pod.
    pub uid: &'a str,
}

/// The record of an attachment before it begins. `addresses`: the previous ones, requested again.
pub fn entry(places: &Places, wanted: &WantedNetworks, one: &Interface, addresses: &[String]) -> Entry {
    let WantedNetworks { container, namespace: of, name, .. } = wanted;
    let owner = Owner { container, namespace: of, name, uid: "" };
    entry_in(&namespace(places, container), owner, one, addresses)
}

/// The same for a network namespace at `path`.
pub fn entry_in(path: &Path, owner: Owner<'_>, one: &Interface, addresses: &[String]) -> Entry {
    let mut offered = Map::new();
    let mut arguments = vec![
        ("IgnoreUnknown".to_owned(), "1".to_owned()),
        ("K8S_POD_NAMESPACE".to_owned(), owner.namespace.to_owned()),
        ("K8S_POD_NAME".to_owned(), owner.name.to_owned()),
        ("K8S_POD_INFRA_CONTAINER_ID".to_owned(), owner.container.to_owned()),
    ];
    if !owner.uid.is_empty() {
        arguments.push(("K8S_POD_UID".to_owned(), owner.uid.to_owned()));
    }
    if one.binding == Binding::Bridge {
        offered.insert("mac".to_owned(), json!(one.mac.to_string()));
        arguments.push(("MAC".to_owned(), one.mac.to_string()));
    }
    if !addresses.is_empty() {
        offered.insert("ips".to_owned(), json!(addresses));
    }
    Entry::new(owner.container, &one.names.pod, path, &one.network, arguments, offered)
}

/// Refuses a network of which a plugin is not installed: nothing would be made, and no DEL would succeed either.
///
/// # Errors
/// [`Kind::System`] with the plugin's name and the folders it was looked for in.
pub fn installed(places: &Places, network: &Configuration) -> Result<(), Error> {
    network.kinds().try_for_each(|(_, kind)| process::program(kind, &places.plugins).map(drop))
}

fn call<'a>(places: &'a Places, entry: &'a Entry, verb: &'static str) -> Call<'a> {
    Call {
        verb,
        container: &entry.container_id,
        namespace: entry.reachable(),
        interface: &entry.if_name,
        arguments: &entry.arguments,
        path: &places.plugins,
    }
}

/// ADD: each plugin is given the answer of the one before it. The answer of the last one is kept.
///
/// # Errors
/// The plugin's, after those that were done had their DEL.
pub fn add(places: &Places, entry: &mut Entry) -> Result<(), Error> {
    let network = entry.network()?;
    let mut answer: Option<Value> = None;
    for (index, kind) in network.kinds() {
        let request = network.request(index, answer.as_ref(), &entry.offered, &[]);
        match execute(kind, &call(places, entry, "ADD"), &request) {
            Ok(Value::Null) => {}
            Ok(new) => answer = Some(new),
            Err(error) => return Err(error.and(delete(places, entry).err())),
        }
    }
    entry.result = Some(answer.unwrap_or(Value::Null));
    cache::write(&places.state, entry)
}

/// DEL: in reverse, each is given what ADD answered. The entry goes when all succeeded.
///
/// # Errors
/// Every plugin's, after all were called.
pub fn delete(places: &Places, entry: &Entry) -> Result<(), Error> {
    let network = entry.network()?;
    let previous = entry.result.as_ref().filter(|result| network.remembers() && !result.is_null());
    let mut failed: Option<Error> = None;
    for (index, kind) in network.kinds().rev() {
        let request = network.request(index, previous, &entry.offered, &[]);
        if let Err(error) = execute(kind, &call(places, entry, "DEL"), &request) {
            failed = Some(match failed {
                None => error,
                Some(first) => first.and(Some(error)),
            });
        }
    }
    match failed {
        Some(error) => Err(error),
        None => cache::remove(&places.state, entry),
    }
}

/// CHECK of an attachment.
pub fn check(places: &Places, entry: &Entry) -> Result<(), Error> {
    let network = entry.network()?;
    let Some(result) = entry.result.as_ref() else {
        let message = format!(
            "the attachment of {} of {} is incomplete; attach it again",
            entry.if_name, entry.container_id
        );
        return Err(Error::new(Kind::Content, message));
    };
    if network.can_check() {
        for (index, kind) in network.kinds() {
            let request = network.request(index, Some(result), &entry.offered, &[]);
            execute(kind, &call(places, entry, "CHECK"), &request)?;
        }
    }
    Ok(())
}

/// STATUS.
pub fn status(places: &Places, network: &Configuration) -> Result<(), Error> {
    if !network.has_status() {
        return Ok(());
    }
    each(places, network, "STATUS", &[]).into_iter().next().map_or(Ok(()), Err)
}

/// GC.
pub fn collect(places: &Places, network: &Configuration) -> Result<(), Error> {
    if !network.can_collect() {
        return Ok(());
    }
    let valid = cache::all(&places.state)?.into_iter().filter(|entry| entry.network_name == network.name());
    let valid = valid.map(|entry| json!({"containerID": entry.container_id, "ifname": entry.if_name}));
    let valid = Value::Array(valid.collect());
    let mut errors = each(places, network, "GC", &[("cni.dev/valid-attachments", valid)]).into_iter();
    match errors.next() {
        None => Ok(()),
        Some(first) => Err(errors.fold(first, |all, one| all.and(Some(one)))),
    }
}

/// A call that is about the network and no attachment; what failed.
fn each(places: &Places, network: &Configuration, verb: &'static str, more: &[(&str, Value)]) -> Vec<Error> {
    let call = Call {
        verb,
        container: "",
        namespace: Path::new(""),
        interface: "",
        arguments: &[],
        path: &places.plugins,
    };
    let plugins = network.kinds();
    let requests = plugins.map(|(index, kind)| (kind, network.request(index, None, &Map::new(), more)));
    requests.filter_map(|(kind, request)| execute(kind, &call, &request).err()).collect()
}

/// The results of a guest's networks, in the order of its interfaces, without those that have no entry.
///
/// # Errors
/// The cache cannot be read.
pub fn outcomes(places: &Places, wanted: &WantedNetworks) -> Result<Vec<CniResult>, Error> {
    let entries = cache::of(&places.state, &wanted.container)?;
    let outcome = |one: &Interface| {
        let entry = entries.iter().find(|entry| entry.if_name == one.names.pod);
        let result = entry.and_then(|entry| entry.result.clone()).unwrap_or_default();
        CniResult::read(&result, &one.names.pod)
    };
    Ok(wanted.interfaces.iter().map(outcome).collect())
}

/// The addresses of an entry, as they are asked for again.
pub fn addresses(entry: &Entry) -> Vec<String> {
    let result = entry.result.clone().unwrap_or_default();
    let outcome = CniResult::read(&result, &entry.if_name);
    outcome.addresses.iter().map(|(net, _)| net.to_string()).collect()
}

/// Addresses at which others reach an interface.
pub fn reached(outcome: &CniResult) -> Vec<IpAddr> {
    outcome.addresses.iter().map(|(net, _)| net.addr()).collect()
}
