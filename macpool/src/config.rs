//! The program's configuration, and the names of the objects it works with: upstream's, and ours.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::namespaces::Policy;
use crate::tls::TlsProfile;
use api::net::Range;
use cluster::{Key, Resource, Scope};
use serve::authority::Intervals;

/// VirtualMachines.
pub(crate) const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
/// VirtualMachineInstances.
pub(crate) const INSTANCES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances");
/// Pods.
pub(crate) const PODS: Resource = Resource::namespaced("", "v1", "pods");
/// Namespaces.
pub(crate) const NAMESPACES: Resource = Resource::cluster("", "v1", "namespaces");
/// ConfigMaps.
pub(crate) const MAPS: Resource = Resource::namespaced("", "v1", "configmaps");
/// Secrets.
pub(crate) const SECRETS: Resource = Resource::namespaced("", "v1", "secrets");
/// Events.
pub(crate) const EVENTS: Resource = Resource::namespaced("", "v1", "events");
/// MutatingWebhookConfigurations.
pub(crate) const WEBHOOKS: Resource =
    Resource::cluster("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations");

/// The MutatingWebhookConfiguration.
pub(crate) const CONFIGURATION: &str = "kubemacpool-mutator";
/// Its webhooks, for machines and for pods.
pub(crate) const HOOKS: [&str; 2] = ["mutatevirtualmachines.kubemacpool.io", "mutatepods.kubemacpool.io"];
/// The Service in front of the webhook.
pub(crate) const SERVICE: &str = "kubemacpool-service";
/// The Secret of its certificates.
pub(crate) const SECRET: &str = "kubemacpool-service";
/// The ConfigMap of the range.
pub(crate) const RANGE_MAP: &str = "kubemacpool-mac-range-config";
/// The ConfigMap of blocks, which replicas share.
pub(crate) const BLOCKS_MAP: &str = "kubemacpool-blocks";

/// The duty of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything. Where addresses are given out of at first; the ConfigMap's range follows.
    Addresses(Range),
    /// Certificates are all that is kept.
    Certificates,
}

/// The program's configuration.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Its namespace.
    pub(crate) namespace: String,
    /// The replica's name.
    pub(crate) name: String,
    /// The duty of the process.
    pub(crate) duty: Role,
    /// How long an address is kept for an object that is not written.
    pub(crate) wait: Duration,
    /// Policy for duplicates in namespaces without one.
    pub(crate) policy: Policy,
    /// Where reviews come to.
    pub(crate) webhook: SocketAddr,
    /// Where other replicas come to.
    pub(crate) peers: SocketAddr,
    /// How other replicas reach us.
    pub(crate) address: String,
    /// Where metrics are served, if anywhere.
    pub(crate) metrics: Option<SocketAddr>,
    /// TLS that the webhook and the metrics offer.
    pub(crate) offer: TlsProfile,
    /// Labels of objects that are made.
    pub(crate) labels: BTreeMap<String, String>,
    /// Ages at which certificates are replaced.
    pub(crate) intervals: Intervals,
}

impl Config {
    /// The object of this name in our namespace.
    pub(crate) fn key(&self, name: &str) -> Key {
        Key::new(&self.namespace, name)
    }

    /// The object of this name in our namespace, to list and to watch.
    pub(crate) fn scope(&self, name: &str) -> Scope {
        Scope::all().namespace(&self.namespace).name(name)
    }

    /// The names by which the webhook is called; other replicas call the third.
    pub(crate) fn hosts(&self) -> [String; 4] {
        let namespace = &self.namespace;
        [
            SERVICE.to_owned(),
            format!("{SERVICE}.{namespace}"),
            format!("{SERVICE}.{namespace}.svc"),
            format!("{SERVICE}.{namespace}.svc.cluster.local"),
        ]
    }
}
