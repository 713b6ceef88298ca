//! Starts a guest in its launcher pod, or finds out what a guest that runs was started with.
//!
//! ```text
//! pod's directory ─► launcher, checked ─► network, capabilities, disks, Secrets ─► launch document (lib/virt) ─► launcher
//! ```
//!
//! Every step finds what an earlier start made: one that was cut short anywhere is begun again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::core::{ConfigMap, Secret};
use api::kubevirt::VirtualMachineInstance;
use api::launch::{Accelerator, Disk, Launch};
use api::launcher::Answer;
use api::names::QEMU_ID;
use api::resource::{Confidential, ObjectMeta};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cluster::Cache;
use dir::{Durability, Owner};
use virt::finding::{Finding, Verdict};
use virt::pod as place;
use virt::resolve::{Backend, Guest, Host, Made, Objects, resolve};

use super::disks::{self, Attachments};
use super::host_devices;
use super::instance::Instance;
use super::network::{self, Network};
use super::pod::Pod;
use super::status::Started;
use super::talk::Talk;
use crate::error::{Error, Kind, Result};
use crate::networks::Networks;
use crate::pods::launcher::PRIVATE;
use crate::pods::process::Process;
use crate::pods::{PodDirectory, content};
use crate::settings::{Settings, current};

/// Where libvirt keeps in the launcher's directory what it found out about QEMU.
const CAPABILITIES: &str = "lv/cache/qemu/capabilities";
/// Most files of that, and the longest in bytes.
const FILES_MAX: usize = 16;
const FILE_MAX: u64 = 4 << 20;

/// Facts about the node for every start.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// The kubelet's directory.
    pub(crate) kubelet: PathBuf,
    /// Cache of what libvirt found out about QEMU, filled by `virt-launcher capabilities`.
    pub(crate) capabilities: PathBuf,
    pub(crate) host: Host,
    pub(crate) networks: Arc<Networks>,
    pub(crate) settings: Cache<Settings>,
}

/// Starts a guest. `adopt`: it runs, and only what it was started with is found out.
///
/// # Errors
/// [`Kind::Content`]: the guest cannot run as it is asked for; others: something may be better soon.
pub(crate) async fn launch(
    site: &Site,
    mut instance: VirtualMachineInstance,
    pod: Pod,
    attachments: Attachments,
    adopt: bool,
) -> Result<(Started, Network)> {
    let gone = || Error::new(Kind::Launcher, format!("pod {} has no directory", pod.name));
    let directory = Arc::new(PodDirectory::open(&site.kubelet, &pod.uid)?.ok_or_else(gone)?);
    let (mut talk, process) = Talk::open(&directory).await?;
    let site = site.clone();
    // Where the instance leaves it to the platform, the pod has the answer.
    instance.spec.domain.devices.log_serial_console.get_or_insert(pod.logs_console);
    let work = move || {
        let (launch, network) = prepare(&site, &instance, &pod, &attachments, &directory, &process, adopt)?;
        Ok::<_, Error>((launch, network, process.selinux_context()))
    };
    let prepared = tokio::task::spawn_blocking(work).await;
    let prepared = prepared.unwrap_or_else(|_| {
        Err(Error::new(
            Kind::System,
            "the start of a guest was aborted: the thread panicked; see the agent's log",
        ))
    });
    let (launch, network, context) = prepared?;
    if !adopt {
        let Answer::Launched { .. } = talk.launch(&launch).await? else {
            return Err(super::talk::unexpected());
        };
    }
    let started = Started {
        interfaces: network.statuses(&launch.interfaces),
        machine: launch.machine,
        cpu: launch.cpu,
        memory: launch.memory,
        accelerator: launch.accelerator,
        selinux_context: context
            .inspect_err(|error| tracing::warn!(error = error.chain(), "the status lacks selinuxContext"))
            .ok(),
    };
    Ok((started, network))
}

/// Everything but the conversation, on a thread that may wait.
fn prepare(
    site: &Site,
    instance: &VirtualMachineInstance,
    pod: &Pod,
    attachments: &Attachments,
    directory: &PodDirectory,
    launcher: &Process,
    adopt: bool,
) -> Result<(Launch, Network)> {
    let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
    let network = network::wire(
        &site.networks,
        &instance.spec,
        namespace,
        &instance.metadata.name,
        pod,
        directory,
        launcher,
    )?;
    let host = host(site, pod);
    if !adopt {
        if host.accelerator == Accelerator::Kvm {
            disks::give_device(launcher, "/dev/kvm")?;
        }
        if let Err(error) = give_capabilities(&site.capabilities, directory) {
            // Without them the launcher finds out by itself, in some seconds.
            tracing::warn!(
                pod = pod.name,
                error = error.chain(),
                "cannot give the launcher the cached capabilities: it probes QEMU itself, which takes seconds"
            );
        }
    }
    let host_devices = host_devices::given(&instance.spec, launcher)?;
    if !adopt && !host_devices.is_empty() {
        host_devices::open(&instance.spec, &host_devices, launcher)?;
    }
    let volumes = disks::of(instance, directory, pod, attachments, launcher)?;
    disks::kernel(instance, directory, pod, launcher)?;
    let objects = objects(pod, directory)?;
    let guest = guest(&instance.metadata);
    let made = Made {
        folder: place::PRIVATE.to_owned(),
        state: if pod.keeps_state { place::STATE } else { place::PRIVATE }.to_owned(),
        volumes,
        taps: network.taps(),
        host_devices,
        own_cpus: true,
        ..Made::default()
    };
    let (launch, findings) = resolve(&instance.spec, &guest, &host, &made, &objects, "spec");
    launch.map(|launch| (launch, network)).ok_or_else(|| invalid(&findings))
}

