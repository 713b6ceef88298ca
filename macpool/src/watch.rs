//! What is followed in the cluster: machines, instances, pods, namespaces, the webhook's configuration, the range.

use std::sync::Arc;

use kube::Client;
use serde_json::{Value, json};

use crate::apiserver::{self, News, follow};
use crate::collision::Collision;
use crate::config::{CONFIGURATION, Config, HOOKS, RANGE_MAP};
use crate::state::{Part, State, stamp};
use api::net::Range;
use api::net::pool::View;

/// Follows everything until the process ends.
pub(crate) async fn all(client: &Client, config: &Config, state: &Arc<State>) {
    let webhooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let maps = format!("/api/v1/namespaces/{}/configmaps", config.namespace);
    let named = |name: &str| format!("fieldSelector=metadata.name%3D{name}");
    let (of_webhook, of_range) = (named(CONFIGURATION), named(RANGE_MAP));
    tokio::join!(
        objects(client, state, "/apis/kubevirt.io/v1/virtualmachines", View::Machine, Part::Machines),
        objects(
            client,
            state,
            "/apis/kubevirt.io/v1/virtualmachineinstances",
            View::Instance,
            Part::Instances
        ),
        objects(client, state, "/api/v1/pods", View::Pod, Part::Pods),
        follow(client, "/api/v1/namespaces", "", |news| match news {
            News::Begin => state.lock().forget_namespaces(),
            News::There(object) => state.lock().observe_namespace(object),
            News::Gone(object) => state.lock().forget_namespace(object),
            News::End => state.lock().set_loaded(Part::Namespaces),
        }),
        follow(client, webhooks, &of_webhook, |news| {
            if let News::There(object) = news {
                state.lock().selectors = HOOKS.map(|hook| selector(object, hook));
            }
        }),
        follow(client, &maps, &of_range, |news| {
            if let News::There(object) = news {
                range(state, object);
            }
        }),
    );
}

async fn objects(client: &Client, state: &Arc<State>, path: &str, view: View, part: Part) {
    follow(client, path, "", |news| match news {
        News::Begin => state.lock().pool.begin_listing(view),
        News::There(object) => state.observe(view, object),
        News::Gone(object) => state.forget(view, object),
        News::End => {
            let mut known = state.lock();
            let gone = known.pool.end_listing(view);
            for owner in gone {
                known.running.set(&owner, None);
            }
            known.set_loaded(part);
        }
    })
    .await;
}

fn selector(object: &Value, hook: &str) -> Option<crate::namespaces::Selector> {
    let selector = crate::namespaces::Selector::of_webhook(object, hook);
    if let Err(error) = &selector {
        tracing::warn!(%error, "all namespaces count as ours");
    }
    selector.ok()
}

/// Takes the range of the ConfigMap. A wrong one changes nothing.
fn range(state: &State, map: &Value) {
    let value = |key: &str| map.pointer(&format!("/data/{key}")).and_then(Value::as_str).unwrap_or_default();
    match Range::parse(value("RANGE_START"), value("RANGE_END")) {
        Ok(range) if range != state.lock().pool.range() => {
            tracing::info!(%range, size = range.size(), "the range has changed");
            state.lock().pool.set_range(range);
        }
        Ok(_) => {}
        Err(error) => {
            tracing::error!(%error, "the ConfigMap {RANGE_MAP} has a wrong range; the old one stays")
        }
    }
}

/// Tells a collision to everybody who looks at its objects.
pub(crate) async fn tell(client: &Client, collision: &Collision) {
    let key = |owner: &api::net::pool::Owner| {
        let kind = if owner.view == View::Pod { "pod" } else { "vmi" };
        format!("{kind}/{}/{}", owner.namespace, owner.name)
    };
    let names: Vec<String> = collision.between.iter().map(|(owner, _)| key(owner)).collect();
    let message = format!("MAC {}: Collision between {}", collision.mac, names.join(", "));
    let now = crate::manifest::stamp_text(stamp() / 1_000_000_000 * 1_000_000_000);
    for (owner, uid) in &collision.between {
        let (version, kind) = match owner.view {
            View::Pod => ("v1", "Pod"),
            View::Machine | View::Instance => ("kubevirt.io/v1", "VirtualMachineInstance"),
        };
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "kubemacpool-", "namespace": owner.namespace},
            "involvedObject": {
                "apiVersion": version,
                "kind": kind,
                "namespace": owner.namespace,
                "name": owner.name,
                "uid": uid,
            },
            "type": "Warning",
            "reason": "MACCollision",
            "message": message,
            "source": {"component": "kubemacpool"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        let path = format!("/api/v1/namespaces/{}/events", owner.namespace);
        if let Err(error) = apiserver::call(client, http::Method::POST, &path, Some(&event)).await {
            tracing::warn!(error = error.chain(), "a collision cannot be told");
        }
    }
}
