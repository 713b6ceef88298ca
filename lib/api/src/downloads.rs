//! The contract of client downloads: port, Service and paths, upstream's. The operator links to them where a console
//! lists downloads; the upload proxy's process serves them.
//!
//! Not here: HTTP, files.

/// Port of the server, plain HTTP: what makes it reachable from outside adds TLS.
pub const PORT: u16 = 8080;
/// Service, Route and Deployment upstream.
pub const SERVICE: &str = "hyperconverged-cluster-cli-download";
/// Path of the probe.
pub const HEALTH_PATH: &str = "/health";

/// A download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download {
    /// Path of the URL, without a leading slash; also the file's path in a volume of supplied clients.
    pub path: &'static str,
    /// The platform, for people.
    pub platform: &'static str,
}

/// All downloads.
pub const ALL: [Download; 7] = [
    Download { path: "amd64/linux/virtctl.tar.gz", platform: "Linux for x86_64" },
    Download { path: "arm64/linux/virtctl.tar.gz", platform: "Linux for ARM 64" },
    Download { path: "s390x/linux/virtctl.tar.gz", platform: "Linux for IBM Z" },
    Download { path: "amd64/mac/virtctl.zip", platform: "Mac for x86_64" },
    Download { path: "arm64/mac/virtctl.zip", platform: "Mac for ARM 64" },
    Download { path: "amd64/windows/virtctl.zip", platform: "Windows for x86_64" },
    Download { path: "arm64/windows/virtctl.zip", platform: "Windows for ARM 64" },
];

/// The download that the images bring: the project's own client, named virtctl in its archive.
pub const OWN: &str = ALL[0].path;
