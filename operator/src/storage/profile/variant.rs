//! Which variant of a provisioner a storage class means, by its parameters.

use crate::storage::seen::Class;

/// A rule: when the parameter's value, in lower case, contains the word, the class means that variant.
struct Rule {
    provisioner: &'static str,
    parameter: &'static str,
    word: &'static str,
    variant: &'static str,
}

const fn rule(
    provisioner: &'static str,
    parameter: &'static str,
    word: &'static str,
    variant: &'static str,
) -> Rule {
    Rule { provisioner, parameter, word, variant }
}

const FSTYPE: &str = "csi.storage.k8s.io/fstype";

/// In order; the first that fits decides.
const RULES: &[Rule] = &[
    rule("csi-unity.dellemc.com", "protocol", "nfs", "nfs"),
    rule("csi-vxflexos.dellemc.com", FSTYPE, "nfs", "nfs"),
    rule("csi-powermax.dellemc.com", FSTYPE, "nfs", "nfs"),
    rule("csi-powerstore.dellemc.com", FSTYPE, "nfs", "nfs"),
    rule("ebs.csi.aws.com", "type", "io1", "io1"),
    rule("ebs.csi.aws.com", "type", "io2", "io2"),
    rule("ebs.csi.aws.com", "type", "gp", "gp"),
    rule("pd.csi.storage.gke.io", "type", "hyperdisk", "hyperdisk"),
    rule("vpc.file.csi.ibm.io", "profile", "dp2", "dp2"),
    rule("vpc.file.csi.ibm.io", "profile", "rfs", "rfs"),
    rule("kubernetes.io/portworx-volume", "sharedv4", "true", "nfs"),
    rule("kubernetes.io/portworx-volume", "shared", "true", "nfs"),
    rule("pxd.portworx.com", "sharedv4", "true", "nfs"),
    rule("pxd.portworx.com", "shared", "true", "nfs"),
    rule("csi.trident.netapp.io", "backendtype", "nas", "ontap-nas"),
    rule("csi.trident.netapp.io", "backendtype", "san", "ontap-san"),
    rule("csi.trident.netapp.io", "backendtype", "gcnv", "gcnv-flex"),
    rule("csi.trident.netapp.io", "backendtype", "google-cloud", "gcnv-flex"),
    rule("infinibox-csi-driver", "storage_protocol", "iscsi", "iscsiorfibrechannel"),
    rule("infinibox-csi-driver", "storage_protocol", "fc", "iscsiorfibrechannel"),
    rule("infinibox-csi-driver", "storage_protocol", "nvme", "nvme"),
    rule("infinibox-csi-driver", "storage_protocol", "nfs", "nfs"),
    rule("csi.vsphere.vmware.com", FSTYPE, "nfs", "nfs"),
    rule("csi.huawei.com", "protocol", "nfs", "nfs"),
    rule("driver.longhorn.io", "migratable", "true", "migratable"),
    rule("driver.longhorn.io", "nfsoptions", "", "nfs"),
    rule("driver.longhorn.io", FSTYPE, "", "fs"),
    rule("csi.san.synology.com", "protocol", "iscsi", "iscsi"),
    rule("csi.san.synology.com", "protocol", "nfs", "nfs"),
    rule("csi.san.synology.com", "protocol", "smb", "smb"),
];

/// The key of a class in the tables: its provisioner, with the variant where the parameters name one.
pub(super) fn key(class: &Class) -> String {
    let value = |parameter: &str| {
        let found = class.parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(parameter));
        found.map(|(_, value)| value.to_ascii_lowercase())
    };
    let fits = |rule: &&Rule| {
        rule.provisioner == class.provisioner
            && value(rule.parameter).is_some_and(|value| value.contains(rule.word))
    };
    match RULES.iter().find(fits) {
        Some(rule) => format!("{}/{}", class.provisioner, rule.variant),
        None => class.provisioner.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_choose_the_variant() {
        let key = |provisioner: &str, parameters: &[(&str, &str)]| {
            let parameters = parameters.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            key(&Class { provisioner: provisioner.into(), parameters, ..Class::default() })
        };
        for (provisioner, parameters, expected) in [
            ("ebs.csi.aws.com", &[("type", "gp3")][..], "ebs.csi.aws.com/gp"),
            ("ebs.csi.aws.com", &[("type", "st1")], "ebs.csi.aws.com"),
            (
                "csi.trident.netapp.io",
                &[("backendType", "ontap-nas-economy")],
                "csi.trident.netapp.io/ontap-nas",
            ),
            (
                "driver.longhorn.io",
                &[("migratable", "true"), (FSTYPE, "ext4")],
                "driver.longhorn.io/migratable",
            ),
            ("csi-unity.dellemc.com", &[("protocol", "NFS")], "csi-unity.dellemc.com/nfs"),
            ("rbd.csi.ceph.com", &[("type", "gp3")], "rbd.csi.ceph.com"),
        ] {
            assert_eq!(key(provisioner, parameters), expected);
        }
        for rule in RULES {
            let key = format!("{}/{}", rule.provisioner, rule.variant);
            assert!(super::super::table::properties(&key).is_some(), "{key} has no line in claims.txt");
        }
    }
}
