//! Which variant of a provisioner a storage class means, by its parameters.

use crate::storage::seen::Class;

/// A test of a parameter's value, in lower case; a parameter that is absent is empty.
enum Test {
    /// It is one of these.
    Is(&'static [&'static str]),
    /// It begins with this.
    Begins(&'static str),
    /// It contains this.
    Contains(&'static str),
    /// It is a list, with commas or semicolons between its entries, and has all of these.
    Lists(&'static [&'static str]),
    /// It is not empty.
    Given,
}

impl Test {
    fn passes(&self, value: &str) -> bool {
        match self {
            Self::Is(words) => words.contains(&value),
            Self::Begins(word) => value.starts_with(word),
            Self::Contains(word) => value.contains(word),
            Self::Lists(words) => {
                let entries: Vec<&str> = value.split([',', ';']).map(str::trim).collect();
                words.iter().all(|word| entries.contains(word))
            }
            Self::Given => !value.is_empty(),
        }
    }
}

/// A rule: when all tests of parameters pass, the class means that variant.
struct Rule {
    provisioner: &'static str,
    variant: &'static str,
    tests: &'static [(&'static str, Test)],
}

const fn rule(
    provisioner: &'static str,
    variant: &'static str,
    tests: &'static [(&'static str, Test)],
) -> Rule {
    Rule { provisioner, variant, tests }
}

const FSTYPE: &str = "csi.storage.k8s.io/fstype";
/// Mount options by which Portworx serves a volume that virtual machines can share as files.
const SHARED_FILES: &[(&str, Test)] = &[("sharedv4_mount_options", Test::Lists(&["vers=3.0", "nolock"]))];

/// In order; the first that fits decides.
const RULES: &[Rule] = &[
    rule("csi-unity.dellemc.com", "nfs", &[("protocol", Test::Is(&["nfs"]))]),
    rule("csi-vxflexos.dellemc.com", "nfs", &[(FSTYPE, Test::Is(&["nfs"]))]),
    rule("csi-powermax.dellemc.com", "nfs", &[(FSTYPE, Test::Is(&["nfs"]))]),
    rule("csi-powerstore.dellemc.com", "nfs", &[(FSTYPE, Test::Is(&["nfs"]))]),
    rule("ebs.csi.aws.com", "io1", &[("type", Test::Is(&["io1"]))]),
    rule("ebs.csi.aws.com", "io2", &[("type", Test::Is(&["io2"]))]),
    rule("ebs.csi.aws.com", "gp", &[("type", Test::Is(&["gp2", "gp3"]))]),
    rule(
        "pd.csi.storage.gke.io",
        "hyperdisk",
        &[("type", Test::Is(&["hyperdisk-balanced", "hyperdisk-balanced-high-availability"]))],
    ),
    // Classes for the state of virtual machines are marked, and not shared.
    rule(
        "vpc.file.csi.ibm.io",
        "dp2-rwo",
        &[("profile", Test::Is(&["dp2"])), ("vmstate", Test::Is(&["true"]))],
    ),
    rule(
        "vpc.file.csi.ibm.io",
        "rfs-rwo",
        &[("profile", Test::Is(&["rfs"])), ("vmstate", Test::Is(&["true"]))],
    ),
    rule("vpc.file.csi.ibm.io", "dp2", &[("profile", Test::Is(&["dp2"]))]),
    rule("vpc.file.csi.ibm.io", "rfs", &[("profile", Test::Is(&["rfs"]))]),
    rule("kubernetes.io/portworx-volume", "nfs", SHARED_FILES),
    rule("pxd.portworx.com", "nfs", SHARED_FILES),
    rule("csi.trident.netapp.io", "ontap-nas", &[("backendtype", Test::Begins("ontap-nas"))]),
    rule("csi.trident.netapp.io", "ontap-san", &[("backendtype", Test::Begins("ontap-san"))]),
    rule(
        "csi.trident.netapp.io",
        "gcnv-flex",
        &[
            ("backendtype", Test::Is(&["google-cloud-netapp-volumes"])),
            ("selector", Test::Lists(&["performance=flex"])),
        ],
    ),
    rule("infinibox-csi-driver", "iscsiorfibrechannel", &[("storage_protocol", Test::Is(&["iscsi", "fc"]))]),
    rule("infinibox-csi-driver", "nvme", &[("storage_protocol", Test::Is(&["nvme"]))]),
    rule("infinibox-csi-driver", "nfs", &[("storage_protocol", Test::Is(&["nfs", "nfs_treeq"]))]),
    rule("csi.vsphere.vmware.com", "nfs", &[(FSTYPE, Test::Contains("nfs"))]),
    rule("csi.huawei.com", "nfs", &[("protocol", Test::Is(&["nfs"]))]),
    rule("driver.longhorn.io", "migratable", &[("migratable", Test::Is(&["true"]))]),
    rule("driver.longhorn.io", "nfs", &[("nfsoptions", Test::Given)]),
    rule("driver.longhorn.io", "fs", &[("fstype", Test::Given)]),
    rule("csi.san.synology.com", "iscsi", &[("protocol", Test::Is(&["iscsi", ""]))]),
    rule("csi.san.synology.com", "nfs", &[("protocol", Test::Is(&["nfs", "nfs_treeq"]))]),
    rule("csi.san.synology.com", "smb", &[("protocol", Test::Is(&["smb"]))]),
];

