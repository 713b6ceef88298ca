//! From a NetworkAttachmentDefinition to the CNI configuration that plugins are given: pure.
//!
//! The configuration is in the object, or, where the object has none, in the node's file with a network of the object's name
//! (specification of the Network Plumbing Working Group 1.3, section 3.3).

use api::multus::NetworkAttachmentDefinition;
use guest::network::Configuration;
use serde::Deserialize;

use super::reference::Reference;
use crate::error::{Error, Kind, Result};

/// A file of the node's directory of CNI configurations: its name, and its text.
pub(crate) type File = (String, String);

/// The configuration of a definition; `files` gives those of the node.
///
/// # Errors
/// [`Kind::Content`]: the missing or invalid part, with the name of the object or the file; the error of `files`.
pub(crate) fn configuration(
    reference: &Reference,
    found: &NetworkAttachmentDefinition,
    files: impl FnOnce() -> Result<Vec<File>>,
) -> Result<Configuration> {
    let wrong = |text: String| Error::new(Kind::Content, text);
    if let Some(text) = found.spec.config.as_deref().filter(|text| !text.trim().is_empty()) {
        return Configuration::read(text, &reference.name).map_err(|said| {
            wrong(format!("the NetworkAttachmentDefinition {reference}, spec.config: {said}"))
        });
    }
    let files = files()?;
    let named = files.iter().find(|(_, text)| name_of(text).as_deref() == Some(&reference.name));
    let Some((file, text)) = named else {
        return Err(wrong(format!(
            "the NetworkAttachmentDefinition {reference} has no spec.config, and none of the {} CNI configurations of the \
             node has the name {}",
            files.len(),
            reference.name
        )));
    };
    Configuration::read(text, &reference.name).map_err(|said| wrong(format!("{file} on the node: {said}")))
}

/// The network's name in a configuration.
pub(crate) fn name_of(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        name: Option<String>,
    }
    serde_json::from_str::<Named>(text).ok()?.name
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::multus::NetworkSpec;

    fn read(config: Option<&str>, files: &[(&str, &str)]) -> std::result::Result<Configuration, String> {
        let reference = Reference::read("blue", "ns").unwrap();
        let spec = NetworkSpec { config: config.map(str::to_owned) };
        let object = NetworkAttachmentDefinition { spec, ..NetworkAttachmentDefinition::default() };
        let files = files.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        configuration(&reference, &object, || Ok(files)).map_err(|error| error.message().to_owned())
    }

    const BRIDGE: &str = r#"{"cniVersion": "1.0.0", "type": "bridge", "bridge": "br0"}"#;

    #[test]
    fn a_configuration_is_in_the_object_or_in_the_file_of_its_name() {
        let inline = read(Some(BRIDGE), &[]).unwrap();
        assert_eq!(inline.name(), "blue", "the object's name where the configuration has none");
        let list =
            r#"{"cniVersion": "1.0.0", "name": "own", "plugins": [{"type": "bridge"}, {"type": "tuning"}]}"#;
        assert_eq!(read(Some(list), &[]).unwrap().name(), "own");
        let files = [
            ("05-x.conf", "no JSON"),
            ("10-pods.conflist", r#"{"name": "pods"}"#),
            ("20-b.conflist", r#"{"cniVersion": "0.4.0", "name": "blue", "plugins": [{"type": "macvlan"}]}"#),
        ];
        for config in [None, Some(""), Some(" \n")] {
            let found = read(config, &files).unwrap();
            assert_eq!(found.kinds().map(|(_, kind)| kind).collect::<Vec<_>>(), ["macvlan"]);
        }
    }

    #[test]
    fn missing_and_broken_configurations_are_named() {
        let broken = r#"{"name": "blue", "cniVersion": "9.0.0", "type": "bridge"}"#;
        for (config, files, words) in [
            (None, &[][..], "ns/blue has no spec.config, and none of the 0"),
            (Some("{"), &[], "ns/blue, spec.config: not a CNI configuration"),
            (Some(r#"{"cniVersion": "1.0.0", "type": "../sh"}"#), &[], "\"type\""),
            (None, &[("20-b.conf", broken)], "20-b.conf on the node: \"cniVersion\""),
        ] {
            let said = read(config, files).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }
}
