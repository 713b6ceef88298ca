//! The lists of groups, and the group subresources.kubevirt.io itself: discovery, version, health, and where its OpenAPI
//! descriptions are ([`super::openapi`]). Served without authorization, as the API server and clients need them before they
//! authenticate.

use http::StatusCode;
use serde_json::{Value, json};
use serve::route::{Router, json, text};
use sha2::{Digest, Sha256};

use super::group::{GROUP, VERSIONS};
use super::openapi::Served;
use super::{dump, graph, instance, machine, openapi, refused, status, upload, volume};

/// The version that virtctl compares with its own.
const LIKE: &str = "v1.9.0";

fn group() -> Value {
    let version = |name: &str| json!({"groupVersion": format!("{GROUP}/{name}"), "version": name});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": VERSIONS.map(version),
        "preferredVersion": version(VERSIONS[0])})
}

/// All subresources, from the tables of those that answer them.
pub(super) fn served() -> Vec<Served> {
    let one = |name: String, read: bool| Served { name, read, namespaced: true };
    let machines = machine::VERBS.iter().map(|verb| one(format!("virtualmachines/{}", verb.name()), false));
    let instances = instance::VERBS
        .iter()
        .map(|verb| one(format!("virtualmachineinstances/{}", verb.name), verb.stream || verb.read));
    let forwards =
        ["virtualmachines", "virtualmachineinstances"].map(|kind| one(format!("{kind}/portforward"), true));
    let plain = ["version", "guestfs", "healthz"].map(|name| Served {
        name: name.to_owned(),
        read: true,
        namespaced: false,
    });
    let volumes = volume::TARGETS
        .into_iter()
        .flat_map(|target| volume::VERBS.map(|(_, path)| one(format!("{}/{path}", target.plural()), false)));
    let refused =
        refused::ROWS.iter().map(|row| one(format!("virtualmachineinstances/{}", row.name), row.read));
    let graphs = graph::PLURALS.map(|plural| one(format!("{plural}/objectgraph"), true));
    let dumps = dump::VERBS.map(|verb| one(format!("virtualmachines/{}", verb.name()), false));
    let others =
        [("virtualmachines/expand-spec", true), ("virtualmachines/why", true), ("expand-vm-spec", false)]
            .map(|(name, read)| one(name.to_owned(), read));
    machines
        .chain(volumes)
        .chain(dumps)
        .chain(refused)
        .chain(graphs)
        .chain(others)
        .chain(instances)
        .chain(forwards)
        .chain(plain)
        .collect()
}

fn resources(served: &[Served], version: &str) -> Value {
    let one = |one: &Served| json!({"name": one.name, "singularName": "", "namespaced": one.namespaced, "kind": "", "verbs": [one.verb()]});
    let all: Vec<Value> = served.iter().map(one).collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{version}"), "resources": all})
}

/// The paths of this server.
fn root() -> Value {
    let base = [
        "/apis".to_owned(),
        format!("/apis/{GROUP}"),
        "/healthz".to_owned(),
        "/openapi/v2".to_owned(),
        "/openapi/v3".to_owned(),
    ];
    let versions = VERSIONS.map(|version| format!("/apis/{GROUP}/{version}"));
    json!({"paths": base.into_iter().chain(versions).collect::<Vec<_>>()})
}

fn version() -> Value {
    json!({"gitVersion": format!("{LIKE}+ferrovirt-{}", env!("CARGO_PKG_VERSION")), "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "", "goVersion": "", "compiler": "rustc", "platform": "linux"})
}

/// Image that `virtctl guestfs` runs: upstream's, of the release that is imitated.
fn guestfs() -> Value {
    json!({"registry": "quay.io/kubevirt", "tag": LIKE, "digest": "", "imagePrefix": "", "gsImage": ""})
}

/// Adds these routes.
pub(super) fn routes(router: Router) -> Router {
    let served = served();
    let mut fixed: Vec<(String, Value)> = vec![
        (
            "/apis".to_owned(),
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(), upload::listed()]}),
        ),
        (format!("/apis/{GROUP}"), group()),
        ("/openapi/v2".to_owned(), openapi::v2(&served)),
        ("/".to_owned(), root()),
    ];
    let mut described = serde_json::Map::from_iter([upload::described()]);
    for name in VERSIONS {
        let base = format!("apis/{GROUP}/{name}");
        fixed.push((format!("/{base}"), resources(&served, name)));
        fixed.push((format!("/{base}/version"), version()));
        fixed.push((format!("/{base}/guestfs"), guestfs()));
        let description = openapi::v3(&served, name);
        // Clients keep a description by this address.
        let hash = Sha256::digest(description.to_string());
        let hash = hash.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let at = json!({"serverRelativeURL": format!("/openapi/v3/{base}?hash={hash}")});
        fixed.push((format!("/openapi/v3/{base}"), description));
        described.insert(base, at);
    }
    fixed.push(("/openapi/v3".to_owned(), json!({"paths": described})));
    let mut router = router.get("/healthz", |_| async { text(StatusCode::OK, "ok") });
    for name in VERSIONS {
        router = router.get(&format!("/apis/{GROUP}/{name}/healthz"), |_| async {
            json(StatusCode::OK, r#"{"apiserver":{"connectivity":"ok"}}"#)
        });
    }
    for name in VERSIONS {
        for verb in ["start", "stop", "dump"] {
            let text =
                "the cluster profiler is not available: \"ClusterProfiler\" feature gate must be enabled";
            router = router
                .get(&format!("/apis/{GROUP}/{name}/{verb}-cluster-profiler"), move |_| async move {
                    status::answer(StatusCode::FORBIDDEN, "", text)
                });
        }
    }
    for (path, document) in fixed {
        let document = document.to_string();
        router = router.get(&path, move |_| {
            let document = document.clone();
            async move { json(StatusCode::OK, document) }
        });
    }
    router
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_served_subresource_is_discovered() {
        let list = resources(&served(), "v1");
        assert_eq!(list["groupVersion"], "subresources.kubevirt.io/v1");
        let names: Vec<&str> =
            list["resources"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        for name in [
            "virtualmachines/start",
            "virtualmachines/stop",
            "virtualmachines/restart",
            "virtualmachines/expand-spec",
            "expand-vm-spec",
            "virtualmachines/addvolume",
            "virtualmachines/why",
            "virtualmachineinstances/sev/setupsession",
            "virtualmachineinstances/console",
            "virtualmachineinstances/vnc",
            "virtualmachineinstances/pause",
            "virtualmachineinstances/portforward",
            "version",
        ] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        assert_eq!(group()["preferredVersion"]["groupVersion"], "subresources.kubevirt.io/v1");
    }
}