/// The key of a class in the tables: its provisioner, with the variant where the parameters name one.
pub(super) fn key(class: &Class) -> String {
    let value = |parameter: &str| {
        let found = class.parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(parameter));
        found.map(|(_, value)| value.to_ascii_lowercase()).unwrap_or_default()
    };
    let fits = |rule: &&Rule| {
        let passes = |(parameter, test): &(&str, Test)| test.passes(&value(parameter));
        rule.provisioner == class.provisioner && rule.tests.iter().all(passes)
    };
    match RULES.iter().find(fits) {
        Some(rule) => format!("{}/{}", class.provisioner, rule.variant),
        None => class.provisioner.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::profile::table;

    #[test]
    fn parameters_choose_the_variant() {
        const GCNV: (&str, &str) = ("backendType", "google-cloud-netapp-volumes");
        const NFS: &str = "vers=3.0,nolock";
        for (provisioner, parameters, variant) in [
            ("ebs.csi.aws.com", &[("type", "gp3")][..], "gp"),
            ("ebs.csi.aws.com", &[("type", "st1")], ""),
            ("csi.trident.netapp.io", &[("backendType", "ontap-nas-economy")], "ontap-nas"),
            ("csi.trident.netapp.io", &[GCNV, ("selector", "tier=a; performance=flex")], "gcnv-flex"),
            ("csi.trident.netapp.io", &[GCNV, ("selector", "performance=premium")], ""),
            ("csi.trident.netapp.io", &[GCNV], ""),
            ("driver.longhorn.io", &[("migratable", "true"), ("fsType", "ext4")], "migratable"),
            ("driver.longhorn.io", &[("fsType", "ext4")], "fs"),
            ("driver.longhorn.io", &[(FSTYPE, "ext4")], ""),
            ("driver.longhorn.io", &[("nfsOptions", "vers=4.2"), ("fsType", "ext4")], "nfs"),
            ("driver.longhorn.io", &[("nfsOptions", "")], ""),
            ("pxd.portworx.com", &[("sharedv4", "true"), ("sharedv4_mount_options", NFS)], "nfs"),
            ("pxd.portworx.com", &[("sharedv4", "true")], ""),
            ("kubernetes.io/portworx-volume", &[("sharedv4_mount_options", "nolock")], ""),
            ("pd.csi.storage.gke.io", &[("type", "hyperdisk-balanced")], "hyperdisk"),
            ("pd.csi.storage.gke.io", &[("type", "hyperdisk-throughput")], ""),
            ("vpc.file.csi.ibm.io", &[("profile", "dp2"), ("vmState", "true")], "dp2-rwo"),
            ("vpc.file.csi.ibm.io", &[("profile", "rfs"), ("vmState", "false")], "rfs"),
            ("infinibox-csi-driver", &[("storage_protocol", "nfs_treeq")], "nfs"),
            ("csi.san.synology.com", &[], "iscsi"),
            ("csi.san.synology.com", &[("protocol", "smb")], "smb"),
            ("csi-unity.dellemc.com", &[("protocol", "NFS")], "nfs"),
            ("rbd.csi.ceph.com", &[("type", "gp3")], ""),
        ] {
            let of = parameters.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            let class = Class { provisioner: provisioner.into(), parameters: of, ..Class::default() };
            let expected = match variant {
                "" => provisioner.to_owned(),
                variant => format!("{provisioner}/{variant}"),
            };
            assert_eq!(key(&class), expected, "{provisioner} {parameters:?}");
        }
    }

    #[test]
    fn every_variant_of_the_tables_has_a_rule_and_every_rule_a_variant() {
        let ruled: Vec<String> =
            RULES.iter().map(|rule| format!("{}/{}", rule.provisioner, rule.variant)).collect();
        for key in &ruled {
            assert!(table::properties(key).is_some(), "{key} has no line in claims.txt");
        }
        for key in table::keys() {
            let Some((provisioner, _)) = key.rsplit_once('/') else { continue };
            let varies = table::properties(provisioner).is_some()
                || RULES.iter().any(|rule| rule.provisioner == provisioner);
            assert!(!varies || ruled.iter().any(|one| one == key), "{key} has no rule");
        }
    }
}
