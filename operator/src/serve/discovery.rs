//! The lists of groups, and the group subresources.kubevirt.io itself: discovery, OpenAPI, version, health. Served without
//! authorization, as the API server and clients need them before they authenticate.

use http::StatusCode;
use serde_json::{Value, json};
use serve::route::{Router, json, text};

use super::{dump, graph, instance, machine, refused, status, upload, volume};

/// The group.
pub(super) const GROUP: &str = "subresources.kubevirt.io";
/// Its versions, the preferred one first.
pub(super) const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];
/// The version that virtctl compares with its own.
const LIKE: &str = "v1.9.0";

fn group() -> Value {
    let version = |name: &str| json!({"groupVersion": format!("{GROUP}/{name}"), "version": name});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": VERSIONS.map(version),
        "preferredVersion": version(VERSIONS[0])})
}

fn resources(version: &str) -> Value {
    let one = |name: String, verb: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "", "verbs": [verb]});
    let machines =
        machine::VERBS.iter().map(|verb| one(format!("virtualmachines/{}", verb.name()), "update"));
    let instances = instance::VERBS.iter().map(|verb| {
        one(
            format!("virtualmachineinstances/{}", verb.name),
            if verb.stream || verb.read { "get" } else { "update" },
        )
    });
    let forwards =
        ["virtualmachines", "virtualmachineinstances"].map(|kind| one(format!("{kind}/portforward"), "get"));
    let plain = ["version", "guestfs", "healthz"].map(
        |name| json!({"name": name, "singularName": "", "namespaced": false, "kind": "", "verbs": ["get"]}),
    );
    let volumes = volume::TARGETS.into_iter().flat_map(|target| {
        volume::VERBS.map(|(_, path)| one(format!("{}/{path}", target.plural()), "update"))
    });
    let refused = refused::ROWS
        .iter()
        .map(|row| one(format!("virtualmachineinstances/{}", row.name), if row.read { "get" } else { "update" }));
    let graphs = graph::PLURALS.map(|plural| one(format!("{plural}/objectgraph"), "get"));
    let dumps = dump::VERBS.map(|verb| one(format!("virtualmachines/{}", verb.name()), "update"));
    let others = [
        ("virtualmachines/expand-spec", "get"),
        ("virtualmachines/why", "get"),
        ("expand-vm-spec", "update"),
    ]
    .map(|(name, verb)| one(name.to_owned(), verb));
    let all: Vec<Value> = machines
        .chain(volumes)
        .chain(dumps)
        .chain(refused)
        .chain(graphs)
        .chain(others)
        .chain(instances)
        .chain(forwards)
        .chain(plain)
        .collect();
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

/// A description without paths: the API server merges it into its own and needs it to be valid, not complete.
fn openapi_v2() -> Value {
    json!({"swagger": "2.0", "info": {"title": GROUP, "version": VERSIONS[0]}, "paths": {}, "definitions": {}})
}

fn openapi_v3(version: &str) -> Value {
    json!({"openapi": "3.0.0", "info": {"title": GROUP, "version": version}, "paths": {}, "components": {}})
}

/// Adds these routes.
pub(super) fn routes(router: Router) -> Router {
    let mut fixed: Vec<(String, Value)> = vec![
        (
            "/apis".to_owned(),
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(), upload::listed()]}),
        ),
        (format!("/apis/{GROUP}"), group()),
        ("/openapi/v2".to_owned(), openapi_v2()),
        ("/".to_owned(), root()),
    ];
    let mut described = serde_json::Map::from_iter([upload::described()]);
    for name in VERSIONS {
        let base = format!("apis/{GROUP}/{name}");
        fixed.push((format!("/{base}"), resources(name)));
        fixed.push((format!("/{base}/version"), version()));
        fixed.push((format!("/{base}/guestfs"), guestfs()));
        fixed.push((format!("/openapi/v3/{base}"), openapi_v3(name)));
        let at =
            json!({"serverRelativeURL": format!("/openapi/v3/{base}?hash={}", env!("CARGO_PKG_VERSION"))});
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
        let list = resources("v1");
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
