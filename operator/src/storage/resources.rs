//! Resources that the storage controllers read and write.

use cluster::Resource;

use super::action::Kind;

/// DataVolumes.
pub const DATA_VOLUMES: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datavolumes");
/// StorageProfiles.
pub const PROFILES: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "storageprofiles");
/// CDIConfig.
pub const CONFIGS: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdiconfigs");
/// DataSources.
pub const DATA_SOURCES: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datasources");
/// DataImportCrons.
pub const CRONS: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "dataimportcrons");
/// ObjectTransfers.
pub const TRANSFERS: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "objecttransfers");
/// Claims.
pub const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
/// Volumes.
pub const VOLUMES: Resource = Resource::cluster("", "v1", "persistentvolumes");
/// Pods.
pub const PODS: Resource = Resource::namespaced("", "v1", "pods");
/// Services.
pub const SERVICES: Resource = Resource::namespaced("", "v1", "services");
/// Secrets.
pub const SECRETS: Resource = Resource::namespaced("", "v1", "secrets");
/// ConfigMaps.
pub const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "configmaps");
/// Events.
pub const EVENTS: Resource = Resource::namespaced("", "v1", "events");
/// Storage classes.
pub const CLASSES: Resource = Resource::cluster("storage.k8s.io", "v1", "storageclasses");
/// Room for volumes on nodes.
pub const CAPACITIES: Resource = Resource::namespaced("storage.k8s.io", "v1", "csistoragecapacities");
/// CSI drivers.
pub const DRIVERS: Resource = Resource::cluster("storage.k8s.io", "v1", "csidrivers");
/// The CSI drivers of nodes.
pub const CSI_NODES: Resource = Resource::cluster("storage.k8s.io", "v1", "csinodes");
/// Contents of snapshots.
pub const CONTENTS: Resource = Resource::cluster("snapshot.storage.k8s.io", "v1", "volumesnapshotcontents");
/// Snapshots.
pub const SNAPSHOTS: Resource = Resource::namespaced("snapshot.storage.k8s.io", "v1", "volumesnapshots");
/// Snapshot classes.
pub const SNAPSHOT_CLASSES: Resource =
    Resource::cluster("snapshot.storage.k8s.io", "v1", "volumesnapshotclasses");
/// Image streams of OpenShift.
pub const IMAGE_STREAMS: Resource = Resource::namespaced("image.openshift.io", "v1", "imagestreams");
/// Grants of references from other namespaces.
pub const REFERENCE_GRANTS: Resource =
    Resource::namespaced("gateway.networking.k8s.io", "v1beta1", "referencegrants");
/// The kinds that fill claims, for volume-data-source-validator.
pub const POPULATORS: Resource = Resource::cluster("populator.storage.k8s.io", "v1beta1", "volumepopulators");
/// Definitions of kinds.
pub const DEFINITIONS: Resource =
    Resource::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions");
/// Networks of Services.
pub const SERVICE_NETWORKS: Resource = Resource::cluster("networking.k8s.io", "v1", "servicecidrs");
/// CDI.
pub const CDIS: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdis");

/// The resource of a data source's kind.
pub fn source(kind: &str) -> Option<Resource> {
    let plural = match kind {
        super::names::IMPORT_SOURCE => "volumeimportsources",
        super::names::UPLOAD_SOURCE => "volumeuploadsources",
        super::names::CLONE_SOURCE => "volumeclonesources",
        _ => return None,
    };
    Some(Resource::namespaced("cdi.kubevirt.io", "v1beta1", plural))
}

/// The resource of a kind that plans delete.
pub fn of(kind: Kind) -> Resource {
    match kind {
        Kind::Claim => CLAIMS,
        Kind::Pod => PODS,
        Kind::Service => SERVICES,
        Kind::Secret => SECRETS,
        Kind::Snapshot => SNAPSHOTS,
    }
}
