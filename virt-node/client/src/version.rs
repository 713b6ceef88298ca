//! `version`: this program's version and that of the cluster's virtualization API.

use serde_json::{Value, json};

use crate::error::{Error, Kind, Result, failed};
use crate::output::Format;
use crate::site::{Site, text};

const GROUP: &str = "/apis/subresources.kubevirt.io";

fn client() -> Value {
    json!({"gitVersion": format!("v{}", env!("CARGO_PKG_VERSION")), "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)})
}

/// Reads the versions; without a site, this program's alone.
///
/// # Errors
/// The cluster does not serve the virtualization API.
pub(crate) async fn version(site: Option<&Site>, format: Format) -> Result<String> {
    let server = match site {
        Some(site) => Some(server(site).await?),
        None => None,
    };
    let client = client();
    if format == Format::Json {
        let mut all = json!({"clientVersion": client});
        if let Some(server) = server {
            all["serverVersion"] = server;
        }
        return Ok(format!("{all:#}\n"));
    }
    let line = |which: &str, version: &Value| {
        let keys = [("GitVersion", "/gitVersion"), ("GitCommit", "/gitCommit"), ("Platform", "/platform")];
        let fields: Vec<String> =
            keys.iter().map(|(name, path)| format!("{name}:\"{}\"", text(version, path))).collect();
        format!("{which} Version: version.Info{{{}}}\n", fields.join(", "))
    };
    let server = server.map(|server| line("Server", &server)).unwrap_or_default();
    Ok(line("Client", &client) + &server)
}

/// As virtctl: the preferred version of the group, then its `version`.
async fn server(site: &Site) -> Result<Value> {
    let what = "cannot read the version of the virtualization API";
    let group = site.read(GROUP).await.map_err(failed(what))?;
    let preferred = text(&group, "/preferredVersion/groupVersion");
    if preferred.is_empty() || preferred.contains("..") {
        return Err(Error::new(
            Kind::System,
            "the API server names no preferred version of subresources.kubevirt.io",
        ));
    }
    site.read(&format!("/apis/{preferred}/version")).await.map_err(failed(what))
}
