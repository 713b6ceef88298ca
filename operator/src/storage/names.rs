//! Names that clients of the storage API read and write: annotations, labels, and names of derived objects. They are
//! upstream CDI's (`pkg/controller/common`, `pkg/common`).

/// Group of the storage kinds.
pub const GROUP: &str = "cdi.kubevirt.io";
/// `apiVersion` of the storage kinds.
pub const API_VERSION: &str = api::cdi::API_VERSION;
/// Kind of a data source that imports.
pub const IMPORT_SOURCE: &str = "VolumeImportSource";
/// Kind of a data source that waits for an upload.
pub const UPLOAD_SOURCE: &str = "VolumeUploadSource";
/// Kind of a data source that clones.
pub const CLONE_SOURCE: &str = "VolumeCloneSource";

/// Value of label `app` on everything that belongs to a transfer.
pub const APP: &str = "containerized-data-importer";
/// Label: which worker a pod is.
pub const WORKER: &str = "cdi.kubevirt.io";
/// Value of [`WORKER`] for importers.
pub const IMPORTER: &str = "importer";
/// Value of [`WORKER`] for upload servers, and the name of their container.
pub const UPLOAD_SERVER: &str = "cdi-upload-server";
/// Value of [`WORKER`] for the sending pods of clones, and the name of their container.
pub const CLONE_SOURCE_POD: &str = "cdi-clone-source";
/// Annotation of a clone's helpers: `namespace/name` of the claim that they are for. Ours.
pub const CLONE_FOR: &str = "ferrovirt.io/clone-for";
/// Label that keeps backup tools away from prime claims.
pub const EXCLUDED_FROM_BACKUP: &str = "velero.io/exclude-from-backup";
/// Label with value `disabled` on Filesystem claims: a disk image fills its volume, which is no reason for an alert.
pub const FILLING_UP: &str = "alerts.k8s.io/KubePersistentVolumeFillingUp";

/// Annotation of pods that only bind an instance's claims: they end at once and touch no volume.
pub const PROVISIONS: &str = "kubevirt.io/ephemeral-provisioning";
/// Annotation of a DataVolume: `true` when another program fills the claim.
pub const EXTERNAL_POPULATION: &str = api::cdi::EXTERNAL_POPULATION;
/// Annotation of the scheduler: node of the pod that uses a claim.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

