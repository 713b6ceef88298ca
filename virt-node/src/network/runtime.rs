//! CNI's runtime: ADD along a list of plugins, DEL back, CHECK, STATUS, GC (specification 1.1.0, section 3), with what was
//! answered kept in between.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::cache::{self, Entry};
use super::configuration::Configuration;
use super::process::{Call, execute};
use super::{Binding, Interface, Places, Wanted};
use crate::error::{Error, Kind};

/// Where a guest's namespace is.
pub(super) fn namespace(places: &Places, container: &str) -> PathBuf {
    places.namespaces.join(container)
}

/// What is to be noted of an attachment before it begins. `addresses`: those that it had, asked for again.
pub(super) fn entry(places: &Places, wanted: &Wanted, one: &Interface, addresses: &[String]) -> Entry {
    let mut offered = Map::new();
    let mut arguments = vec![
        ("IgnoreUnknown".to_owned(), "1".to_owned()),
        ("K8S_POD_NAMESPACE".to_owned(), wanted.namespace.clone()),
        ("K8S_POD_NAME".to_owned(), wanted.name.clone()),
        ("K8S_POD_INFRA_CONTAINER_ID".to_owned(), wanted.container.clone()),
    ];
    if one.binding == Binding::Bridge {
        offered.insert("mac".to_owned(), json!(one.mac.to_string()));
        arguments.push(("MAC".to_owned(), one.mac.to_string()));
    }
    if !addresses.is_empty() {
        offered.insert("ips".to_owned(), json!(addresses));
    }
    let namespace = namespace(places, &wanted.container);
    Entry::new(&wanted.container, &one.names.pod, &namespace, &one.network, arguments, offered)
}

fn call<'a>(places: &'a Places, entry: &'a Entry, verb: &'static str) -> Call<'a> {
    Call {
        verb,
        container: &entry.container_id,
        namespace: &entry.namespace,
        interface: &entry.if_name,
        arguments: &entry.arguments,
        path: &places.plugins,
    }
}

/// ADD: each plugin is given the answer of the one before it. The answer of the last one is kept.
///
/// # Errors
/// The plugin's, after those that were done had their DEL.
pub(super) fn add(places: &Places, entry: &mut Entry) -> Result<(), Error> {
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
pub(super) fn delete(places: &Places, entry: &Entry) -> Result<(), Error> {
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
pub(super) fn check(places: &Places, entry: &Entry) -> Result<(), Error> {
    let network = entry.network()?;
    let Some(result) = entry.result.as_ref() else {
        let message = format!("{} of {} was never attached to the end", entry.if_name, entry.container_id);
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
pub(super) fn status(places: &Places, network: &Configuration) -> Result<(), Error> {
    if !network.has_status() {
        return Ok(());
    }
    each(places, network, "STATUS", &[]).into_iter().next().map_or(Ok(()), Err)
}

/// GC.
pub(super) fn collect(places: &Places, network: &Configuration) -> Result<(), Error> {
    if !network.can_collect() {
        return Ok(());
    }
    let valid = cache::all(&places.state)?.into_iter().filter(|entry| entry.network_name == network.name);
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

/// The addresses of an entry, as they are asked for again.
pub(super) fn addresses(entry: &Entry) -> Vec<String> {
    let result = entry.result.clone().unwrap_or_default();
    let outcome = super::outcome::Outcome::read(&result, &entry.if_name);
    outcome.addresses.iter().map(|(net, _)| net.to_string()).collect()
}

/// Addresses at which others reach an interface.
pub(super) fn reached(outcome: &super::outcome::Outcome) -> Vec<IpAddr> {
    outcome.addresses.iter().map(|(net, _)| net.addr()).collect()
}
