//! The counters of a guest, as libvirt reports them, with the names of its disks and interfaces. Pure.
//!
//! Not here: what they mean.

use std::collections::BTreeMap;

use api::launcher::Stats;

use super::libvirt::Statistic;

/// Counters with the names of devices in the launch document. `disks` has the names of disks in the guest, such as `vda`, and
/// `interfaces` the taps of interfaces, both by these names.
pub(super) fn of(
    statistics: Vec<(String, Statistic)>,
    disks: &BTreeMap<String, String>,
    interfaces: &BTreeMap<String, String>,
) -> Stats {
    let mut stats = Stats::default();
    for (name, value) in statistics {
        match value {
            Statistic::Number(number) => {
                stats.numbers.insert(name, number);
            }
            Statistic::Text(text) => {
                let Some(device) = name.strip_suffix(".name") else { continue };
                let known = if device.starts_with("net.") { interfaces } else { disks };
                let own = known.iter().find(|(_, other)| **other == text).map_or(&text, |(own, _)| own);
                stats.names.insert(device.to_owned(), own.clone());
            }
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_names_of_the_launch_document() {
        let text = |name: &str, text: &str| (name.to_owned(), Statistic::Text(text.to_owned()));
        let statistics = vec![
            ("block.count".to_owned(), Statistic::Number(2)),
            text("block.0.name", "vda"),
            text("block.0.path", "/root.img"),
            text("block.1.name", "sda"),
            text("net.0.name", "tap1"),
        ];
        let map = |own: &str, other: &str| BTreeMap::from([(own.to_owned(), other.to_owned())]);
        let stats = of(statistics, &map("root", "vda"), &map("blue", "tap1"));
        assert_eq!(stats.numbers, BTreeMap::from([("block.count".to_owned(), 2)]));
        let names = [("block.0", "root"), ("block.1", "sda"), ("net.0", "blue")];
        let names = names.map(|(device, name)| (device.to_owned(), name.to_owned()));
        assert_eq!(stats.names, BTreeMap::from(names));
    }
}
