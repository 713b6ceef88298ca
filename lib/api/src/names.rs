//! Paths, ports and metric names of the contracts, each once. They are upstream CDI's; a controller that knows them
//! works with ours.

/// Folder at which a Filesystem target is mounted.
pub const DATA_DIR: &str = "/data";
/// The disk in a Filesystem target, below [`DATA_DIR`].
pub const DISK_FILE: &str = "disk.img";
/// The device node of a Block target. Its existence alone decides the mode.
pub const BLOCK_DEVICE: &str = "/dev/cdi-block-volume";
/// Folder at which a scratch volume is mounted, if there is one.
pub const SCRATCH_DIR: &str = "/scratch";
/// File that becomes the container's termination message.
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// Longest termination message in bytes.
pub const TERMINATION_LOG_MAX: usize = 4096;
/// Folder of secret extra headers: one folder per header Secret, one header per non-dot file.
pub const SECRET_HEADERS_DIR: &str = "/extraheaders";
/// Folder at which certificates of a proxy are mounted.
pub const PROXY_CERT_DIR: &str = "/proxycerts/";
/// Where a GCS credentials Secret is mounted.
pub const GOOGLE_CREDENTIALS: &str = "/google/credentials.json";
/// Environment: the folder below which the contract's paths are looked for, where there is no pod. Ours.
pub const ROOT_VARIABLE: &str = "FERROVIRT_IMPORTER_ROOT";
/// Environment: the port of the importer's metrics server, in place of [`METRICS_PORT`]; 0: any. Ours.
pub const METRICS_PORT_VARIABLE: &str = "FERROVIRT_IMPORTER_METRICS_PORT";
/// Environment, when set: the importer prints its progress on standard output, in per cent, a line for each change. Ours.
pub const PROGRESS_VARIABLE: &str = "FERROVIRT_IMPORTER_PROGRESS";
/// Environment: the folder below which an upload server looks for the contract's paths, where there is no pod. Ours.
pub const UPLOAD_ROOT_VARIABLE: &str = "FERROVIRT_UPLOADSERVER_ROOT";
/// Environment: the folder below which the sending side of a clone looks for the contract's paths, where there is no pod.
/// Ours.
pub const CLONE_ROOT_VARIABLE: &str = "FERROVIRT_CLONE_SOURCE_ROOT";
/// Environment: the port of that program's metrics server, in place of [`METRICS_PORT`]; 0: any. Ours.
pub const CLONE_METRICS_PORT_VARIABLE: &str = "FERROVIRT_CLONE_SOURCE_METRICS_PORT";
/// Environment: that program's longest wait for the answer once everything is sent, such as `15m`. Ours.
pub const CLONE_ANSWER_TIMEOUT_VARIABLE: &str = "FERROVIRT_CLONE_SOURCE_ANSWER_TIMEOUT";
/// Environment: a file with the addresses of servers for an upload proxy without a cluster's DNS: lines of an address with
/// its port and a name. Ours.
pub const PROXY_HOSTS_VARIABLE: &str = "FERROVIRT_UPLOADPROXY_HOSTS";
/// Owner and group of a disk written under the environment contract: qemu.
pub const QEMU_ID: u32 = 107;
/// Mode of a disk written under the environment contract.
pub const DISK_MODE: u32 = 0o660;

/// Port of the metrics server (https, self-signed).
pub const METRICS_PORT: u16 = 8443;
/// Port of an upload server.
pub const UPLOAD_PORT: u16 = 8443;
/// Path of the metrics.
pub const METRICS_PATH: &str = "/metrics";
/// Path that answers 200 while the process lives.
pub const HEALTH_PATH: &str = "/healthz";
/// Counter 0–100; its only label is [`OWNER_LABEL`].
pub const IMPORT_PROGRESS: &str = "kubevirt_cdi_import_progress_total";
/// Label of the progress metrics: uid of the DataVolume or target PVC.
pub const OWNER_LABEL: &str = "ownerUID";

/// User-Agent of image downloads; some servers allow-list it.
pub const USER_AGENT: &str = "cdi-golang-importer";
