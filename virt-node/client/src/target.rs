//! The guest that an argument names: `NAME`, `KIND/NAME`, `KIND/NAME/NAMESPACE`.

use std::str::FromStr;

/// A machine, or a run of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    /// VirtualMachine.
    Machine,
    /// VirtualMachineInstance.
    Instance,
}

/// A guest by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: TargetKind,
    pub(crate) name: String,
    /// Without, the namespace of the command.
    pub(crate) namespace: Option<String>,
}

impl Target {
    /// A machine of the command's namespace.
    pub(crate) fn machine(name: &str) -> Self {
        Self { kind: TargetKind::Machine, name: name.to_owned(), namespace: None }
    }

    /// A run of the command's namespace.
    pub(crate) fn instance(name: &str) -> Self {
        Self { kind: TargetKind::Instance, ..Self::machine(name) }
    }

    /// The kind as virtctl writes it.
    pub(crate) fn short(&self) -> &'static str {
        match self.kind {
            TargetKind::Machine => "vm",
            TargetKind::Instance => "vmi",
        }
    }
}

impl FromStr for TargetKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "vm" | "vms" | "virtualmachine" | "virtualmachines" => Ok(Self::Machine),
            "vmi" | "vmis" | "virtualmachineinstance" | "virtualmachineinstances" => Ok(Self::Instance),
            _ => Err(format!("unsupported resource type {text:?}: use vm or vmi")),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, name, namespace) = match parts.as_slice() {
            [name] => (TargetKind::Instance, *name, None),
            [kind, name] => (kind.parse()?, *name, None),
            [kind, name, namespace] => (kind.parse()?, *name, Some((*namespace).to_owned())),
            _ => return Err(format!("{text:?} is not NAME, KIND/NAME or KIND/NAME/NAMESPACE")),
        };
        if name.is_empty() || namespace.as_ref().is_some_and(String::is_empty) {
            return Err(format!("{text:?} has an empty name"));
        }
        Ok(Self { kind, name: name.to_owned(), namespace })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_written_as_virtctl_does() {
        let of = |text: &str| text.parse::<Target>();
        assert_eq!(of("a"), Ok(Target::instance("a")));
        assert_eq!(of("vm/a"), Ok(Target::machine("a")));
        assert_eq!(of("VirtualMachineInstances/a"), Ok(Target::instance("a")));
        let there = Target { namespace: Some("n".to_owned()), ..Target::machine("a") };
        assert_eq!(of("vm/a/n"), Ok(there));
        for bad in ["pod/a", "", "vm/", "vm/a/", "vm/a/n/x"] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
