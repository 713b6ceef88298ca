//! Which storage class a claim gets, whether a populator fills it, and the room that nodes have for volumes of a class.

use std::collections::HashMap;

use api::quantity;
use serde_json::Value;

use super::names;
use super::seen::{Class, Meta};

/// The classes of the cluster, and which provisioners are CSI drivers.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    /// All of them.
    pub classes: Vec<Class>,
    /// Names of CSIDriver objects.
    pub drivers: Vec<String>,
}

impl Classes {
    /// The class with this name.
    pub fn named(&self, name: &str) -> Option<&Class> {
        self.classes.iter().find(|class| class.meta.name == name)
    }

    /// The class of a claim that names none: for disks the default for virtual machines, then Kubernetes' default. Of
    /// several defaults the newest, then the first by name.
    pub fn preferred(&self, disk: bool) -> Option<&Class> {
        let virt = self.best(|class| disk && class.is_virt_default());
        virt.or_else(|| self.best(Class::is_default))
    }

    /// A class of this driver: the preferred one if it is of it.
    pub fn of_driver<'a>(&'a self, driver: &str, preferred: Option<&'a Class>) -> Option<&'a Class> {
        let is_of = |class: &Class| !driver.is_empty() && class.provisioner == driver;
        preferred.filter(|class| is_of(class)).or_else(|| self.best(is_of))
    }

    fn best(&self, fits: impl Fn(&Class) -> bool) -> Option<&Class> {
        let fitting = self.classes.iter().filter(|class| fits(class));
        fitting.max_by(|a, b| {
            let by_age = a.meta.created.cmp(&b.meta.created);
            by_age.then_with(|| b.meta.name.cmp(&a.meta.name))
        })
    }

    /// Whether a class's provisioner is a CSI driver: those leave claims with a `dataSourceRef` to populators.
    pub fn has_driver(&self, class: &Class) -> bool {
        self.drivers.contains(&class.provisioner)
    }

    /// Whether a populator fills the claims that a DataVolume makes in a class.
    pub fn populates(&self, class: Option<&Class>, volume: &Meta) -> bool {
        class.is_some_and(|class| self.has_driver(class)) && !volume.says(names::USE_POPULATOR, "false")
    }
}

/// The largest volume of each class that a node has room for, by CSIStorageCapacities.
#[derive(Debug, Default)]
pub struct Room(HashMap<String, u64>);

impl Room {
    /// Takes a CSIStorageCapacity into account.
    pub fn add(&mut self, capacity: &Value) {
        let size = capacity["maximumVolumeSize"].as_str().or_else(|| capacity["capacity"].as_str());
        // Without a quantity there is none left.
        let size = size.and_then(|size| quantity::bytes(size).ok()).unwrap_or(0);
        let class = capacity["storageClassName"].as_str().unwrap_or_default();
        let most = self.0.entry(class.to_owned()).or_default();
        *most = size.max(*most);
    }

    /// The largest volume of a class, bytes; `None` where the driver reports none.
    pub fn of(&self, class: &str) -> Option<u64> {
        self.0.get(class).copied()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(name: &str, created: &str, annotation: Option<&str>) -> Class {
        let mut class = Class { provisioner: "driver".into(), ..Class::default() };
        (class.meta.name, class.meta.created) = (name.into(), created.into());
        class.meta.annotations.extend(annotation.map(|name| (name.to_owned(), "true".to_owned())));
        class
    }

    #[test]
    fn a_class_of_a_driver_is_found() {
        let mut other = class("other", "2026-01-03", None);
        other.provisioner = "e".into();
        let classes = vec![class("old", "2026-01-01", None), class("new", "2026-01-02", None), other.clone()];
        let classes = Classes { classes, drivers: Vec::new() };
        let found =
            |driver, preferred| classes.of_driver(driver, preferred).map(|class| class.meta.name.as_str());
        assert_eq!(found("driver", Some(&other)), Some("new"));
        assert_eq!(found("driver", classes.named("old")), Some("old"));
        assert_eq!((found("e", None), found("f", None), found("", None)), (Some("other"), None, None));
    }

    #[test]
    fn the_room_of_a_class_is_that_of_its_roomiest_node() {
        let capacities = [
            json!({"storageClassName": "fast", "capacity": "10Gi", "maximumVolumeSize": "4Gi"}),
            json!({"storageClassName": "fast", "capacity": "6Gi"}),
            json!({"storageClassName": "slow", "capacity": "1Ti"}),
            json!({"storageClassName": "full"}),
        ];
        let mut room = Room::default();
        capacities.iter().for_each(|capacity| room.add(capacity));
        assert_eq!(room.of("fast"), Some(6 << 30));
        assert_eq!(room.of("full"), Some(0));
        assert_eq!(room.of("other"), None);
    }

    #[test]
    fn the_default_class_is_the_newest_one_and_disks_have_their_own() {
        const KUBERNETES: Option<&str> = Some("storageclass.kubernetes.io/is-default-class");
        const VIRT: Option<&str> = Some("storageclass.kubevirt.io/is-default-virt-class");
        let classes = Classes {
            classes: vec![
                class("b", "2", KUBERNETES),
                class("a", "2", KUBERNETES),
                class("c", "1", KUBERNETES),
                class("v", "1", VIRT),
                class("x", "3", None),
            ],
            drivers: vec!["driver".into()],
        };
        let name = |class: Option<&Class>| class.map(|class| class.meta.name.clone());
        assert_eq!(name(classes.preferred(true)).as_deref(), Some("v"));
        assert_eq!(name(classes.preferred(false)).as_deref(), Some("a"));
        assert_eq!(name(Classes::default().preferred(true)), None);
    }

    #[test]
    fn populators_need_a_driver_and_can_be_switched_off() {
        let classes = Classes { classes: vec![class("a", "1", None)], drivers: vec!["driver".into()] };
        let mut volume = Meta::default();
        assert!(classes.populates(classes.named("a"), &volume));
        assert!(!classes.populates(None, &volume));
        volume.annotations.insert(names::USE_POPULATOR.into(), "false".into());
        assert!(!classes.populates(classes.named("a"), &volume));
        assert!(
            !Classes { drivers: vec![], ..classes.clone() }.populates(classes.named("a"), &Meta::default())
        );
    }
}
