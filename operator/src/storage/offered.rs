//! The cluster's storage, read from the API server: for webhooks, which keep no caches, and the claims that they render.

use cluster::{Client, Key, Result, Scope};
use serde_json::Value;

use super::class::Classes;
use super::datavolume::claim::{self, ClusterStorage, Refusal};
use super::profile::{self, Driver, Overrides, Profile, SnapshotClass};
use super::resources::{CLASSES, CONFIGS, CSI_NODES, DRIVERS, PROFILES, SNAPSHOT_CLASSES};
use super::seen::{Class, CsiDriver, CsiNode, Meta};
use super::settings::Settings;

/// Classes, their profiles, and settings.
#[derive(Clone, Debug, Default)]
pub struct Offered {
    classes: Classes,
    profiles: Vec<Profile>,
    settings: Settings,
}

impl Offered {
    /// Reads it.
    ///
    /// # Errors
    /// Those of the API server.
    pub async fn read(client: &Client) -> Result<Self> {
        let all = Scope::all();
        let classes: Vec<Value> = client.list(CLASSES, &all).await?;
        let classes: Vec<Class> = classes.iter().map(Class::from).collect();
        let drivers: Vec<Value> = client.list(DRIVERS, &all).await?;
        let mut nodes = Vec::new();
        if classes.iter().any(|class| needs_nodes(class, &drivers)) {
            client.each(CSI_NODES, &all, |node: Value| nodes.push(CsiNode::from(&node))).await?;
        }
        let overrides: Vec<Value> = client.list(PROFILES, &all).await?;
        let snapshots: Vec<Value> = match client.list(SNAPSHOT_CLASSES, &all).await {
            // A cluster without snapshots.
            Err(error) if error.is_not_found() => Vec::new(),
            found => found?,
        };
        let settings: Option<Value> = client.find(CONFIGS, &Key::cluster("config")).await?;
        let snapshots: Vec<SnapshotClass> = snapshots.iter().map(SnapshotClass::from).collect();
        let classes =
            Classes { classes, drivers: drivers.iter().map(|driver| Meta::from(driver).name).collect() };
        let of = |class: &Class| {
            let own = overrides.iter().find(|profile| profile["metadata"]["name"] == *class.meta.name);
            let own = own.map(Overrides::from).unwrap_or_default();
            let driver = drivers.iter().find(|driver| driver["metadata"]["name"] == *class.provisioner);
            let driver = driver.map(|driver| Driver::of(class, CsiDriver::from(driver), &nodes));
            Profile::of(class, &own, driver, &snapshots)
        };
        let profiles = classes.classes.iter().map(of).collect();
        Ok(Self { profiles, classes, settings: settings.as_ref().map(Settings::from).unwrap_or_default() })
    }

    /// A claim with what its storage profile adds: class, access modes, volume mode, and room for the filesystem.
    ///
    /// # Errors
    /// When no valid claim follows.
    pub fn complete(&self, claim: &Value) -> std::result::Result<Value, Refusal> {
        let offer =
            ClusterStorage { classes: &self.classes, profiles: &self.profiles, settings: &self.settings };
        claim::complete(claim, offer)
    }
}

/// Whether the properties of a class are inferred from the nodes: the table does not have them, and its provisioner has a
/// CSIDriver.
fn needs_nodes(class: &Class, drivers: &[Value]) -> bool {
    let exists = |driver: &Value| driver["metadata"]["name"] == *class.provisioner;
    !profile::is_known(class) && drivers.iter().any(exists)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_are_read_for_classes_of_drivers_that_the_table_does_not_have() {
        let driver = |name: &str| json!({"metadata": {"name": name}});
        let drivers = [driver("csi.example.com"), driver("rbd.csi.ceph.com")];
        for (provisioner, expected) in [
            ("csi.example.com", true),
            ("rbd.csi.ceph.com", false),
            ("other.example.com", false),
            ("kubernetes.io/no-provisioner", false),
        ] {
            let class = Class::from(&json!({"metadata": {"name": "c"}, "provisioner": provisioner}));
            assert_eq!(needs_nodes(&class, &drivers), expected, "{provisioner}");
        }
    }
}
