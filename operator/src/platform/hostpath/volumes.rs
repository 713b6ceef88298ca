//! PersistentVolumes of the driver, and pools that must stay because of them. The decision is pure.

use cluster::{Client, Resource, Result, Scope};
use serde_json::Value;

use super::check::within;
use super::legacy::Legacy;
use crate::install::hostpath::{DRIVER, LEGACY, Pool};

pub(super) const VOLUMES: Resource = Resource::cluster("", "v1", "persistentvolumes");

/// A PersistentVolume of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its pool.
    pub pool: String,
    /// Its name and its claim, for texts.
    pub text: String,
}

/// PersistentVolumes that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Those that are in pools of the driver, upstream's without CSI included.
    pub volumes: Vec<Volume>,
    /// Those of upstream's provisioner without CSI.
    pub legacy: Vec<Legacy>,
}

/// Lists the PersistentVolumes of the driver and of upstream's provisioner without CSI.
pub async fn list(client: &Client) -> Result<Listed> {
    let mut listed = Listed::default();
    let hear = |volume: Value| {
        if let Some(volume) = of_driver(&volume) {
            listed.volumes.push(volume);
        }
        if let Some(legacy) = Legacy::read(&volume) {
            listed.legacy.push(legacy);
        }
    };
    client.each(VOLUMES, &Scope::all(), hear).await?;
    Ok(listed)
}

/// A PersistentVolume that is in a pool of the driver.
fn of_driver(volume: &Value) -> Option<Volume> {
    let text = |path: &str| volume.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let pool = if text("/spec/csi/driver") == DRIVER {
        let pool = text("/spec/csi/volumeAttributes/storagePool");
        if pool.is_empty() { LEGACY } else { pool }
    } else {
        Legacy::read(volume)?;
        LEGACY
    };
    let claim = format!("{}/{}", text("/spec/claimRef/namespace"), text("/spec/claimRef/name"));
    Some(Volume { pool: pool.to_owned(), text: format!("{} of {claim}", text("/metadata/name")) })
}

/// Whether pools that are served are not wanted as they are: then volumes decide.
pub fn leave(wanted: &[Pool], served: &[Pool]) -> bool {
    served.iter().any(|pool| leaves(wanted, pool))
}

fn leaves(wanted: &[Pool], pool: &Pool) -> bool {
    let place = |pool: &Pool| (pool.path.trim_end_matches('/').to_owned(), pool.claimed);
    wanted.iter().find(|one| one.name == pool.name).is_none_or(|one| place(one) != place(pool))
}

/// The pools to serve: those that are wanted, and those with volumes as they are served; and what the latter wait for.
///
/// # Errors
/// A text, when a wanted pool is where a pool with volumes is.
pub fn kept(
    wanted: &[Pool],
    served: &[Pool],
    volumes: &[Volume],
) -> std::result::Result<(Vec<Pool>, Vec<String>), String> {
    let mut pools = wanted.to_vec();
    let mut waits = Vec::new();
    for pool in served.iter().filter(|pool| leaves(wanted, pool)) {
        let of: Vec<&Volume> = volumes.iter().filter(|volume| volume.pool == pool.name).collect();
        if of.is_empty() {
            continue;
        }
        waits.extend(of.iter().map(|volume| volume.text.clone()));
        pools.retain(|one| one.name != pool.name);
        let path = pool.path.trim_end_matches('/');
        let at = |one: &Pool| one.path.trim_end_matches('/').to_owned();
        if let Some(other) = pools.iter().find(|one| within(&at(one), path) || within(path, &at(one))) {
            return Err(format!(
                "spec.storagePools: pool {} is at {}, where pool {} has {} PersistentVolumes; keep that pool until they are gone",
                other.name,
                other.path,
                pool.name,
                of.len()
            ));
        }
        pools.push(pool.clone());
    }
    Ok((pools, waits))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(name: &str, path: &str) -> Pool {
        Pool { name: name.to_owned(), path: path.to_owned(), ..Pool::default() }
    }

    #[test]
    fn volumes_are_of_their_pools() {
        let csi = |driver: &str, attributes: Value| {
            json!({
                "metadata": {"name": "pvc-1"},
                "spec": {
                    "csi": {"driver": driver, "volumeAttributes": attributes},
                    "claimRef": {"namespace": "n", "name": "c"},
                },
            })
        };
        let volume = |pool: &str| Some(Volume { pool: pool.to_owned(), text: "pvc-1 of n/c".to_owned() });
        for (object, expected) in [
            (csi(DRIVER, json!({"storagePool": "fast"})), volume("fast")),
            (csi(DRIVER, json!({})), volume(LEGACY)),
            (csi("other", json!({"storagePool": "fast"})), None),
            (json!({"metadata": {"name": "x"}, "spec": {"hostPath": {"path": "/data/x"}}}), None),
        ] {
            assert_eq!(of_driver(&object), expected, "{object}");
        }
    }

    #[test]
    fn a_pool_with_volumes_stays_as_it_is() {
        let served = [pool("a", "/a"), pool("b", "/b")];
        let volume = |pool: &str| Volume { pool: pool.to_owned(), text: format!("v of {pool}") };
        let names = |wanted: &[Pool], volumes: &[Volume]| {
            let (pools, waits) = kept(wanted, &served, volumes)?;
            let pools: Vec<String> = pools.iter().map(|one| format!("{}:{}", one.name, one.path)).collect();
            Ok::<_, String>(format!("{} {}", pools.join(","), waits.join(",")))
        };
        assert!(!leave(&[pool("a", "/a/"), pool("b", "/b")], &served));
        assert!(leave(&[pool("a", "/a")], &served));
        for (wanted, volumes, expected) in [
            (vec![pool("a", "/a")], vec![volume("a")], "a:/a "),
            (vec![pool("a", "/a")], vec![volume("b")], "a:/a,b:/b v of b"),
            (vec![pool("a", "/a"), pool("b", "/c")], vec![volume("b")], "a:/a,b:/b v of b"),
            (vec![pool("a", "/a"), pool("b", "/c")], vec![], "a:/a,b:/c "),
        ] {
            assert_eq!(names(&wanted, &volumes).unwrap(), expected, "{wanted:?}");
        }
        let refused = names(&[pool("a", "/a"), pool("c", "/b/c")], &[volume("b")]).unwrap_err();
        assert!(refused.contains("pool b has 1 PersistentVolumes"), "{refused}");
    }
}
