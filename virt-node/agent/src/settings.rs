//! The KubeVirt object, as far as the agent follows it, in one cache for all of its parts.
//!
//! Not here: how the parts use it ([`crate::node::logs`], [`crate::devices`], [`crate::guests::launch`]).

use std::sync::Arc;

use api::kubevirt::{
    KubeVirt, LogVerbosity, MediatedDevicesConfiguration, PermittedMediatedDevice, PermittedPciDevice,
    PermittedUsbDevice, SmbiosConfiguration,
};
use api::launch::{System, is_text};
use cluster::{Cache, Client, Resource, Scope};

const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");

/// The fields that the agent follows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    created: Option<String>,
    /// `developerConfiguration.logVerbosity`.
    pub(crate) verbosity: LogVerbosity,
    /// `permittedHostDevices.pciHostDevices`.
    pub(crate) pci_devices: Vec<PermittedPciDevice>,
    /// `permittedHostDevices.mediatedDevices`.
    pub(crate) mediated_devices: Vec<PermittedMediatedDevice>,
    /// `smbios`.
    pub(crate) system: System,
    /// `permittedHostDevices.usb`.
    pub(crate) usb_devices: Vec<PermittedUsbDevice>,
    /// `mediatedDevicesConfiguration`.
    pub(crate) mediated_types: MediatedDevicesConfiguration,
    /// The feature gate `DisableMDEVConfiguration`: mediated devices are neither made nor removed.
    pub(crate) keeps_mediated_types: bool,
}

/// The feature gate of [`Settings::keeps_mediated_types`].
const KEEP_MEDIATED_TYPES: &str = "DisableMDEVConfiguration";

impl From<&KubeVirt> for Settings {
    fn from(object: &KubeVirt) -> Self {
        let configuration = object.spec.configuration.as_ref();
        let developer = configuration.and_then(|one| one.developer_configuration.as_ref());
        let devices = configuration.and_then(|one| one.permitted_host_devices.as_ref());
        let types = configuration.and_then(|one| one.mediated_devices_configuration.clone());
        let is_gate = |gate: &String| gate == KEEP_MEDIATED_TYPES;
        let keeps = developer.is_some_and(|one| {
            one.feature_gates.iter().any(is_gate) && !one.disabled_feature_gates.iter().any(is_gate)
        });
        Self {
            created: object.metadata.creation_timestamp.clone(),
            verbosity: developer.and_then(|one| one.log_verbosity.clone()).unwrap_or_default(),
            pci_devices: devices.map(|one| one.pci_host_devices.clone()).unwrap_or_default(),
            mediated_devices: devices.map(|one| one.mediated_devices.clone()).unwrap_or_default(),
            system: configuration.and_then(|one| one.smbios.as_ref()).map(system).unwrap_or_default(),
            usb_devices: devices.map(|one| one.usb.clone()).unwrap_or_default(),
            mediated_types: types.unwrap_or_default(),
            keeps_mediated_types: keeps,
        }
    }
}

/// SMBIOS strings of guests. One that no guest can be shown counts as one that is not given.
fn system(configured: &SmbiosConfiguration) -> System {
    let SmbiosConfiguration { family, manufacturer, product, sku, version } = configured;
    let fit = |text: &Option<String>| text.clone().filter(|text| is_text(text));
    System {
        manufacturer: fit(manufacturer),
        product: fit(product),
        version: fit(version),
        sku: fit(sku),
        family: fit(family),
    }
}

/// Starts to follow the object.
pub(crate) fn follow(client: &Client) -> Cache<Settings> {
    Cache::builder().start::<KubeVirt>(client, KUBEVIRTS, &Scope::all())
}

/// The settings now. There is one object in a cluster; of several the oldest counts.
pub(crate) fn current(settings: &Cache<Settings>) -> Arc<Settings> {
    let oldest = settings.all().into_iter().min_by_key(|(_, one)| one.created.clone());
    oldest.map(|(_, one)| one).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_from_the_object() {
        let read = |text: &str| Settings::from(&serde_json::from_str::<KubeVirt>(text).unwrap());
        assert_eq!(read("{}"), Settings::default());
        let settings = read(
            r#"{"spec": {"configuration": {
                "mediatedDevicesConfiguration": {"mediatedDeviceTypes": ["nvidia-222"]},
                "developerConfiguration": {"featureGates": ["DisableMDEVConfiguration"], "logVerbosity": {"virtHandler": 4, "nodeVerbosity": {"one": 6}}},
                "smbios": {"manufacturer": "Example", "product": "", "sku": "C\u0007", "version": "7"},
                "permittedHostDevices": {
                    "pciHostDevices": [{"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4"}],
                    "mediatedDevices": [{"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/vT4"}],
                    "usb": [{"resourceName": "kubevirt.io/stick", "selectors": [{"vendor": "46f4", "product": "0001"}]}]
                }}}}"#,
        );
        let verbosity = &settings.verbosity;
        assert_eq!((verbosity.of_node("one"), verbosity.of_node("two")), (Some(6), Some(4)));
        assert_eq!(settings.pci_devices[0].resource_name, "nvidia.com/T4");
        assert_eq!(settings.mediated_devices[0].resource_name, "nvidia.com/vT4");
        let (manufacturer, version) = (Some("Example".to_owned()), Some("7".to_owned()));
        assert_eq!(settings.system, System { manufacturer, version, ..System::default() });
        assert_eq!(settings.usb_devices[0].resource_name, "kubevirt.io/stick");
        assert_eq!(settings.mediated_types.mediated_device_types, ["nvidia-222"]);
        assert!(settings.keeps_mediated_types);
    }
}
