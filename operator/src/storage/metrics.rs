//! Metrics of storage, with upstream's names, from what the controllers observe. Pure.

use serve::metrics::{Kind, Page};

use super::cron::seen::Cron;
use super::profile::{NO_PROVISIONER, Profile};
use super::seen::{Class, DataVolume};

/// Provisioners of classes that no DataVolume is for, or that are complete as soon as a volume exists: upstream's.
const COMPLETE: [&str; 5] = [
    NO_PROVISIONER,
    "openshift-storage.noobaa.io/obc",
    "openshift-storage.ceph.rook.io/bucket",
    "rook-ceph.ceph.rook.io/bucket",
    "stork-snapshot",
];

/// Observations that metrics are made of.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// Whether the CDI object is available; `None` without one.
    pub ready: Option<bool>,
    /// DataVolumes.
    pub volumes: &'a [DataVolume],
    /// DataImportCrons.
    pub crons: &'a [Cron],
    /// Storage classes, each with its profile.
    pub classes: &'a [(Class, Profile)],
    /// Whether the cluster has one node: volumes need not be shared then.
    pub single_node: bool,
}

/// Adds the metrics.
pub fn write(page: &mut Page, o: &Observed<'_>) {
    if let Some(ready) = o.ready {
        page.single("kubevirt_cdi_cr_ready", Kind::Gauge, "Whether CDI is available.", u64::from(ready));
    }
    let has_default = o.classes.iter().any(|(class, _)| class.is_default() || class.is_virt_default());
    let waits = |volume: &&DataVolume| {
        volume.status.phase == "Pending" && volume.claim.class.is_none() && !has_default
    };
    page.single(
        "kubevirt_cdi_datavolume_pending",
        Kind::Gauge,
        "DataVolumes that wait for a default storage class.",
        o.volumes.iter().filter(waits).count() as u64,
    );
    let name = "kubevirt_cdi_dataimportcron_outdated";
    page.begin(name, Kind::Gauge, "DataImportCrons without an import of the source's latest version.");
    for cron in o.crons {
        let labels = [
            ("ns", cron.meta.namespace.as_str()),
            ("cron_name", cron.meta.name.as_str()),
            ("pending", truth(is_pending(cron, o.volumes))),
        ];
        page.sample(name, &labels, u64::from(is_outdated(cron)));
    }
    let name = "kubevirt_cdi_storageprofile_info";
    page.begin(name, Kind::Gauge, "Capabilities of storage classes.");
    for (class, profile) in o.classes {
        let shared =
            profile.properties.iter().any(|one| one.modes.iter().any(|mode| mode == "ReadWriteMany"));
        let clones = profile.clone != super::profile::CloneStrategy::Copy;
        let degraded = !clones || !(shared || o.single_node);
        let complete = COMPLETE.contains(&class.provisioner.as_str()) || !profile.properties.is_empty();
        let labels = [
            ("storageclass", class.meta.name.as_str()),
            ("provisioner", class.provisioner.as_str()),
            ("complete", truth(complete)),
            ("default", truth(class.is_default())),
            ("virtdefault", truth(class.is_virt_default())),
            ("rwx", truth(shared)),
            ("smartclone", truth(clones)),
            ("degraded", truth(degraded)),
        ];
        page.sample(name, &labels, 1);
    }
}

fn truth(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

fn is_outdated(cron: &Cron) -> bool {
    let conditions = cron.status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|one| one["type"] == "UpToDate" && one["status"] == "False")
}

/// Whether the cron's import has not begun.
fn is_pending(cron: &Cron, volumes: &[DataVolume]) -> bool {
    let current = cron.current().map(|(name, _)| name);
    let import = volumes.iter().find(|volume| {
        volume.meta.namespace == cron.meta.namespace && Some(volume.meta.name.as_str()) == current
    });
    import.is_some_and(|import| ["", "Pending"].contains(&import.status.phase.as_str()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::storage::profile::{Driver, Overrides};

    #[test]
    fn metrics_have_upstreams_names_and_labels() {
        let volume = DataVolume::from(&json!({
            "metadata": {"name": "image-1", "namespace": "n"}, "status": {"phase": "Pending"},
            "spec": {"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Gi"}}}},
        }));
        let cron = Cron::from(&json!({
            "metadata": {"name": "nightly", "namespace": "n"}, "spec": {},
            "status": {"currentImports": [{"DataVolumeName": "image-1", "Digest": "sha256:1"}],
                "conditions": [{"type": "UpToDate", "status": "False"}]},
        }));
        let mut class = Class { provisioner: "rbd.csi.ceph.com".into(), ..Class::default() };
        class.meta.name = "fast".into();
        let profile = Profile::of(&class, &Overrides::default(), Some(Driver::default()), &[]);
        let text = |classes: &[(Class, Profile)], single_node: bool| {
            let (volumes, crons) = (std::slice::from_ref(&volume), std::slice::from_ref(&cron));
            let mut page = Page::default();
            write(&mut page, &Observed { ready: Some(true), volumes, crons, classes, single_node });
            page.text()
        };
        let page = text(&[(class.clone(), profile)], false);
        for line in [
            "kubevirt_cdi_cr_ready 1",
            "kubevirt_cdi_datavolume_pending 1",
            r#"kubevirt_cdi_dataimportcron_outdated{ns="n",cron_name="nightly",pending="true"} 1"#,
            r#"kubevirt_cdi_storageprofile_info{storageclass="fast",provisioner="rbd.csi.ceph.com",complete="true",default="false",virtdefault="false",rwx="true",smartclone="true",degraded="false"} 1"#,
        ] {
            assert!(page.lines().any(|one| one == line), "{line}\n{page}");
        }
        class.provisioner = "kubevirt.io.hostpath-provisioner".into();
        class.meta.annotations.insert("storageclass.kubernetes.io/is-default-class".into(), "true".into());
        let profile = Profile::of(&class, &Overrides::default(), Some(Driver::default()), &[]);
        for (single, degraded) in [(true, "false"), (false, "true")] {
            let page = text(&[(class.clone(), profile.clone())], single);
            assert!(page.contains(r#"default="true",virtdefault="false",rwx="false""#), "{page}");
            assert!(page.contains(&format!(r#"degraded="{degraded}""#)), "{page}");
            assert!(page.contains("kubevirt_cdi_datavolume_pending 0"), "{page}");
        }
    }

    #[test]
    fn classes_of_object_stores_and_of_made_volumes_are_complete() {
        for (provisioner, complete) in
            [("x.example", "false"), ("rook-ceph.ceph.rook.io/bucket", "true"), (NO_PROVISIONER, "true")]
        {
            let class = Class { provisioner: provisioner.into(), ..Class::default() };
            let profile = Profile::of(&class, &Overrides::default(), None, &[]);
            let mut page = Page::default();
            let classes = &[(class, profile)];
            write(&mut page, &Observed { ready: None, volumes: &[], crons: &[], classes, single_node: true });
            let text = page.text();
            assert!(text.contains(&format!(r#"complete="{complete}""#)), "{provisioner}: {text}");
        }
    }
}
