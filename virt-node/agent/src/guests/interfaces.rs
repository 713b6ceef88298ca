//! Interfaces that are attached and detached while a guest runs: those bridged to a secondary network. The operator copies
//! those of the VM's template into the VMI; one with the `state` `absent` is detached. The link state of every interface
//! follows its `state`.
//!
//! ```text
//! absent ─► guest lets go (launcher) ─► DEL, network-status     present ─► ADD, network-status ─► wired ─► launcher attaches
//! ```
//!
//! Every step finds what an earlier one did: done again as a whole it changes nothing. Not here: which interfaces of a
//! template a VMI has (lib/virt).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::kubevirt::{InterfaceStatus, VirtualMachineInstanceSpec};
use api::launch::Interface as Launched;
use api::launcher::{Answer, Request};
use tokio::time::sleep;
use virt::live::is_absent;
use virt::pod as place;
use virt::resolve::{Guest, Made, Objects, interfaces_of, leave_volumes_out, resolve};

use super::instance::Instance;
use super::launch::{Site, invalid};
use super::network::{self, Network};
use super::pod::Pod;
use super::talk::{Talk, unexpected};
use crate::error::{Error, Kind, Result};
use crate::pods::PodDirectory;

/// How long a guest may take to let go of an interface, and how often it is asked.
const TIMEOUT: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(500);

/// The interfaces of a guest, as far as a running guest follows them: name and state.
pub(crate) fn wanted(spec: &VirtualMachineInstanceSpec) -> BTreeMap<String, String> {
    let state = |state: &Option<String>| state.clone().filter(|state| !state.is_empty());
    let all = interfaces_of(spec);
    all.iter().map(|one| (one.name.clone(), state(&one.state).unwrap_or_else(|| "up".to_owned()))).collect()
}

/// Brings the interfaces of a guest that runs to those of its VMI, and gives them with their statuses.
///
/// # Errors
/// As [`network::wire`]; [`Kind::System`]: the guest does not let go of one; [`Kind::Content`]: the launcher refuses one.
pub(crate) async fn mend(
    site: &Site,
    instance: Arc<Instance>,
    pod: Pod,
) -> Result<(Network, Vec<InterfaceStatus>)> {
    if interfaces_of(&instance.spec).is_empty() {
        return Ok((Network::default(), Vec::new()));
    }
    let gone = || Error::new(Kind::Launcher, format!("pod {} has no directory", pod.name));
    let directory = Arc::new(PodDirectory::open(&site.kubelet, &pod.uid)?.ok_or_else(gone)?);
    let (mut talk, process) = Talk::open(&directory).await?;
    for one in interfaces_of(&instance.spec).iter().filter(|one| is_absent(one)) {
        let_go(&mut talk, &one.name).await?;
    }
    let (site, known) = (site.clone(), Arc::clone(&instance));
    let work = move || -> Result<(Network, Vec<Launched>)> {
        let Instance { spec, namespace, name, .. } = &*known;
        let network = network::wire(&site.networks, spec, namespace, name, &pod, &directory, &process)?;
        let launched = launched(&site, &known, &network)?;
        Ok((network, launched))
    };
    let wired = tokio::task::spawn_blocking(work).await;
    let wired = wired.unwrap_or_else(|_| {
        Err(Error::new(
            Kind::System,
            "connecting a network was aborted: the thread panicked; see the agent's log",
        ))
    });
    let (network, launched) = wired?;
    // Those that are there change at most their link.
    for one in &launched {
        let Answer::Layout(_) = talk.call(Request::AttachInterface(Box::new(one.clone()))).await? else {
            return Err(unexpected());
        };
    }
    let statuses = network.statuses(&launched);
    Ok((network, statuses))
}

/// The interfaces as the launcher knows them. They need nothing of the guest's volumes.
fn launched(site: &Site, instance: &Instance, network: &Network) -> Result<Vec<Launched>> {
    let mut spec = instance.spec.clone();
    leave_volumes_out(&mut spec);
    spec.domain.devices.gpus.clear();
    spec.domain.devices.host_devices.clear();
    let guest = Guest {
        metadata: api::resource::ObjectMeta {
            name: instance.name.clone(),
            namespace: Some(instance.namespace.clone()),
            ..api::resource::ObjectMeta::default()
        },
        uid: instance.uid.clone(),
        smbios_uuid: instance.uid.clone(),
        smbios_serial: instance.uid.clone(),
    };
    let made = Made {
        folder: place::PRIVATE.to_owned(),
        state: place::PRIVATE.to_owned(),
        taps: network.taps(),
        ..Made::default()
    };
    let mut host = site.host.clone();
    host.accelerator = api::launch::Accelerator::Tcg;
    let (launch, findings) = resolve(&spec, &guest, &host, &made, &Objects::default(), "spec");
    launch.map(|launch| launch.interfaces).ok_or_else(|| invalid(&findings))
}

/// Waits until a guest has let go of an interface.
async fn let_go(talk: &mut Talk, name: &str) -> Result<()> {
    let until = Instant::now() + TIMEOUT;
    let device = format!("net-{name}");
    loop {
        match talk.call(Request::DetachInterface(name.to_owned())).await {
            Ok(Answer::Layout(layout)) if !layout.has(&device) => return Ok(()),
            // It was asked before.
            Ok(_) if Instant::now() < until => {}
            Err(error) if error.kind() == Kind::Content && Instant::now() < until => {}
            Ok(_) => {
                let text = format!("the guest has not released the interface {name:?} yet");
                return Err(Error::new(Kind::System, text));
            }
            Err(error) => return Err(error.context(format!("interface {name:?}"))),
        }
        sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn interfaces_have_the_state_of_the_spec() {
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({
            "domain": {"devices": {"interfaces": [
                {"name": "default", "masquerade": {}},
                {"name": "a", "bridge": {}},
                {"name": "b", "bridge": {}, "state": "absent"},
                {"name": "c", "bridge": {}, "state": "down"},
            ]}},
            "networks": [],
        }))
        .unwrap();
        let all: Vec<String> = wanted(&spec).iter().map(|(name, state)| format!("{name} {state}")).collect();
        assert_eq!(all, ["a up", "b absent", "c down", "default up"]);
    }
}