/// The node as guests of a pod find it.
fn host(site: &Site, pod: &Pod) -> Host {
    let mut host = site.host.clone();
    host.system.clone_from(&current(&site.settings).system);
    if !pod.has_device("kvm") {
        // The operator asked for no KVM: emulation is allowed, and the container has no device.
        host.accelerator = Accelerator::Tcg;
    }
    host
}

/// Identity of a guest: that of the VM which owns it, or its own.
fn guest(metadata: &ObjectMeta) -> Guest {
    let uid = metadata.uid.clone().unwrap_or_default();
    let owner = metadata.owner_references.first();
    let owner = owner.and_then(|owner| owner.get("uid")).and_then(|uid| uid.as_str());
    let identity = owner.unwrap_or(&uid).to_owned();
    Guest { metadata: metadata.clone(), smbios_uuid: identity.clone(), smbios_serial: identity, uid }
}

/// The disk `name` of a guest that runs, as its launcher is asked for it; its volume is `backend`.
///
/// # Errors
/// [`Kind::Content`]: it cannot be a disk of the guest.
pub(crate) fn disk(
    site: &Site,
    instance: &Instance,
    pod: &Pod,
    name: &str,
    backend: Backend,
) -> Result<Disk> {
    let mut spec = instance.spec.clone();
    spec.volumes.retain(|volume| volume.name == name);
    spec.networks.clear();
    // Of volumes that are left out.
    spec.access_credentials.clear();
    let devices = &mut spec.domain.devices;
    devices.disks.retain(|disk| disk.name == name);
    devices.interfaces.clear();
    devices.gpus.clear();
    devices.host_devices.clear();
    devices.autoattach_pod_interface = Some(false);
    let made = Made {
        folder: place::PRIVATE.to_owned(),
        state: place::PRIVATE.to_owned(),
        volumes: BTreeMap::from([(name.to_owned(), backend)]),
        ..Made::default()
    };
    let metadata = ObjectMeta {
        name: instance.name.clone(),
        namespace: Some(instance.namespace.clone()),
        uid: Some(instance.uid.clone()),
        ..ObjectMeta::default()
    };
    let (guest, objects) = (guest(&metadata), Objects::default());
    let (launch, findings) = resolve(&spec, &guest, &host(site, pod), &made, &objects, "spec");
    let disk = launch.and_then(|launch| launch.disks.into_iter().next());
    let mut disk = disk.ok_or_else(|| invalid(&findings))?;
    // The boot order and the I/O threads were decided at the start.
    disk.boot_order = None;
    disk.io_thread = None;
    Ok(disk)
}

/// The error for a guest's findings, by fields.
pub(super) fn invalid(findings: &[Finding]) -> Error {
    let errors = findings.iter().filter(|finding| finding.verdict == Verdict::Error);
    let errors: Vec<String> = errors.map(|finding| format!("{}: {}", finding.path, finding.text)).collect();
    Error::new(Kind::Content, errors.join("; "))
}

/// Secrets, ConfigMaps and tokens that the kubelet mounted into the pod: the pod's creator may read them, and the agent
/// needs no right to read any.
fn objects(pod: &Pod, directory: &PodDirectory) -> Result<Objects> {
    let (mut secrets, mut config_maps) = (BTreeMap::new(), BTreeMap::new());
    let metadata = |name: &str| ObjectMeta { name: name.to_owned(), ..ObjectMeta::default() };
    for (name, volume) in &pod.secrets {
        let Some(mounted) = directory.secret(volume)? else { continue };
        let data = content::entries(&mounted)?.into_iter();
        let data = data.map(|(key, value)| (key, Confidential(STANDARD.encode(value)))).collect();
        secrets.insert(name.clone(), Secret { metadata: metadata(name), data, ..Secret::default() });
    }
    for (name, volume) in &pod.config_maps {
        let Some(mounted) = directory.config_map(volume)? else { continue };
        let data = content::entries(&mounted)?.into_iter();
        let binary_data = data.map(|(key, value)| (key, STANDARD.encode(value))).collect();
        config_maps.insert(
            name.clone(),
            ConfigMap { metadata: metadata(name), binary_data, ..ConfigMap::default() },
        );
    }
    let mut accounts = BTreeMap::new();
    for (name, volume) in &pod.accounts {
        if let Some(mounted) = directory.projected(volume)? {
            accounts.insert(name.clone(), content::entries(&mounted)?);
        }
    }
    Ok(Objects { secrets, config_maps, accounts: Some(accounts), complete: true })
}

/// Copies what libvirt found out about QEMU on this node into the launcher's directory, where its libvirt looks before it
/// finds out by itself; libvirt checks that it fits.
fn give_capabilities(cache: &Path, pod: &PodDirectory) -> Result<()> {
    let private = pod.need_empty_dir(PRIVATE)?;
    let (Some(cache), Some(target)) = (dir::Dir::find(cache)?, private.dir(CAPABILITIES)?) else {
        return Ok(());
    };
    let mut left = FILES_MAX;
    for entry in cache.entries()?.into_iter().filter(|entry| entry.is_dir) {
        let Some(folder) = cache.dir(&entry.name)? else { continue };
        for file in folder.entries()?.into_iter().filter(|file| file.name.ends_with(".xml")).take(left) {
            left = left.saturating_sub(1);
            if let Some(content) = folder.read(&file.name, FILE_MAX)? {
                target.replace(&file.name, &content, 0o644, Durability::Volatile)?;
                target.chown(&file.name, Owner::same(QEMU_ID))?;
            }
        }
    }
    Ok(())
}
