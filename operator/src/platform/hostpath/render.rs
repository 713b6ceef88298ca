//! The driver that a `HostPathProvisioner` asks for. Pure.

use api::hostpath::HostPathProvisioner;
use serde_json::json;

use super::check::{self, READ_WRITE_MANY, SIDECARS, SNAPSHOTTING, STOCK};
use crate::install::hostpath::{Driver, LEGACY, Pool, Sidecars};
use crate::install::pools::is_shared;

/// The driver of an object that has no problems.
pub fn driver(object: &HostPathProvisioner) -> Driver {
    let spec = &object.spec;
    let annotations = &object.metadata.annotations;
    let many = annotations.get(READ_WRITE_MANY).map_or("", String::as_str);
    let read_write_many = |pool: &str| many.split(',').any(|name| name.trim() == pool);
    let defragment = check::defragment(annotations).unwrap_or_default();
    let defragment = |pool: &str| defragment.get(pool).copied();
    let legacy = spec.path_config.as_ref().and_then(|config| config.path.as_ref()).map(|path| Pool {
        name: LEGACY.to_owned(),
        path: path.clone(),
        read_write_many: read_write_many(LEGACY),
        defragment: defragment(LEGACY),
        ..Pool::default()
    });
    let named = spec.storage_pools.iter().map(|pool| Pool {
        name: pool.name.clone(),
        path: pool.path.clone(),
        reflink: pool.snapshot_provider.as_deref() == Some("reflink"),
        shared: pool.pvc_template.as_ref().is_some_and(is_shared),
        claimed: pool.pvc_template.is_some(),
        read_write_many: read_write_many(&pool.name),
        defragment: defragment(&pool.name),
    });
    let mut placement = json!({});
    if let Some(workload) = &spec.workload {
        if !workload.node_selector.is_empty() {
            placement["nodeSelector"] = json!(workload.node_selector);
        }
        if let Some(affinity) = &workload.affinity {
            placement["affinity"] = json!(affinity);
        }
        if !workload.tolerations.is_empty() {
            placement["tolerations"] = json!(workload.tolerations);
        }
    }
    let stock = annotations.get(SIDECARS).is_some_and(|value| value == STOCK);
    let sidecars = match stock {
        false => Sidecars::None,
        true if spec.feature_gates.iter().any(|gate| gate == SNAPSHOTTING) => Sidecars::StockWithSnapshots,
        true => Sidecars::Stock,
    };
    Driver {
        pools: legacy.into_iter().chain(named).collect(),
        pull_policy: spec.image_pull_policy.clone().filter(|policy| !policy.is_empty()),
        placement,
        sidecars,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use serde_json::Value;

    use super::*;

    fn object(annotations: &Value, spec: &Value) -> HostPathProvisioner {
        let object = json!({"metadata": {"name": "a", "annotations": annotations}, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn settings_reach_the_driver() {
        let one = driver(&object(&json!({}), &json!({"pathConfig": {"path": "/data"}})));
        assert_eq!((one.pools[0].name.as_str(), one.pools[0].path.as_str()), (LEGACY, "/data"));
        assert_eq!(one.sidecars, Sidecars::None);
        let two = driver(&object(
            &json!({SIDECARS: STOCK, READ_WRITE_MANY: "c, b", check::DEFRAGMENT: "b=16384, c=9"}),
            &json!({
                "storagePools": [
                    {"name": "a", "path": "/a"},
                    {"name": "b", "path": "/b", "snapshotProvider": "reflink"},
                ],
                "featureGates": [SNAPSHOTTING],
                "imagePullPolicy": "Never",
                "workload": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]},
            }),
        ));
        assert_eq!(two.pools.iter().map(|pool| pool.reflink).collect::<Vec<_>>(), [false, true]);
        assert_eq!(two.pools.iter().map(|pool| pool.read_write_many).collect::<Vec<_>>(), [false, true]);
        let extents: Vec<_> =
            two.pools.iter().map(|pool| pool.defragment.map_or(0, NonZeroU64::get)).collect();
        assert_eq!(extents, [0, 16384]);
        assert_eq!(two.sidecars, Sidecars::StockWithSnapshots);
        assert_eq!(two.pull_policy.as_deref(), Some("Never"));
        assert_eq!(
            two.placement,
            json!({"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]})
        );
    }
}
