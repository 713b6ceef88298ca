//! The metrics page as CDI's controller reads it: over the pod network, by TLS that is not verified.

use std::sync::LazyLock;
use std::time::Duration;

use reqwest::Client;

use crate::importer::CLUSTER;
use crate::importer::pod::Running;

static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    // One provider for all TLS of the process; a second call changes nothing.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let client = Client::builder().tls_danger_accept_invalid_certs(true).no_proxy();
    client.timeout(Duration::from_secs(2)).build().unwrap()
});

/// The page, if it is served now.
pub(crate) fn page(running: &Running<'_>) -> Option<String> {
    let url = format!("https://{}:8443/metrics", running.address()?);
    CLUSTER.run(async { CLIENT.get(url).send().await.ok()?.text().await.ok() })
}

/// The value of a metric, with its labels as they are written.
pub(crate) fn value(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}