macro_rules! annotations {
    ($($(#[$text:meta])* $name:ident = $value:literal;)+) => {
        $($(#[$text])* pub const $name: &str = concat!("cdi.kubevirt.io/", $value);)+
    };
}

annotations! {
    /// Bind a claim without a pod that uses it. The value does not matter.
    IMMEDIATE = "storage.bind.immediate.requested";
    /// `true` or `false`: whether a DataVolume's claim is filled by a populator.
    USE_POPULATOR = "storage.usePopulator";
    /// Claim that the worker writes to while a populator runs.
    PRIME = "storage.populator.pvcPrime";
    /// On a prime claim: kind of the data source.
    POPULATOR_KIND = "storage.populator.kind";
    /// Progress of a populator.
    PROGRESS = "storage.populator.progress";
    /// Phase of the worker pod.
    POD_PHASE = "storage.pod.phase";
    /// `true` while the worker pod is ready.
    POD_READY = "storage.pod.ready";
    /// Restarts of the worker.
    POD_RESTARTS = "storage.pod.restarts";
    /// `false` while the scheduler finds no node for the worker.
    POD_SCHEDULABLE = "storage.pod.schedulable";
    /// `true`: worker pod and prime claim stay after the end.
    RETAIN = "storage.pod.retainAfterCompletion";
    /// Priority class of worker pods.
    PRIORITY_CLASS = "storage.pod.priorityclassname";
    /// ServiceAccount of worker pods.
    SERVICE_ACCOUNT = "storage.pod.serviceAccountName";
    /// Name of the importer's pod.
    IMPORT_POD = "storage.import.importPodName";
    /// `true`: the import cannot succeed by trying again.
    FATAL = "storage.import.fatalError";
    /// `http`, `s3`, `gcs`, `registry`, `none`: a claim that is filled without a populator.
    IMPORT_SOURCE_NAME = "storage.import.source";
    /// URL of that import.
    IMPORT_ENDPOINT = "storage.import.endpoint";
    /// `true`: a clone's size was detected, and is not compared with the source's.
    PERMISSIVE_CLONE = "permissiveClone";
    /// `kubevirt` or `archive`.
    CONTENT_TYPE = "storage.contentType";
    /// Whether all blocks are to be reserved.
    PREALLOCATION_REQUESTED = "storage.preallocation.requested";
    /// Whether all blocks were reserved.
    PREALLOCATION = "storage.preallocation";
    /// Whether the worker runs.
    RUNNING = "storage.condition.running";
    /// Text for [`RUNNING`].
    RUNNING_MESSAGE = "storage.condition.running.message";
    /// Reason for [`RUNNING`].
    RUNNING_REASON = "storage.condition.running.reason";
    /// `false`: another program that fills the claim waits for a volume.
    BOUND = "storage.condition.bound";
    /// Text for [`BOUND`].
    BOUND_MESSAGE = "storage.condition.bound.message";
    /// Reason for [`BOUND`].
    BOUND_REASON = "storage.condition.bound.reason";
    /// Whether the sending worker of a clone runs.
    SOURCE_RUNNING = "storage.condition.source.running";
    /// Text for [`SOURCE_RUNNING`].
    SOURCE_RUNNING_MESSAGE = "storage.condition.source.running.message";
    /// Reason for [`SOURCE_RUNNING`].
    SOURCE_RUNNING_REASON = "storage.condition.source.running.reason";
    /// On a claim: name of the DataVolume that it already has the content of.
    POPULATED_FOR = "storage.populatedFor";
    /// On a DataVolume: name of the claim that already has its content.
    PREPOPULATED = "storage.prePopulated";
    /// On a DataVolume: look for a volume that is reserved for its claim before anything is transferred.
    CHECK_STATIC_VOLUME = "storage.checkStaticVolume";
    /// On a claim: names of volumes one of which it has to bind to, as JSON.
    VOLUME_LIST = "storage.persistentVolumeList";
    /// On a claim: id of the DataVolume it was made for.
    CREATED_FOR = "createdForDataVolume";
    /// On a DataVolume: `true` when a claim of its name may be adopted.
    ALLOW_ADOPTION = "allowClaimAdoption";
    /// Token that a clone from another namespace was granted by.
    CLONE_TOKEN = "storage.clone.token";
    /// The same, made to last by the controller.
    EXTENDED_CLONE_TOKEN = "storage.extended.clone.token";
    /// `csi-clone`, `snapshot` or `copy`: how a claim was cloned.
    CLONE_TYPE = "cloneType";
    /// Why a clone copies although the storage could clone.
    CLONE_FALLBACK = "cloneFallbackReason";
    /// Phase of a clone.
    CLONE_PHASE = "clonePhase";
    /// Why a clone waits, while it does.
    CLONE_ERROR = "cloneError";
    /// Finalizer of a claim that is cloned from another namespace: its helpers there are removed with it.
    CLONE_FINALIZER = "clonePopulator";
    /// Label of a clone's helpers: id of the claim that they are for.
    OWNED_BY = "OwnedByUID";
    /// Label of the sending pod of a clone.
    CLONE_ID = "storage.clone.cloneUniqeId";
    /// Namespace of a clone's source, when it is another one.
    SOURCE_NAMESPACE = "dataSourceNamespace";
    /// On importer pods.
    CREATED_BY_CONTROLLER = "storage.createdByController";
    /// On upload server pods.
    CREATED_BY_UPLOAD = "storage.createdByUploadController";
    /// On a claim that waits for an upload.
    UPLOAD_TARGET = "storage.upload.target";
}

/// Label of pods that poll the source of a DataImportCron.
pub const POLLER: &str = "cdi.kubevirt.io/dataImportCronPoller";

/// Name of the claim that a populator fills before it takes the place of the target.
pub fn prime(target_uid: &str) -> String {
    format!("prime-{target_uid}")
}

/// Name of the importer's pod for a claim: at most 63 characters, as it becomes a host name.
pub fn importer_pod(claim: &str) -> String {
    fitted("importer", claim)
}

/// `PREFIX-NAME`, cut and marked with a hash when it is longer than 63 characters.
pub fn fitted(prefix: &str, name: &str) -> String {
    /// Longest label of a host name.
    const LONGEST: usize = 63;
    let whole = format!("{prefix}-{}", name.replace('.', "-"));
    if whole.len() <= LONGEST {
        return if whole.contains('.') { whole.replace('.', "-") } else { whole };
    }
    let mark = digest(&whole, 8);
    let front: String = whole.chars().take(LONGEST - 1 - mark.len()).collect();
    format!("{}-{mark}", front.trim_end_matches('-'))
}

/// The first characters of a text's SHA-256 in hexadecimal digits.
pub fn digest(text: &str, length: usize) -> String {
    use sha2::{Digest, Sha256};
    let hash = Sha256::digest(text.as_bytes());
    let mut digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(length);
    digits
}

/// Whether a label follows content from a source to its copies: instance type defaults, and everything of KubeVirt's.
pub fn follows_content(label: &str) -> bool {
    let Some((domain, name)) = label.split_once('/') else { return false };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let ours = match domain.strip_suffix(".kubevirt.io") {
        Some(front) => !front.is_empty() && front.chars().all(word),
        None => domain == "kubevirt.io",
    };
    ours && !name.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names_fit_a_host_name_and_differ() {
        assert_eq!(importer_pod("disk"), "importer-disk");
        assert_eq!(importer_pod("a.b"), "importer-a-b");
        let (one, other) = (importer_pod(&"x".repeat(60)), importer_pod(&"x".repeat(61)));
        assert!(one.len() <= 63 && other.len() <= 63 && one != other, "{one} {other}");
        assert_eq!(importer_pod(&prime("9d1b7f52-3c1e-4f7b-8a44-0d6a7a1a2b3c")).len(), 9 + 6 + 36);
    }

    #[test]
    fn labels_of_content_follow_it() {
        for (label, follows) in [
            ("instancetype.kubevirt.io/default-instancetype", true),
            ("kubevirt.io/dynamic-credentials-support", true),
            ("template.kubevirt.io/x", true),
            ("cdi.kubevirt.io/dataImportCron", true),
            ("a-b.kubevirt.io/x", false),
            ("kubevirt.io/", false),
            ("notkubevirt.io/x", false),
            (".kubevirt.io/x", false),
            ("app", false),
        ] {
            assert_eq!(follows_content(label), follows, "{label}");
        }
    }
}
